// store/tables/lease_table.h: promised prefixes, with holder and end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/prefix_index.h"

namespace kv {

enum class SessionId : std::uint64_t {};  ///< A holder of leases and puts; never reused.
enum class LeaseId : std::uint64_t {};    ///< Never reused; 0 is invalid.

/// The prefixes that a client was promised and has not fetched yet: a scheduler that received "40 blocks" plans with
/// them. Until the lease is released or ends, the last block of its prefix is pinned, and eviction takes leaf ends
/// first, so the whole prefix stays. The table only keeps the promises: its owner pins a lease's block after grant(),
/// and unpins that block when the lease is handed back.
///   1. A lease ends exactly once: by release(), by expire() at `now` >= grant + duration, or by end_session().
///   2. Leases are kept in grant order, which is expiry order because all have one duration.
///   3. lease_count() <= count_max, and for each session <= count_per_session_max. At a limit grant() fails; live
///      leases never end early, even when a limit is lowered.
///   4. A lease is live until one of the calls of 1, even after its time: live leases stay pinned.
/// Thread safety: the Store's lock. Time: steady clock, handed in, monotonic. Cost: O(1); expire() and end_session()
/// O(leases ended).
class LeaseTable {
 public:
  struct Config {
    Duration duration;
    std::size_t count_max;  ///< At most 2^20.
    std::size_t count_per_session_max;
  };
  explicit LeaseTable(const Config& config);
  void set_limits(std::size_t count_max, std::size_t count_per_session_max);

  /// Errors: kBusy at a limit.
  Result<LeaseId> grant(SessionId session, BlockId block, TimePoint now);
  /// One promise for several blocks that stand alone. Each is a lease of its own to the limits and to expire(); the id
  /// is the first one's, and release() leads on from each, at last to `rest`. All or none. Errors: kBusy.
  Result<LeaseId> grant(SessionId session, std::span<const BlockId> blocks, TimePoint now, LeaseId rest = {});
  /// Returns the lease's block. `*next`: the next lease of the same promise, to be released as well; 0: the end.
  /// Errors: kStaleLease if it has ended, never existed, or belongs to another session.
  Result<BlockId> release(SessionId session, LeaseId lease, LeaseId* next = nullptr);
  /// Ends expired leases in grant order, at most `count_max`, and hands each one's block to `ended`. Returns how many.
  std::size_t expire(TimePoint now, std::size_t count_max, const std::function<void(BlockId)>& ended);
  /// Ends leases of the session, at most `count_max`; order unspecified. Returns how many.
  std::size_t end_session(SessionId session, std::size_t count_max, const std::function<void(BlockId)>& ended);

  void for_each(const std::function<void(BlockId)>& visit) const;  ///< The block of every live lease, in grant order.
  std::size_t lease_count() const { return lease_count_; }
  std::size_t lease_count(SessionId session) const;
  std::string check() const;  ///< Checks every invariant; for tests. Returns an empty string or the broken one.

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  /// The bits of a LeaseId that index the entry. The rest counts grants, so that ids are unique.
  static constexpr std::uint64_t kIndexBits = 20;

  struct Links {
    std::uint32_t before = kNone, after = kNone;
  };
  struct Entry {
    LeaseId id{};  ///< 0: unused.
    SessionId session{};
    BlockId block = kNoBlock;
    TimePoint end;
    LeaseId next{};
    Links by_grant, by_session;  ///< `by_grant.after` also chains unused entries.
  };
  struct List {
    std::uint32_t first = kNone, last = kNone;
    std::size_t count = 0;
  };

  static constexpr std::uint32_t index_of(LeaseId lease) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(lease) & ((std::uint64_t{1} << kIndexBits) - 1));
  }
  void append(List& list, Links Entry::*links, std::uint32_t index);
  void unlink(List& list, Links Entry::*links, std::uint32_t index);
  BlockId end(std::uint32_t index);

  Config config_;
  Config largest_;
  std::vector<Entry> entries_;
  std::uint32_t unused_ = kNone;
  std::uint64_t grant_count_ = 0;  ///< Since the start.
  std::size_t lease_count_ = 0;
  List by_grant_;
  std::unordered_map<SessionId, List> sessions_;  ///< Those with live leases.
};

}  // namespace kv
