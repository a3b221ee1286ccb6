#include "store/tables/lease_table.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

LeaseTable::LeaseTable(const Config& config) : config_(config) {
  KV_ASSERT(config.duration > Duration::zero());
  config_.count_max = std::min(config.count_max, std::size_t{1} << kIndexBits);
  largest_ = config_;
}

void LeaseTable::set_limits(std::size_t count_max, std::size_t count_per_session_max) {
  config_.count_max = std::min(count_max, std::size_t{1} << kIndexBits);
  config_.count_per_session_max = count_per_session_max;
  largest_.count_max = std::max(largest_.count_max, config_.count_max);
  largest_.count_per_session_max = std::max(largest_.count_per_session_max, count_per_session_max);
}

Result<LeaseId> LeaseTable::grant(SessionId session, BlockId block, TimePoint now) {
  KV_ASSERT(block != kNoBlock);
  if (lease_count_ >= config_.count_max || lease_count(session) >= config_.count_per_session_max) return Errc::kBusy;
  std::uint32_t index = unused_;
  if (index == kNone) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    unused_ = entries_[index].by_grant.after;
  }
  KV_ASSERT(index >> kIndexBits == 0);  // or two leases would have one id
  Entry& entry = entries_[index];
  KV_ASSERT(entry.id == LeaseId{});
  entry = {.id = LeaseId{++grant_count_ << kIndexBits | index},
           .session = session,
           .block = block,
           .end = now + config_.duration};
  // Callers read the time before they get the lock, so `now` may be older than the last grant's. Invariant 2 still
  // holds: this lease then ends a little later than necessary.
  if (by_grant_.last != kNone) entry.end = std::max(entry.end, entries_[by_grant_.last].end);
  append(by_grant_, &Entry::by_grant, index);
  append(sessions_[session], &Entry::by_session, index);
  ++lease_count_;
  return entry.id;
}

Result<LeaseId> LeaseTable::grant(SessionId session, std::span<const BlockId> blocks, TimePoint now, LeaseId rest) {
  KV_ASSERT(!blocks.empty());
  if (lease_count_ + blocks.size() > config_.count_max ||
      lease_count(session) + blocks.size() > config_.count_per_session_max)
    return Errc::kBusy;
  LeaseId next = rest;
  // The last block first: each entry then links to the one after it.
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const auto lease = grant(session, blocks[i], now);
    KV_ASSERT(lease);
    entries_[index_of(*lease)].next = next;
    next = *lease;
  }
  return next;
}

Result<BlockId> LeaseTable::release(SessionId session, LeaseId lease, LeaseId* next) {
  // The id came from a client: any number is possible. Only the whole id, grant count included, and the session count.
  const std::uint32_t index = index_of(lease);
  if (lease == LeaseId{} || index >= entries_.size()) return Errc::kStaleLease;
  if (entries_[index].id != lease || entries_[index].session != session) return Errc::kStaleLease;
  if (next != nullptr) *next = entries_[index].next;
  return end(index);
}

std::size_t LeaseTable::expire(TimePoint now, std::size_t count_max, const std::function<void(BlockId)>& ended) {
  std::size_t count = 0;
  for (; count < count_max && by_grant_.first != kNone && entries_[by_grant_.first].end <= now; ++count)
    ended(end(by_grant_.first));
  return count;
}

std::size_t LeaseTable::end_session(SessionId session, std::size_t count_max,
                                    const std::function<void(BlockId)>& ended) {
  std::size_t count = 0;
  for (auto it = sessions_.find(session); count < count_max && it != sessions_.end(); ++count) {
    ended(end(it->second.first));
    it = sessions_.find(session);  // the list goes with its last lease
  }
  return count;
}

/// Takes the lease out of all lists and returns its block.
BlockId LeaseTable::end(std::uint32_t index) {
  Entry& entry = entries_[index];
  const auto session = sessions_.find(entry.session);
  KV_ASSERT(entry.id != LeaseId{} && session != sessions_.end() && lease_count_ > 0);
  unlink(by_grant_, &Entry::by_grant, index);
  unlink(session->second, &Entry::by_session, index);
  if (session->second.count == 0) sessions_.erase(session);
  entry.id = LeaseId{};
  entry.by_grant.after = unused_;
  unused_ = index;
  --lease_count_;
  return entry.block;
}

void LeaseTable::append(List& list, Links Entry::*links, std::uint32_t index) {
  (entries_[index].*links) = {.before = list.last, .after = kNone};
  (list.last == kNone ? list.first : (entries_[list.last].*links).after) = index;
  list.last = index;
  ++list.count;
}

void LeaseTable::unlink(List& list, Links Entry::*links, std::uint32_t index) {
  KV_ASSERT(list.count > 0);
  const Links at = entries_[index].*links;
  (at.before == kNone ? list.first : (entries_[at.before].*links).after) = at.after;
  (at.after == kNone ? list.last : (entries_[at.after].*links).before) = at.before;
  --list.count;
}

void LeaseTable::for_each(const std::function<void(BlockId)>& visit) const {
  for (std::uint32_t index = by_grant_.first; index != kNone; index = entries_[index].by_grant.after)
    visit(entries_[index].block);
}

std::size_t LeaseTable::lease_count(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? 0 : it->second.count;
}

}  // namespace kv
