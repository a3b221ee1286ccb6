#include "base/text/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>
#include <string>
#include <system_error>

namespace kv {
namespace {

/// Splits "1.5GiB" into 1.5 and "gib". Rejects "inf" and "nan", which from_chars() also reads.
bool split_number(std::string_view text, double* number, std::string* unit) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || !std::isfinite(*number) || *number < 0) return false;
  unit->assign(end, text.data() + text.size());
  std::erase(*unit, ' ');
  std::transform(unit->begin(), unit->end(), unit->begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return true;
}

struct Unit {
  std::string_view name;
  double factor;
};
const double* find_unit(std::span<const Unit> units, std::string_view name) {
  const auto found = std::ranges::find(units, name, &Unit::name);
  return found == units.end() ? nullptr : &found->factor;
}

bool parse_time(std::string_view text, double bare, double* seconds) {
  static constexpr Unit kUnits[] = {{"s", 1},    {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9},
                                    {"min", 60}, {"m", 60},    {"h", 3600}};
  std::string unit;
  if (!split_number(text, seconds, &unit)) return false;
  const double* const factor = unit.empty() ? &bare : find_unit(kUnits, unit);
  if (factor == nullptr) return false;
  *seconds *= *factor;
  return true;
}

}  // namespace

/// A bare k, M, G or T is a power of 1024, as usual for memory; kB, MB, GB and TB are powers of 1000.
bool parse_bytes(std::string_view text, std::uint64_t* bytes) {
  static constexpr Unit kUnits[] = {{"", 1},         {"b", 1},        {"bytes", 1},  {"k", 0x1p10},   {"kib", 0x1p10},
                                    {"m", 0x1p20},   {"mib", 0x1p20}, {"g", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40},
                                    {"tib", 0x1p40}, {"kb", 1e3},     {"mb", 1e6},   {"gb", 1e9},     {"tb", 1e12}};
  double number = 0;
  std::string unit;
  if (!split_number(text, &number, &unit)) return false;
  const double* const factor = find_unit(kUnits, unit);
  if (factor == nullptr || number * *factor >= 0x1p63) return false;  // beyond it llround() is undefined
  *bytes = static_cast<std::uint64_t>(std::llround(number * *factor));
  return true;
}

bool parse_seconds(std::string_view text, double* seconds) { return parse_time(text, 1, seconds); }

bool parse_microseconds(std::string_view text, double* microseconds) {
  if (!parse_time(text, 1e-6, microseconds)) return false;
  *microseconds *= 1e6;
  return true;
}

}  // namespace kv
