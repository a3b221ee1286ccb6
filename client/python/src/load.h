// client/python/src/load.h: match, then get the found blocks, as one call.
#pragma once

#include "client/client.h"
#include "client/completion_queue.h"

namespace kv::python {

struct LoadResult {
  MatchResult match;
  GetResult get;  ///< Empty if too little was found.
};

/// As CompletionQueue::submit_load. The arguments must live until it has ended.
Async<LoadResult> load(Client& client, Space space, Hashes hashes, TargetBlocks blocks, LoadOptions options,
                       CallControl control);

}  // namespace kv::python
