// base/text/hex.h: bytes as hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kv {

std::string to_hex(std::span<const std::byte> bytes);  ///< In lower case.
/// Fills `bytes` from exactly two digits for each, of either case. False for all other text, with unspecified `bytes`.
bool from_hex(std::string_view digits, std::span<std::byte> bytes);

}  // namespace kv
