// index/reuse_hint.h: a caller's hint about a request's future.
#pragma once

#include <cstdint>

namespace kv {

/// When the blocks of a request will be requested again, as far as its caller knows: an agent waits for a tool, a
/// one-shot call never returns. Other requests that share blocks are not considered. A wrong hint costs hits, never a
/// wrong byte. Values are those of the wire.
enum class ReuseHint : std::uint8_t {
  kNone = 0,  ///< Unknown.
  kFinal,
  kWithin15s,
  kWithin60s,
  kWithin240s,
  kWithin600s,
  kLater,  ///< In more than ten minutes.
};
inline constexpr std::uint8_t kReuseHintMax = static_cast<std::uint8_t>(ReuseHint::kLater);

}  // namespace kv
