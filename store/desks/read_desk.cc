#include "store/desks/read_desk.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kLeasesEndedMax = 128;  ///< Ended by one call because they expired.

}  // namespace

ReadDesk::ReadDesk(Shelf& shelf, SpaceDesk& spaces, LearningDesk& learning, DiskDesk& disk, ContextDesk& contexts)
    : shelf_(shelf),
      spaces_(spaces),
      learning_(learning),
      disk_(disk),
      contexts_(contexts),
      leases_({shelf.config.lease_duration, shelf.config.lease_count_max, shelf.config.lease_count_per_session_max}) {}

Result<ReadDesk::Match> ReadDesk::match(SpaceId space, std::span<const BlockHash> hashes, const MatchOptions& options,
                                        TimePoint now) {
  Shelf::Call call(shelf_);
  shelf_.policy->prefetch();
  expire_leases(now, call.steps);
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  const auto extras = options.extras;
  if (!extras.empty() && (extras.size() < hashes.size() || extras.size() > hashes.size() + 1)) return Errc::kBadRequest;
  if (!options.chain.fits(hashes.size())) return Errc::kBadRequest;
  const PrefixIndex::Prefix& prefix = found->prefix;
  // For the policy, a request for blocks that are stored on other nodes would mean that it should have kept them.
  const std::size_t found_count = found->block_count();
  std::size_t known_count = 0;
  if (options.is_elsewhere) {
    known_count = ask(*found, hashes.first(found_count), options.hint, {}, now);
  } else {
    // Lookups for the first absent block take two cache misses: both proceed meanwhile.
    const bool is_missed = found_count < hashes.size();
    if (is_missed) shelf_.policy->expect_miss(found->space->tree, hashes[found_count]);
    if (is_missed) shelf_.departed.prefetch(found->space->tree, hashes[found_count]);
    count_lookup(*found, hashes, now);
    if (is_missed) count_miss(*found->space, found_count, hashes[found_count], now);
    known_count = ask(*found, hashes, options.hint, options.chain, now, options.sampled);
  }
  Match match{.memory_block_count = prefix.block_count,
              .disk_block_count = found->disk_block_count(),
              .known_block_count = known_count};
  contexts_.use(*found, hashes, /*is_read=*/false, now);
  shelf_.counters.match_hit_blocks += match.memory_block_count;
  shelf_.counters.match_disk_blocks += match.disk_block_count;
  shelf_.counters.match_miss_blocks += hashes.size() - match.memory_block_count - match.disk_block_count;

  if (options.lease && prefix.block_count > 0) {
    const auto lease = grant(options.session, prefix.last, now);
    if (lease) {
      match.lease = *lease;
      ++shelf_.counters.leases_granted;
    } else {
      match.lease_error = static_cast<Errc>(lease.error().value());
      ++shelf_.counters.leases_refused;
    }
  }

  find_partial(*found, options, match);
  return match;
}

void ReadDesk::find_partial(const FoundChain& found, const MatchOptions& options, Match& match) const {
  const auto extras = options.extras;
  const NamespaceRecord& record = *found.space->record;
  const std::size_t block_size = record.block_size(), block_count = found.prefix.block_count;
  // Without the extra of the next block, its tokens do not determine its content.
  const bool knows_extra = extras.empty() ? record.has_own_chain() : extras.size() > block_count;
  if (!knows_extra || options.token_ids.size() / block_size < block_count) return;
  const auto rest = options.token_ids.subspan(block_count * block_size);
  if (rest.empty()) return;
  const PrefixIndex& index = shelf_.pool.index();
  const auto partial =
      index.match_partial(found.space->tree, found.prefix.last, rest.first(std::min(rest.size(), block_size)),
                          extras.empty() ? ExtraDigest{} : extras[block_count]);
  match.partial_token_count = partial.token_count;
  if (partial.token_count > 0) match.partial_block = index.hash(partial.block);
}

std::size_t ReadDesk::ask(const FoundChain& found, std::span<const BlockHash> hashes, ReuseHint hint,
                          const ChainPart& chain, TimePoint now, const SampledNames* sampled) {
  EvictionPolicy::Request request{.tree = found.space->tree,
                                  .hashes = hashes,
                                  .found_count = found.block_count(),
                                  .block_size = found.space->record->block_size(),
                                  .hint = hint,
                                  .tenant = found.space->tenant,
                                  .chain = chain,
                                  .sampled = sampled};
  std::size_t known = request.found_count;
  const std::uint16_t trait = learning_.asked(request, found.prefix.block_count, now, &known);
  const Tick tick = shelf_.pool.tick(now);
  shelf_.pool.use(found.prefix, tick,
                  Usage{1, Shelf::passed_count(request.passed(0) + 1 - found.prefix.block_count), trait});
  if (found.disk.block_count > 0) shelf_.tier->touch(found.disk.last, tick);
  return known;
}

