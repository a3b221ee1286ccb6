// client/client_impl.h: what the verbs of Client share (client.cc, get.cc, put.cc, match.cc, memory.cc).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "client/cluster_map.h"
#include "client/link/node_link.h"

namespace kv {

/// The calls of past gets with their memory, for the next ones (get.cc).
struct IdleGets;
std::shared_ptr<IdleGets> make_idle_gets();

struct OwnedChain;

struct Client::Impl {
  Impl(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock, verbs::Provider* verbs);
  ~Impl();

  struct LeasePart {
    std::size_t node;
    std::weak_ptr<CallSession> session;  ///< A lease is known only there, and ends with it.
    std::uint64_t id;                    ///< The node's.
  };
  struct LeaseEntry {
    TimePoint until;  ///< Of the part that ends first.
    std::vector<LeasePart> parts;
  };

  const ClientShared::SpaceInfo* find_space(Space space) const;
  /// kBadRequest, kCancelled or kBusy, before a verb begins.
  error_code refuses(std::chrono::microseconds deadline, const CallControl& control) const;
  error_code refuses(Space space, std::chrono::microseconds deadline, const CallControl& control) const;
  TimePoint deadline_after(std::chrono::microseconds deadline) const { return shared->clock.now() + deadline; }
  Async<DropResult> count(FrameType verb, Space space, std::vector<OwnedChain> chains, TimePoint until,
                          CallControl control);
  Async<std::size_t> count_prefix(FrameType verb, Space space, std::span<const BlockHash> hashes,
                                  std::chrono::microseconds deadline, CallControl control);
  /// One call to each node, in node order.
  template <class C>
  void start_on_each(std::vector<C>& calls, CallGroup& group, TimePoint until) {
    KV_ASSERT(calls.size() == links.size());
    for (std::size_t node = 0; node < calls.size(); ++node) {
      calls[node].group = &group;
      links[node]->start(calls[node], until);
    }
  }
  /// Takes a lease into the books, from where the oldest go when there are too many.
  Lease keep_lease(LeaseEntry entry);
  /// Takes a lease out of the books. Empty: it is not there.
  std::vector<LeasePart> take_lease(Lease lease);

  std::shared_ptr<ClientShared> shared;
  ClusterMap map;
  std::vector<std::unique_ptr<NodeLink>> links;
  const std::shared_ptr<IdleGets> idle_gets;
  std::map<std::uint64_t, LeaseEntry> leases;  ///< In order of grant.
  std::uint64_t last_lease = 0;
};

/// Counts a verb in progress. Holds the shared part, since a coroutine may be destroyed after its client.
class VerbInProgress {
 public:
  explicit VerbInProgress(const std::shared_ptr<ClientShared>& shared) : shared_(shared) { ++shared_->call_count; }
  ~VerbInProgress() { --shared_->call_count; }
  VerbInProgress(const VerbInProgress&) = delete;
  VerbInProgress& operator=(const VerbInProgress&) = delete;

 private:
  std::shared_ptr<ClientShared> shared_;
};

/// The part of a chain that one node owns. With one node it is the chain itself, not copied.
struct OwnedChain {
  std::size_t node = 0;
  std::span<const BlockHash> hashes;
  std::span<const std::uint32_t> positions;  ///< In the whole chain; empty: 0, 1, 2, ...
  std::size_t position(std::size_t i) const { return positions.empty() ? i : positions[i]; }

  std::vector<BlockHash> own_hashes;
  std::vector<std::uint32_t> own_positions;
};
/// One element per node that owns a part of `chain`; elements must not move afterwards.
std::vector<OwnedChain> split_chain(const ClusterMap& map, std::span<const BlockHash> chain);

/// Keeps a region from being freed while a node works on it for this verb. A null region is none.
class RegionUse {
 public:
  explicit RegionUse(std::shared_ptr<LentMemory::Region> region) : region_(std::move(region)) {
    if (region_) ++region_->call_count;
  }
  ~RegionUse() {
    if (region_) --region_->call_count;
  }
  RegionUse(const RegionUse&) = delete;
  RegionUse& operator=(const RegionUse&) = delete;

 private:
  std::shared_ptr<LentMemory::Region> region_;
};

/// The region that holds all of `blocks`, or nullptr. Requires at least one block.
template <class Byte>
std::shared_ptr<LentMemory::Region> find_region(const LentMemory& memory, std::span<const std::span<Byte>> blocks) {
  if (memory.bytes() == 0) return nullptr;
  auto region = memory.find(blocks[0]);
  if (!region) return nullptr;
  const std::byte* const begin = region->bytes().data();
  const std::byte* const end = begin + region->bytes().size();
  for (const std::span<Byte> block : blocks) {
    if (block.data() < begin || block.data() > end || block.size() > static_cast<std::size_t>(end - block.data())) {
      return nullptr;
    }
  }
  return region;
}

/// Where `block` begins in `region`, as requests name it.
inline std::uint64_t offset_in(const LentMemory::Region& region, std::span<const std::byte> block) {
  const std::span<const std::byte> bytes = region.bytes();
  const auto offset = static_cast<std::size_t>(block.data() - bytes.data());
  KV_ASSERT(offset <= bytes.size() && block.size() <= bytes.size() - offset);  // before a node may touch it
  return offset;
}

/// What is left until a deadline, at least 1: a node takes 0 for its own limit.
inline std::uint64_t time_left_us(TimePoint until, const Clock& clock) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - clock.now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

/// False if some of `blocks` are in a device's memory, but not all in `region`: the rest would be touched by our
/// processor, which must not touch those.
template <class Byte>
bool may_touch(const LentMemory& memory, const std::shared_ptr<LentMemory::Region>& region,
               std::span<const std::span<Byte>> blocks) {
  return region || std::ranges::none_of(blocks, [&](std::span<Byte> block) { return memory.is_device(block); });
}

inline const wire::Hash* wire_hashes(std::span<const BlockHash> hashes) {
  static_assert(sizeof(wire::Hash) == sizeof(BlockHash) && alignof(wire::Hash) == alignof(BlockHash));
  return reinterpret_cast<const wire::Hash*>(hashes.data());
}

inline const wire::ExtraDigest* wire_extras(std::span<const ExtraDigest> extras) {
  static_assert(sizeof(wire::ExtraDigest) == sizeof(ExtraDigest));
  return reinterpret_cast<const wire::ExtraDigest*>(extras.data());
}

/// Until every call of the group has ended.
asio::awaitable<void> wait_all(CallGroup& group);

inline constexpr std::chrono::microseconds kDeadlineMax = std::chrono::hours(24);
/// Of a request's table, besides what grows with the chain.
inline constexpr std::size_t kTableOverheadBytes = 512;
inline constexpr std::chrono::microseconds kLeaseMax =
    std::chrono::hours(1);  ///< What we believe of a node's lease_us.
inline constexpr std::chrono::microseconds kDiskTimeMax = std::chrono::hours(1);  ///< And of its disk_us.
/// Of an answer that is a few numbers, as match and touch have it, at most.
inline constexpr std::size_t kSmallAnswerBytes = 256;

}  // namespace kv
