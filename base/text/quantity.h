// base/text/quantity.h: numbers, and sizes and durations as people write them.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace kv {

/// The whole text as a number, without blanks or '+'. nullopt: it is none, or beyond the type's range.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// 4096, 4KiB, 4G, 1.5GiB (powers of 1024), 2MB (powers of 1000). False for other text.
bool parse_bytes(std::string_view text, std::uint64_t* bytes);
/// 10us, 500ms, 2s, 1m or 1min, 3h; a bare number is seconds. False for other text.
bool parse_seconds(std::string_view text, double* seconds);
/// The same, with a bare number in microseconds.
bool parse_microseconds(std::string_view text, double* microseconds);

}  // namespace kv
