// transport/trace_context.h: a request's place in a distributed trace (W3C Trace Context, "traceparent").
//
//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//   version  trace id (32 digits)        parent id (16)  flags
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace kv {

/// 25 bytes on the wire and here, of fixed length; any bytes are valid. Used as text to show, and for no other purpose.
struct TraceContext {
  static constexpr std::size_t kBytes = 25, kTextBytes = 55;

  std::array<std::uint8_t, 16> trace_id{};
  std::array<std::uint8_t, 8> parent_id{};
  std::uint8_t flags = 0;

  /// Both ids have a nonzero bit, as W3C requires.
  bool is_set() const;
  /// Parses a traceparent header: exactly 55 characters for version 00, at least as many for a later one. Digits are
  /// lower case. nullopt for any other text, which callers ignore: it may be forged.
  static std::optional<TraceContext> parse(std::string_view traceparent);
  std::string text() const;  ///< As version 00. Empty if it is not set.
  std::array<std::uint8_t, kBytes> bytes() const;
  static TraceContext from_bytes(const std::uint8_t* bytes);  ///< Reads kBytes bytes.

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};
static_assert(std::is_trivially_destructible_v<TraceContext>);  // so option structs with one may stand in a co_await

}  // namespace kv
