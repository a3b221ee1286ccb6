// store/node/session/transfers/read_ahead.h: blocks on disk, read ahead of their turn and verified on disk threads, and
// handed out in order; frequently used ones are put back into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/event.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"
#include "store/node/store_guards.h"

namespace kv {

/// The blocks of one prefix that follow those in memory; or those of a set that are not in memory.
///   1. At most kBytesMax (and one block) are read but not yet taken.
///   2. A block is handed out once, after all before it, with the bytes as stored: the disk threads verify them.
///   3. Pending reads hold weak references only: a late read is dropped.
/// Thread safety: none; on the executor, which outlives the node's disk tier.
class ReadAhead {
 public:
  static constexpr std::uint64_t kBytesMax = 64 << 20;

  struct Chain {
    SpaceId space{};
    NamespaceId space_name{};
    NamespaceKind kind = NamespaceKind::kChain;
    std::span<const BlockHash> hashes;  ///< As pinned: for a chain the whole prefix. Lives as long as this.
  };
  /// Reads the first `count` of prefix->on_disk(), except the first `skipped`. promote() offers on behalf of `session`.
  ReadAhead(asio::any_io_executor executor, NodeContext& node, SessionId session, Chain chain,
            std::shared_ptr<PinnedPrefixGuard> prefix, std::size_t count, std::size_t skipped = 0);
  ReadAhead(SessionCore& session, Chain chain, std::shared_ptr<PinnedPrefixGuard> prefix, std::size_t count,
            std::size_t skipped = 0)
      : ReadAhead(session.executor, session.node, session.id, chain, std::move(prefix), count, skipped) {}
  ~ReadAhead();

  bool is_at_end() const { return next_ == count_; }
  /// Begins the reads that the bound allows. Requires !is_at_end().
  void start();
  bool is_ready() const { return reads_->results[next_].has_value(); }  ///< The next block, or its error.
  Event& progress() { return reads_->progress; }                        ///< Set when a read ended, and at wake_at().
  void wake_at(TimePoint when);

  /// The next block; requires is_ready(). kAgain: it had moved on disk since it was pinned and is being read again;
  /// kEnd: it is lost, or the disk fails, so later blocks are unavailable.
  enum class Taken { kBlock, kAgain, kEnd };
  Taken take(DiskBlock* block);
  /// After kEnd, in a set: moves on to the next block, which does not depend on the lost one.
  void skip();
  std::uint32_t next_index() const { return prefix_->on_disk()[next_].index; }  ///< Of the next block's hash.
  /// The blocks to be read that have not been taken, from the next one on.
  std::span<const PinnedDiskBlock> rest() const {
    return std::span<const PinnedDiskBlock>(prefix_->on_disk()).subspan(next_, count_ - next_);
  }
  /// Whether the store wants the last taken block in memory.
  bool wants_promotion() const { return prefix_->on_disk()[next_ - 1].promote; }
  /// Stores that block in memory, if there is room and all blocks above it are there.
  void promote(const DiskBlock& block);

 private:
  struct Reads {
    Reads(const asio::any_io_executor& executor, std::size_t count) : results(count), progress(executor) {}
    std::vector<std::optional<Result<DiskBlock>>> results;
    Event progress;
  };
  void start_one(std::size_t i);
  void step();

  const asio::any_io_executor executor_;
  NodeContext& node_;
  const SessionId session_;
  const Chain chain_;
  std::shared_ptr<PinnedPrefixGuard> prefix_;
  const std::size_t count_;
  std::uint64_t ahead_bytes_ = 0;  ///< Of the blocks from `next_` to `started_`.
  std::shared_ptr<Reads> reads_;
  std::unique_ptr<Alarm> alarm_;
  std::size_t started_ = 0, next_ = 0;
  bool is_retry_ = false;  ///< Of the next.
};

}  // namespace kv
