#include "transport/trace_context.h"

#include <algorithm>
#include <span>

#include "base/text/hex.h"

namespace kv {
namespace {

/// Lower case alone is allowed.
bool read_digits(std::string_view digits, std::span<std::uint8_t> bytes) {
  return digits.find_first_of("ABCDEF") == std::string_view::npos && from_hex(digits, std::as_writable_bytes(bytes));
}

bool has_bit(std::span<const std::uint8_t> bytes) {
  return std::ranges::any_of(bytes, [](std::uint8_t byte) { return byte != 0; });
}

}  // namespace

bool TraceContext::is_set() const { return has_bit(trace_id) && has_bit(parent_id); }

std::optional<TraceContext> TraceContext::parse(std::string_view text) {
  if (text.size() < kTextBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  std::array<std::uint8_t, 1> version{}, flags{};
  TraceContext context;
  if (!read_digits(text.substr(0, 2), version) || !read_digits(text.substr(3, 32), context.trace_id) ||
      !read_digits(text.substr(36, 16), context.parent_id) || !read_digits(text.substr(53, 2), flags))
    return std::nullopt;
  if (version[0] == 0xFF || !context.is_set()) return std::nullopt;
  if (text.size() > kTextBytes && (version[0] == 0 || text[kTextBytes] != '-')) return std::nullopt;
  context.flags = flags[0];
  return context;
}

std::string TraceContext::text() const {
  if (!is_set()) return "";
  const auto digits = [](std::span<const std::uint8_t> bytes) { return to_hex(std::as_bytes(bytes)); };
  return "00-" + digits(trace_id) + "-" + digits(parent_id) + "-" + digits(std::span(&flags, 1));
}

std::array<std::uint8_t, TraceContext::kBytes> TraceContext::bytes() const {
  std::array<std::uint8_t, kBytes> all;
  std::ranges::copy(trace_id, all.begin());
  std::ranges::copy(parent_id, all.begin() + trace_id.size());
  all.back() = flags;
  return all;
}

TraceContext TraceContext::from_bytes(const std::uint8_t* bytes) {
  TraceContext context;
  std::copy_n(bytes, context.trace_id.size(), context.trace_id.begin());
  std::copy_n(bytes + context.trace_id.size(), context.parent_id.size(), context.parent_id.begin());
  context.flags = bytes[kBytes - 1];
  return context;
}

}  // namespace kv
