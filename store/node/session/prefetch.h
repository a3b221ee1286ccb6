// store/node/session/prefetch.h: brings blocks that a client will soon ask for from disk to memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/event.h"
#include "store/node/session/read_ahead.h"
#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"
#include "store/node/session/store_guards.h"

namespace kv {

/// Nobody is answered and nothing is lost by it: a get reads from disk what a prefetch did not bring.
///   1. What is in memory of the prefix stays there until its end: the blocks that are brought are put below them.
/// Thread safety: none; on the session's executor.
class Prefetch {
 public:
  /// `group_counts`: of a set, as SetMatchOptions. Of a group that is not held as a whole nothing is brought.
  Prefetch(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::span<const BlockHash> hashes,
           std::span<const std::uint32_t> group_counts = {});

  /// Pins what there is of the prefix. Errors: of Store::pin_prefix.
  error_code pin();
  bool has_work() const { return prefix_ && !prefix_->spilled().empty(); }
  asio::awaitable<void> run();
  void cancel();

 private:
  Result<Store::PinnedPrefix> pin_set();

  const std::shared_ptr<SessionCore> session_;
  const SpaceId space_;
  const NamespaceId space_name_;
  const SpaceKind kind_;
  const std::vector<BlockHash> hashes_;
  const std::vector<std::uint32_t> group_counts_;
  std::shared_ptr<PinnedPrefixGuard> prefix_;
  bool is_cancelled_ = false;
  Event* wake_ = nullptr;  ///< While it waits for the disk.
};

}  // namespace kv
