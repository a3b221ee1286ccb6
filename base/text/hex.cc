#include "base/text/hex.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace kv {

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    hex += kDigits[static_cast<unsigned>(byte) >> 4];
    hex += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return hex;
}

bool from_hex(std::string_view digits, std::span<std::byte> bytes) {
  if (digits.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const at = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, byte, 16);
    if (error != std::errc() || end != at + 2) return false;
    bytes[i] = std::byte{byte};
  }
  return true;
}

}  // namespace kv