Result<LeaseId> ReadDesk::grant(SessionId session, BlockId block, TimePoint now) {
  // A lease on already leased blocks is granted even at the bound.
  if (shelf_.tenants && !shelf_.tenants->may_lease(shelf_.tenants->of(shelf_.pool.index().tree(block)), 1))
    return Errc::kOverQuota;
  const std::size_t added = shelf_.pool.unleased_bytes(block);
  if (added > 0 && shelf_.is_over_leased(added)) return Errc::kBusy;
  const auto lease = leases_.grant(session, block, now);
  if (lease) shelf_.pool.lease(block);
  return lease;
}

Result<void> ReadDesk::release(SessionId session, LeaseId lease) {
  LeaseId next{};
  const auto block = leases_.release(session, lease, &next);
  if (!block) return block.error();
  shelf_.pool.end_lease(*block);
  while (next != LeaseId{}) {  // the rest of a promise for several blocks; parts may have expired
    const auto more = leases_.release(session, std::exchange(next, LeaseId{}), &next);
    if (more) shelf_.pool.end_lease(*more);
  }
  return {};
}

Result<PinnedPrefix> ReadDesk::pin_prefix(SpaceId space, std::span<const BlockHash> hashes, const GetOptions& options,
                                          TimePoint now) {
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = shelf_.pool;
  // A lease comes from a match, which has counted.
  if (options.lease == LeaseId{} && !options.is_part) {
    ask(*found, hashes, ReuseHint::kNone, {}, now);
    count_lookup(*found, hashes, now);
  } else {
    use(*found, now);
  }
  const std::size_t disk_count = options.disk ? found->disk_block_count() : 0;
  if (!options.is_part) {
    contexts_.use(*found, hashes, /*is_read=*/true, now);
    shelf_.counters.get_hit_blocks += found->prefix.block_count;
    shelf_.counters.get_disk_blocks += disk_count;
    shelf_.counters.get_miss_blocks += hashes.size() - found->prefix.block_count - disk_count;
  }

  PinnedPrefix pinned = pin_blocks(pool.blocks_of(found->prefix));
  if (disk_count > 0) disk_.pin_rest(*found, hashes, pinned);
  if (options.lease != LeaseId{})
    // After pinning, so that the blocks stay protected. An ended lease is not an error: the pins count now.
    static_cast<void>(release(options.session, options.lease));
  return pinned;
}

PinnedPrefix ReadDesk::pin_blocks(std::span<const BlockId> blocks) {
  BlockPool& pool = shelf_.pool;
  PinnedPrefix pinned;
  pinned.blocks.reserve(blocks.size());
  // Until unpin(), these slots are not reused; the spans below stay valid without the lock.
  pool.pin(blocks);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const SlotId slot = pool.index().slot(blocks[i]);
    pinned.blocks.push_back({blocks[i], i, pool.arena().bytes(slot), pool.arena().checksums(slot)});
  }
  move_pin_count_ += pinned.blocks.size();
  return pinned;
}

void ReadDesk::unpin(const PinnedPrefix& prefix) {
  KV_ASSERT(move_pin_count_ >= prefix.blocks.size());
  KV_ASSERT(prefix.on_disk.empty() || shelf_.tier != nullptr);
  if (prefix.kind == NamespaceKind::kSet) {
    for (const PinnedBlock& block : prefix.blocks) shelf_.pool.unpin(block.id);
  } else {
    std::vector<BlockId> blocks;
    blocks.reserve(prefix.blocks.size());
    for (const PinnedBlock& block : prefix.blocks) blocks.push_back(block.id);
    shelf_.pool.unpin(blocks);
  }
  move_pin_count_ -= prefix.blocks.size();
  for (const PinnedDiskBlock& block : prefix.on_disk) shelf_.tier->unpin(block.id);
}

Result<std::size_t> ReadDesk::touch(SpaceId space, std::span<const BlockHash> hashes, TimePoint now) {
  if (spaces_.is_set(space)) return touch_set(space, hashes, now);
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  use(*found, now);
  contexts_.use(*found, hashes, /*is_read=*/false, now);
  return found->prefix.block_count;
}

