#include "client/tools/text_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/assert.h"
#include "base/text/printable.h"

namespace kv {
namespace {

bool looks_like_number(const std::string& cell) {
  return cell.empty() || cell == "-" || std::isdigit(static_cast<unsigned char>(cell[0])) ||
         (cell[0] == '-' && cell.size() > 1 && std::isdigit(static_cast<unsigned char>(cell[1])));
}

}  // namespace

void TextTable::add(std::vector<std::string> row) {
  KV_ASSERT(row.size() <= rows_.front().size());  // a row may be shorter than the headings, as for a node that is down
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back(std::move(row));
}

/// Two passes: widths depend on all rows. Padding the last column would wrap lines of blanks in a terminal.
void TextTable::print(std::ostream& out) const {
  std::size_t column_count = 0;
  for (const auto& row : rows_) column_count = std::max(column_count, row.size());
  std::vector<std::size_t> widths(column_count, 0);
  std::vector<bool> is_number(column_count, rows_.size() > 1);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !looks_like_number(rows_[r][c])) is_number[c] = false;
    }
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += (c > 0 ? "  " : "") + (is_number[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string format_number(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string format_count(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, ",");
  return text;
}

/// Three digits at most, so that a column is easy to compare; whole numbers without a point.
std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  const bool is_whole = value == std::floor(value);
  return format_number(value, is_whole ? 0 : value < 10 ? 2 : 1) + " " + kUnits[unit];
}

/// In the usual unit and digits: days and hours for uptimes, microseconds for round trips.
std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return format_number(seconds * 1e6, seconds < 1e-4 ? 1 : 0) + " us";
  if (seconds < 1) return format_number(seconds * 1e3, seconds < 1e-1 ? 1 : 0) + " ms";
  if (seconds < 120) return format_number(seconds, seconds < 10 ? 1 : 0) + " s";
  const auto minutes = static_cast<std::uint64_t>(seconds / 60);
  if (minutes < 120) return std::to_string(minutes) + " min";
  if (minutes < 48 * 60) return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
  return std::to_string(minutes / (24 * 60)) + " d " + std::to_string(minutes / 60 % 24) + " h";
}

std::string format_share(double part) { return format_number(100 * part, 1) + " %"; }

std::string format_utc(std::chrono::microseconds since_1970, const char* form) {
  const auto time = static_cast<std::time_t>(since_1970 / std::chrono::seconds(1));
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&time, &parts) == nullptr) return "-";
  return {text.data(), std::strftime(text.data(), text.size(), form, &parts)};
}

}  // namespace kv
