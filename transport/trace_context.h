// transport/trace_context.h: whose request this is, in a system where requests are followed from one program to the
// next (W3C Trace Context, "traceparent").
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

/// 25 bytes on the wire and here: nothing in it has a length, or characters, that could be wrong. Taken for text to
/// show, and for nothing else.
struct TraceContext {
  static constexpr std::size_t kBytes = 25, kTextBytes = 55;

  std::array<std::uint8_t, 16> trace_id{};
  std::array<std::uint8_t, 8> parent_id{};
  std::uint8_t flags = 0;

  /// Both ids have a bit that is not 0, as W3C asks.
  bool is_set() const;
  /// A traceparent header: of version 00 exactly its 55 characters, of a later one at least these. Digits are lower
  /// case. Nothing for all else, which is to be ignored: others may have made it up.
  static std::optional<TraceContext> parse(std::string_view traceparent);
  std::string text() const;  ///< As version 00. Empty if it is not set.
  std::array<std::uint8_t, kBytes> bytes() const;
  static TraceContext from_bytes(const std::uint8_t* bytes);  ///< kBytes of them.

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};
static_assert(std::is_trivially_destructible_v<TraceContext>);  // so option structs with one may stand in a co_await

}  // namespace kv