Result<std::size_t> ReadDesk::retain(SpaceId space, std::span<const BlockHash> hashes,
                                     std::vector<BlockHash>* fresh_names) {
  if (spaces_.is_set(space)) return retain_set(space, hashes, fresh_names);
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  BlockPool& pool = shelf_.pool;
  // All or nothing: the bound is checked for the whole prefix before the first block is retained.
  std::vector<BlockId> fresh = pool.blocks_of(found->prefix);
  std::erase_if(fresh, [&](BlockId block) { return pool.is_retained_on_request(block); });
  // A block that a context keeps is already counted.
  const auto is_new = [&](BlockId block) { return !pool.is_retained(block); };
  const std::size_t fresh_bytes =
      static_cast<std::size_t>(std::ranges::count_if(fresh, is_new)) * found->space->record->block_bytes();
  if (fresh_bytes > 0 && shelf_.is_over_retained(fresh_bytes)) return Errc::kBusy;
  if (shelf_.tenants && !shelf_.tenants->may_retain(found->space->owner, fresh_bytes)) return Errc::kOverQuota;
  for (const BlockId block : fresh) pool.retain(block);
  return found->prefix.block_count;
}

Result<std::size_t> ReadDesk::unretain(SpaceId space, std::span<const BlockHash> hashes) {
  if (spaces_.is_set(space)) return unretain_set(space, hashes);
  const auto found = spaces_.find_chain(space, hashes);
  if (!found) return found.error();
  std::size_t count = 0;
  for (const BlockId block : shelf_.pool.blocks_of(found->prefix)) count += shelf_.pool.unretain(block);
  return count;
}

void ReadDesk::unretain_all() {
  std::vector<BlockId> retained;
  for (const auto& [block, retention] : shelf_.pool.retained()) retained.push_back(block);
  for (const BlockId block : retained) shelf_.pool.unretain(block);
  contexts_.close();
}

Result<ReadDesk::SetMatch> ReadDesk::match_set(SpaceId set, std::span<const BlockHash> hashes,
                                               const SetMatchOptions& options, TimePoint now) {
  Shelf::Call call(shelf_);
  expire_leases(now, call.steps);
  auto found = spaces_.find_in_set(set, hashes);
  if (!found) return found.error();
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  keep_whole_groups(*found, options.group_counts);
  BlockPool& pool = shelf_.pool;
  const auto is_here = [](BlockId block) { return block != kNoBlock; };
  const auto found_count = static_cast<std::size_t>(std::ranges::count_if(found->memory, is_here) +
                                                    std::ranges::count_if(found->disk, is_here));
  const std::uint16_t trait =
      learning_.asked({.tree = found->space->tree,
                       .hashes = hashes,
                       .found_count = found_count,
                       .block_size = found->space->record->block_size(),
                       .is_set = true,
                       .hint = options.hint,
                       .tenant = found->space->tenant},
                      static_cast<std::size_t>(std::ranges::count_if(found->memory, is_here)), now);
  ++found->space->traffic.lookups;
  found->space->traffic.empty_lookups += found_count == 0;
  const Tick tick = pool.tick(now);
  SetMatch match{.held = std::vector<Held>(hashes.size(), Held::kNowhere),
                 .lengths = std::vector<std::uint32_t>(hashes.size(), 0)};
  std::size_t memory_count = 0, disk_count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (const BlockId block = found->memory[i]; block != kNoBlock) {
      match.held[i] = Held::kInMemory;
      match.lengths[i] = pool.index().position(block);
      pool.use(block, tick, Usage{.use_count = 1, .trait = trait});
      ++memory_count;
    } else if (const BlockId disk = found->disk[i]; disk != kNoBlock) {
      match.held[i] = Held::kOnDisk;
      match.lengths[i] = static_cast<std::uint32_t>(shelf_.tier->block_bytes(disk));
      shelf_.tier->touch(disk, tick);
      ++disk_count;
    }
  }
  const auto missed = std::ranges::find(match.held, Held::kNowhere) - match.held.begin();
  if (memory_count + disk_count < hashes.size())
    count_miss(*found->space, found_count, hashes[static_cast<std::size_t>(missed)], now);
  shelf_.counters.match_hit_blocks += memory_count;
  shelf_.counters.match_disk_blocks += disk_count;
  shelf_.counters.match_miss_blocks += hashes.size() - memory_count - disk_count;
  match.lease = options.rest;
  const auto promised = options.lease ? leasable(*found, options.group_counts) : std::vector<BlockId>();
  if (!promised.empty()) {
    const auto lease = grant_set(options, promised, now);
    // All or none.
    if (!lease && options.rest != LeaseId{}) static_cast<void>(release(options.session, options.rest));
    match.lease = lease ? *lease : LeaseId{};
    match.lease_error = lease ? Errc{} : static_cast<Errc>(lease.error().value());
    if (!lease) {
      ++shelf_.counters.leases_refused;
    } else if (options.rest == LeaseId{}) {
      ++shelf_.counters.leases_granted;
    }
  }
  return match;
}

