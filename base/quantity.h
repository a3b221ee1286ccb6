// base/quantity.h: sizes and durations as people write them.
#pragma once

#include <cstdint>
#include <string_view>

namespace kv {

/// 4096, 4KiB, 4G, 1.5GiB (powers of 1024), 2MB (powers of 1000). False for other text.
bool parse_bytes(std::string_view text, std::uint64_t* bytes);
/// 10us, 500ms, 2s, 1m or 1min, 3h; a bare number is seconds. False for other text.
bool parse_seconds(std::string_view text, double* seconds);
/// The same, with a bare number in microseconds.
bool parse_microseconds(std::string_view text, double* microseconds);

}  // namespace kv
