// store/node/session/core/request_kinds.h: classes of request types.
#pragma once

#include "transport/frames/frame.h"

namespace kv {

/// Requests with short answers, whose order among others is irrelevant.
inline bool goes_by_message(FrameType type) {
  return type == FrameType::kMatch || type == FrameType::kGet || type == FrameType::kTouch;
}

/// Refused by a draining node.
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

/// Requests that a tenant's rate bounds: those that cost the store's time. Exempt are requests that end or continue
/// something, and pings.
inline bool counts_for_tenant(FrameType type) {
  switch (type) {
    case FrameType::kOpen:
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop:
    case FrameType::kHotRoots:
    case FrameType::kContext:
    case FrameType::kAdmin: return true;
    default: return is_of_blocks(type);
  }
}

}  // namespace kv