/// Each block once, without groups that lie partly on disk: leases do not cover the disk, and half a group is useless.
std::vector<BlockId> ReadDesk::leasable(const FoundSet& found, GroupCounts group_counts) {
  std::vector<BlockId> blocks;
  for_each_group(group_counts, found.memory.size(), [&](std::size_t first, std::size_t count) {
    const auto group = std::span(found.memory).subspan(first, count);
    if (std::ranges::find(group, kNoBlock) == group.end()) blocks.insert(blocks.end(), group.begin(), group.end());
  });
  std::ranges::sort(blocks);  // a name may come twice, and one lease on it is enough
  blocks.erase(std::ranges::unique(blocks).begin(), blocks.end());
  return blocks;
}

Result<LeaseId> ReadDesk::grant_set(const SetMatchOptions& options, std::span<const BlockId> blocks, TimePoint now) {
  std::size_t added = 0;
  for (const BlockId block : blocks) added += shelf_.pool.unleased_bytes(block);
  if (added > 0 && shelf_.is_over_leased(added)) return Errc::kBusy;
  if (shelf_.tenants && !blocks.empty() &&
      !shelf_.tenants->may_lease(shelf_.tenants->of(shelf_.pool.index().tree(blocks[0])), blocks.size()))
    return Errc::kOverQuota;
  const auto lease = leases_.grant(options.session, blocks, now, options.rest);
  if (!lease) return lease.error();
  for (const BlockId block : blocks) shelf_.pool.lease(block);
  return lease;
}

/// Removes incomplete groups from `found`: requests do not see parts (Store, invariant 6), and do not count as uses of
/// them.
void ReadDesk::keep_whole_groups(FoundSet& found, GroupCounts group_counts) {
  for_each_group(group_counts, found.memory.size(), [&](std::size_t first, std::size_t count) {
    const auto memory = std::span(found.memory).subspan(first, count),
               disk = std::span(found.disk).subspan(first, count);
    bool is_whole = true;
    for (std::size_t i = 0; i < count; ++i) is_whole = is_whole && (memory[i] != kNoBlock || disk[i] != kNoBlock);
    if (is_whole) return;
    std::ranges::fill(memory, kNoBlock);
    std::ranges::fill(disk, kNoBlock);
  });
}

Result<SetPinning::Pinned> ReadDesk::pin_set(SpaceId set, std::span<const BlockHash> hashes,
                                             const SetPinning::Options& options, TimePoint now) {
  Shelf::Call call(shelf_);
  const auto found = spaces_.set_for(set, hashes.size());
  if (!found) return found.error();
  if (!are_groups_of(options.group_counts, hashes.size())) return Errc::kBadRequest;
  KV_ASSERT(options.rooms.empty() || options.rooms.size() == hashes.size());
  SetPinning pinning(shelf_, disk_, **found, hashes, options, shelf_.pool.tick(now));
  SetPinning::Pinned result = pinning.pin();
  const std::size_t memory_count = result.pinned.blocks.size();
  move_pin_count_ += memory_count;
  shelf_.counters.get_hit_blocks += memory_count;
  shelf_.counters.get_disk_blocks += result.pinned.on_disk.size();
  shelf_.counters.get_miss_blocks += pinning.miss_count();
  if (options.lease != LeaseId{} && result.looked_count == hashes.size())
    // After pinning, so that the blocks stay protected. An ended lease is not an error: the pins count now.
    static_cast<void>(release(options.session, options.lease));
  return result;
}

