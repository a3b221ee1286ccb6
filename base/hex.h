// base/hex.h: bytes from hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kv {

/// Fills `bytes` from exactly two digits for each, of either case. False, with `bytes` in any state, for all other
/// text.
bool from_hex(std::string_view digits, std::span<std::byte> bytes);

}  // namespace kv
