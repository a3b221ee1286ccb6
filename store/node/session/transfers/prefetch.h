// store/node/session/transfers/prefetch.h: brings blocks that a client will soon request from disk to memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/event.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"
#include "store/node/session/transfers/read_ahead.h"
#include "store/node/store_guards.h"

namespace kv {

/// Best effort without an answer: a get reads from disk the blocks that a prefetch did not bring.
///   1. The part of the prefix in memory stays there until the end: the new blocks are put below it.
/// Thread safety: none; on the session's executor.
class Prefetch {
 public:
  /// `group_counts`: of a set, as in SetMatchOptions. Groups that are not held as a whole are skipped.
  Prefetch(std::shared_ptr<SessionCore> session, const OpenSpace& space, std::span<const BlockHash> hashes,
           std::span<const std::uint32_t> group_counts = {});

  /// Pins the available part of the prefix. Errors: of Store::pin_prefix.
  error_code pin();
  bool has_work() const { return prefix_ && !prefix_->on_disk().empty(); }
  asio::awaitable<void> run();
  void cancel();

 private:
  Result<PinnedPrefix> pin_set();

  const std::shared_ptr<SessionCore> session_;
  const SpaceId space_;
  const NamespaceId space_name_;
  const NamespaceKind kind_;
  const std::vector<BlockHash> hashes_;
  const std::vector<std::uint32_t> group_counts_;
  std::shared_ptr<PinnedPrefixGuard> prefix_;
  bool is_cancelled_ = false;
  Event* wake_ = nullptr;  ///< Set while it waits for the disk.
};

}  // namespace kv