Result<std::size_t> ReadDesk::touch_set(SpaceId id, std::span<const BlockHash> hashes, TimePoint now) {
  const auto found = spaces_.find_in_set(id, hashes);
  if (!found) return found.error();
  const Tick tick = shelf_.pool.tick(now);
  std::size_t count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (found->disk[i] != kNoBlock) shelf_.tier->touch(found->disk[i], tick);
    if (found->memory[i] == kNoBlock) continue;
    shelf_.pool.use(found->memory[i], tick);
    ++count;
  }
  return count;
}

Result<std::size_t> ReadDesk::retain_set(SpaceId id, std::span<const BlockHash> hashes, std::vector<BlockHash>* fresh) {
  const auto found = spaces_.find_in_set(id, hashes);
  if (!found) return found.error();
  // All or nothing: the bound is checked for all blocks before the first is retained.
  std::vector<BlockId> here;
  std::ranges::copy_if(found->memory, std::back_inserter(here), [](BlockId block) { return block != kNoBlock; });
  const std::size_t count = here.size();
  std::ranges::sort(here);
  here.erase(std::ranges::unique(here).begin(), here.end());
  std::erase_if(here,
                [&](BlockId block) { return shelf_.pool.is_retained(block); });  // contexts do not keep a set's blocks
  std::size_t bytes = 0;
  for (const BlockId block : here) bytes += shelf_.pool.block_bytes(block);
  if (bytes > 0 && shelf_.is_over_retained(bytes)) return Errc::kBusy;
  if (shelf_.tenants && !shelf_.tenants->may_retain(found->space->owner, bytes)) return Errc::kOverQuota;
  for (const BlockId block : here) {
    shelf_.pool.retain(block);
    if (fresh != nullptr) fresh->push_back(shelf_.pool.index().hash(block));
  }
  return count;
}

Result<std::size_t> ReadDesk::unretain_set(SpaceId id, std::span<const BlockHash> hashes) {
  const auto found = spaces_.find_in_set(id, hashes);
  if (!found) return found.error();
  std::size_t count = 0;
  for (const BlockId block : found->memory) count += block != kNoBlock && shelf_.pool.unretain(block);
  return count;
}

void ReadDesk::expire_leases(TimePoint now, Steps& steps) {
  shelf_.departed.tell_time(now);
  const auto ended = [&](BlockId block) { end_lease(block, steps); };
  for (std::size_t i = 0; i < kLeasesEndedMax && steps.are_left() && leases_.expire(now, 1, ended) > 0; ++i)
    ++shelf_.counters.leases_expired;
}

void ReadDesk::end_lease(BlockId block, Steps& steps) {
  steps.take(Steps::kRemoval);
  shelf_.pool.end_lease(block, &steps);
}

void ReadDesk::end_session(SessionId session) {
  if (leases_.lease_count(session) > 0) ending_sessions_.push_back(session);
}

void ReadDesk::end_more(Steps& steps) {
  while (!ending_sessions_.empty() && steps.are_left()) {
    leases_.end_session(ending_sessions_.front(), 1, [&](BlockId block) { end_lease(block, steps); });
    if (leases_.lease_count(ending_sessions_.front()) == 0) ending_sessions_.pop_front();
  }
}

void ReadDesk::set_limits(const StoreConfig& config) {
  shelf_.config.retained_fraction_max = config.retained_fraction_max;
  shelf_.config.leased_fraction_max = config.leased_fraction_max;
  leases_.set_limits(config.lease_count_max, config.lease_count_per_session_max);
}

void ReadDesk::use(const FoundChain& found, TimePoint now, Duration idle) {
  const Tick tick = shelf_.pool.tick(now, idle);
  shelf_.pool.use(found.prefix, tick);
  if (found.disk.block_count > 0) shelf_.tier->touch(found.disk.last, tick);
}

void ReadDesk::count_lookup(const FoundChain& found, std::span<const BlockHash> hashes, TimePoint now) const {
  if (hashes.empty()) return;
  Space& space = *found.space;
  ++space.traffic.lookups;
  space.traffic.empty_lookups += found.block_count() == 0;
  spaces_.note_root(space, hashes.front(), RootSample::Act::kAsked, now);
}

void ReadDesk::count_miss(const Space& space, std::size_t found_count, const BlockHash& missed, TimePoint now) {
  const auto known = shelf_.departed.find(space.tree, missed, now);
  const MissKind why = known.departed ? known.departed->why : MissKind::kNotRemembered;
  ++shelf_.counters.match_misses[found_count == 0 ? 0 : 1][static_cast<std::size_t>(why)];
}

}  // namespace kv
