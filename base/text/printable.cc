#include "base/text/printable.h"

#include <cstddef>

namespace kv {
namespace {

/// The length of the first character; 0 if it is not UTF-8: malformed, overlong, a surrogate, or beyond U+10FFFF. The
/// ranges of the second byte are those of table 3-7 of the Unicode standard.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const auto follows = [&](std::size_t i, unsigned from = 0x80, unsigned to = 0xbf) {
    return byte(i) >= from && byte(i) <= to;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef)
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

/// Besides ASCII's: U+0080 to U+009F, which some terminals obey, and the line separators U+2028 and U+2029.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  return character == "\xe2\x80\xa8" || character == "\xe2\x80\xa9";
}

void append_escaped(std::string_view bytes, std::string& to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    switch (each) {
      case '\n': to += "\\n"; break;
      case '\r': to += "\\r"; break;
      case '\t': to += "\\t"; break;
      case '\\': to += "\\\\"; break;
      default: to += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
}

}  // namespace

/// Escapes the backslash too, so that the result can be read back: "\n" in a log is a line end, "\\n" was in the text.
std::string printable(std::string_view text) {
  std::string printed;
  printed.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    // After a bad byte, start again at the next one: a damaged character must not swallow a good one behind it.
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes == 0 || character == "\\" || is_control(character)) {
      append_escaped(character, printed);
    } else {
      printed += character;
    }
    text.remove_prefix(character.size());
  }
  return printed;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace kv
