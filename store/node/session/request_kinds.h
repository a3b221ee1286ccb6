// store/node/session/request_kinds.h: what a session does alike for several types of requests.
#pragma once

#include "transport/frame.h"

namespace kv {

/// Requests whose answers are short and whose order among others does not matter.
inline bool goes_by_message(FrameType type) {
  return type == FrameType::kMatch || type == FrameType::kGet || type == FrameType::kTouch;
}

/// What a node that drains refuses.
inline bool is_of_blocks(FrameType type) {
  switch (type) {
    case FrameType::kMatch:
    case FrameType::kGet:
    case FrameType::kPut:
    case FrameType::kSetMatch:
    case FrameType::kSetGet:
    case FrameType::kSetPut: return true;
    default: return false;
  }
}

/// Requests that a tenant's rate bounds: those that cost the store's time. What ends something, or continues what was
/// let through, is not among them, nor what says that a node is there.
inline bool counts_for_tenant(FrameType type) {
  switch (type) {
    case FrameType::kOpen:
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop:
    case FrameType::kHotRoots:
    case FrameType::kContext:
    case FrameType::kStats: return true;
    default: return is_of_blocks(type);
  }
}

}  // namespace kv
