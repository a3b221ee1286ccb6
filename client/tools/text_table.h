// client/tools/text_table.h: tables for people: aligned columns, numbers to the right.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace kv {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> headings) { rows_.push_back(std::move(headings)); }
  void add(std::vector<std::string> row);  ///< Cells may hold a node's own words, and pass through printable().
  bool is_empty() const { return rows_.size() == 1; }
  /// A column is aligned to the right if every cell below its heading begins like a number or is "-".
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string format_number(double value, int digits);  ///< Fixed digits after the point.
std::string format_count(std::uint64_t value);        ///< 1,234,567
std::string format_bytes(std::uint64_t bytes);        ///< 2 MiB, 1.5 GiB, 700 B
std::string format_seconds(double seconds);           ///< 950 us, 1.2 s, 3 h 20 min
std::string format_share(double part);                ///< 12.5 %, of 0.125
/// As strftime(), in UTC; "-" for a time beyond the calendar.
std::string format_utc(std::chrono::microseconds since_1970, const char* form = "%Y-%m-%dT%H:%M:%SZ");

}  // namespace kv
