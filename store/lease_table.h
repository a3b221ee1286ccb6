// store/lease_table.h: which prefixes were promised to whom, until when.
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

enum class SessionId : std::uint64_t {};  ///< Who holds leases and puts; never reused.
enum class LeaseId : std::uint64_t {};    ///< Never reused; 0 is no lease.

/// Which prefixes a client was promised and has not fetched yet: a scheduler that was told "40 blocks" plans with them.
/// Until the lease is released or ends, the last block of its prefix is pinned, and eviction takes leaf ends first, so
/// the whole prefix stays. The table only keeps the promises: its owner pins a lease's block after grant(), and unpins
/// that block when the lease is handed back.
///   1. A lease ends exactly once: by release(), by expire() at `now` >= grant + duration, or by end_session().
///   2. Leases are kept in grant order, which is expiry order because all have one duration.
///   3. lease_count() <= count_max, and for each session <= count_per_session_max. At a limit grant() fails; it never
///      ends a live lease. A lower limit, set later, ends none either.
///   4. A lease is live until one of the calls of 1, not until its time has passed: so what is live is pinned.
/// Thread safety: none, the Store's lock covers it. Time: steady clock, handed in, never going back. Cost: O(1);
/// expire() and end_session() O(leases ended).
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
  /// is the first one's, and release() leads on from each to the next, and behind the last to `rest`. All or none.
  /// Errors: kBusy at a limit.
  Result<LeaseId> grant(SessionId session, std::span<const BlockId> blocks, TimePoint now, LeaseId rest = {});
  /// The block it was granted for. `*next`: the next lease of the same promise, to be released as well; 0: no more.
  /// Errors: kStaleLease if it has ended, never was, or is another session's.
  Result<BlockId> release(SessionId session, LeaseId lease, LeaseId* next = nullptr);
  /// Ends leases that are over at `now`, in grant order, at most `count_max` of them, and hands each one's block to
  /// `ended`. Returns how many.
  std::size_t expire(TimePoint now, std::size_t count_max, const std::function<void(BlockId)>& ended);
  /// Ends leases of the session, at most `count_max`; order unspecified. Returns how many.
  std::size_t end_session(SessionId session, std::size_t count_max, const std::function<void(BlockId)>& ended);

  void for_each(const std::function<void(BlockId)>& visit) const;  ///< The block of every live lease, in grant order.
  std::size_t lease_count() const { return lease_count_; }
  std::size_t lease_count(SessionId session) const;
  std::string check() const;  ///< Checks every invariant; for tests. Returns an empty string or what is broken.

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  /// Of a LeaseId: these name the entry. The rest counts grants, so that no id comes twice.
  static constexpr std::uint64_t kIndexBits = 20;

  struct Links {
    std::uint32_t before = kNone, after = kNone;
  };
  struct Entry {
    LeaseId id{};  ///< 0: unused.
    SessionId session{};
    BlockId block = kNoBlock;
    TimePoint end;
    LeaseId next{};              ///< Of the same promise.
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
  Config largest_;  ///< Of the limits so far.
  std::vector<Entry> entries_;
  std::uint32_t unused_ = kNone;
  std::uint64_t grant_count_ = 0;  ///< Ever.
  std::size_t lease_count_ = 0;
  List by_grant_;
  std::unordered_map<SessionId, List> sessions_;  ///< Those with live leases.
};

}  // namespace kv
