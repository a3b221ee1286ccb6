#include "transport/trace_context.h"

#include <algorithm>
#include <span>

namespace kv {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;  // upper case is not allowed
}

/// Two digits for each byte. False on any other character.
bool read_digits(std::string_view text, std::span<std::uint8_t> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

void append_digits(std::string& text, std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
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
  std::string text = "00-";
  append_digits(text, trace_id);
  text += '-';
  append_digits(text, parent_id);
  text += '-';
  append_digits(text, std::span(&flags, 1));
  return text;
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
