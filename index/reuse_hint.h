// index/reuse_hint.h: what a caller says of a request's future.
#pragma once

#include <cstdint>

namespace kv {

/// When the blocks of a request will be asked for again, as far as its caller knows: an agent waits for a tool, a
/// one-shot call never returns. It says nothing of others who may share blocks with the request. A wrong hint costs
/// hits, never a wrong byte. Values are those of the wire.
enum class ReuseHint : std::uint8_t {
  kNone = 0,  ///< Nobody knows.
  kFinal,     ///< Never.
  kWithin15s,
  kWithin60s,
  kWithin240s,
  kWithin600s,
  kLater,  ///< In more than ten minutes.
};
inline constexpr std::uint8_t kReuseHintMax = static_cast<std::uint8_t>(ReuseHint::kLater);

}  // namespace kv
