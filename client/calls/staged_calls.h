// client/calls/staged_calls.h: a set's get or put through staging memory: how it is cut into calls, and when each
// begins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "client/core/client_core.h"
#include "client/link/client_staging.h"

namespace kv {

/// Places of one call's blocks in staging memory. Without room they use the caller's memory.
struct StagedCall {
  std::size_t bytes = 0;             ///< Of all blocks. 0: the call is not staged.
  std::vector<std::size_t> offsets;  ///< By position in the call's part.
  ClientStaging::Room room;

  std::span<std::byte> at(std::size_t i, std::size_t block_bytes) const {
    return room.bytes().subspan(offsets[i], block_bytes);
  }
  void add(std::size_t block_bytes) {
    offsets.push_back(bytes);
    bytes += padded(block_bytes);
  }
  /// Blocks begin at cache lines.
  static std::size_t padded(std::size_t block_bytes) { return (block_bytes + 63) / 64 * 64; }
};

/// A part of a set's blocks, cut into calls whose bytes stay in a core's cache between the node's copy and this one.
struct StagedPart {
  OwnedChain part;  ///< Borrows the uncut part.
  StagedCall staged;
};
inline constexpr std::size_t kStagedCallBytes = 1 << 20;

/// Cuts `parts` where may_stage(node) and block_bytes(position) fit into `staging`; leaves others whole, and groups
/// too, for simplicity: engines have small ones.
template <class MayStage, class BlockBytes>
std::vector<StagedPart> cut_for_staging(const ClientStaging& staging, std::span<const OwnedChain> parts,
                                        MayStage&& may_stage, BlockBytes&& block_bytes) {
  std::vector<StagedPart> cut;
  const std::size_t call_bytes = std::min(kStagedCallBytes, staging.room_bytes_max());
  for (const OwnedChain& part : parts) {
    const auto slice = [&](std::size_t first, std::size_t count) {
      OwnedChain made;
      made.node = part.node;
      made.hashes = part.hashes.subspan(first, count);
      if (!part.positions.empty()) made.positions = part.positions.subspan(first, count);
      made.first = part.first + first;
      made.group_counts = part.group_counts;
      return made;
    };
    const std::size_t count = part.hashes.size();
    bool is_staged = part.group_counts.empty() && may_stage(part.node);
    for (std::size_t i = 0; is_staged && i < count; ++i)
      is_staged = staging.can_hold(StagedCall::padded(block_bytes(part.position(i))));
    if (!is_staged) {
      cut.push_back({slice(0, count), {}});
      continue;
    }
    for (std::size_t first = 0; first < count;) {
      StagedCall staged;
      std::size_t i = first;
      do {
        staged.add(block_bytes(part.position(i++)));
      } while (i < count && staged.bytes + StagedCall::padded(block_bytes(part.position(i))) <= call_bytes);
      cut.push_back({slice(first, i - first), std::move(staged)});
      first = i;
    }
  }
  return cut;
}

/// Starts the calls of an operation in order: all at once, but staged calls only while few others are in progress.
///   1. At most kStagedCallsMax are staged at a time: one at the node, one being read here, one or two waiting.
///   2. Calls do not wait for another operation's room: if an operation has none, its next call goes unstaged.
template <class C, class Start>
class StagedStart {
 public:
  /// start(call) begins one. All arguments outlive this.
  StagedStart(ClientShared& shared, CallBundle& bundle, TimePoint until, std::vector<C>& calls, Start start)
      : shared_(shared), bundle_(bundle), until_(until), calls_(calls), start_(std::move(start)) {}

  /// Begins all calls that can begin now. False: all have ended.
  bool go_on() {
    std::size_t staged = let_go();
    while (next_ < calls_.size() && !why_not_asked()) {
      C& call = calls_[next_];
      if (call.staged.bytes > 0) {
        if (staged == kStagedCallsMax) break;
        call.staged.room = shared_.staging.take(call.staged.bytes);
        if (call.staged.room) {
          call.region = shared_.staging.region();
        } else if (staged > 0) {
          break;
        }
      }
      ++next_;
      start_(call);
      staged = let_go();
    }
    if (why_not_asked()) return !bundle_.running.empty();
    return next_ < calls_.size() || !bundle_.running.empty();
  }
  std::size_t asked_count() const { return next_; }
  /// Reason for the calls that were not started, once all others have ended.
  error_code why_not_asked() const {
    if (bundle_.control.is_cancelled()) return Errc::kCancelled;
    return next_ > 0 && shared_.clock.now() >= until_ ? error_code(asio::error::timed_out) : error_code();
  }

 private:
  static constexpr std::size_t kStagedCallsMax = 4;

  /// Frees the room of ended calls. Returns how many calls still have room.
  std::size_t let_go() {
    std::size_t count = 0;
    for (; oldest_ < next_ && calls_[oldest_].has_ended(); ++oldest_) calls_[oldest_].staged.room = {};
    for (std::size_t i = oldest_; i < next_; ++i) {
      if (calls_[i].has_ended()) calls_[i].staged.room = {};
      count += bool(calls_[i].staged.room);
    }
    return count;
  }

  ClientShared& shared_;
  CallBundle& bundle_;
  const TimePoint until_;
  std::vector<C>& calls_;
  Start start_;
  std::size_t next_ = 0, oldest_ = 0;  ///< The next to begin; the first that may not have ended.
};

}  // namespace kv
