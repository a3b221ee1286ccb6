// client/load.h: match, then get the found blocks, as one call.
#pragma once

#include <functional>

#include "client/client.h"
#include "client/completion_queue.h"

namespace kv {

struct LoadResult {
  MatchResult match;
  GetResult get;  ///< Empty if too little was found.
};

/// As CompletionQueue::submit_load, except for `tell_match`: calls `on_match`, if there is one, between the two calls.
/// The arguments must live until it has ended.
Async<LoadResult> load(Client& client, Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                       CallControl control, const std::function<void(const MatchResult&)>* on_match = nullptr);

}  // namespace kv
