// client/core/client_core.h: the state shared by Client's calls (client.cc, get.cc, put.cc, match.cc, memory.cc).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "client/cluster/cluster_map.h"
#include "client/cluster/cluster_map_call.h"
#include "client/cluster/map_votes.h"
#include "client/hedge/hedger.h"
#include "client/hot/hot_roots_call.h"
#include "client/hot/hot_sets.h"
#include "client/hot/known_chains.h"
#include "client/link/node_link.h"
#include "index/name_groups.h"

namespace kv {

/// Calls of past gets, with their memory, for reuse (get.cc).
struct IdleGets;
std::shared_ptr<IdleGets> make_idle_gets();

struct OwnedChain;

struct Client::Impl {
  Impl(asio::any_io_executor executor, ClientConfig config, Network& network, Clock& clock, verbs::Provider* verbs);
  ~Impl();

  struct LeasePart {
    std::size_t node;
    std::weak_ptr<CallSession> session;  ///< The lease is valid only there, and ends with it.
    std::uint64_t id;                    ///< Assigned by the node.
    std::size_t first;                   ///< OwnedChain::first of its part: a node grants one lease per extent.
  };
  struct LeaseEntry {
    TimePoint until = TimePoint::max();  ///< End of the first part to expire.
    std::vector<LeasePart> parts;
    /// Adds a node's grant; ignores id 0.
    void add(LeasePart part, std::uint64_t lease_us, TimePoint now);
  };

  const ClientShared::SpaceInfo* find_space(Space space) const;
  /// Checks before a call begins: kBadRequest, kCancelled or kBusy.
  error_code refuses(std::chrono::microseconds deadline, const CallControl& control) const;
  error_code refuses(Space space, std::chrono::microseconds deadline, const CallControl& control) const;
  TimePoint deadline_after(std::chrono::microseconds deadline) const { return shared->clock.now() + deadline; }
  Async<DropResult> count(FrameType verb, Space space, std::vector<OwnedChain> chains, TimePoint until,
                          CallControl control);
  Async<std::size_t> count_prefix(FrameType verb, Space space, Hashes hashes, std::chrono::microseconds deadline,
                                  CallControl control);
  /// Splits by kind: a chain at its place behind its hot root.
  std::vector<OwnedChain> split(Space space, Hashes hashes) const;
  /// For a chain: at the place found by a match, else at its present place.
  std::vector<OwnedChain> split_found(Space space, Hashes hashes);
  /// For a chain, or a set's blocks: every place of a copy, also those from before a change of the map. Several for
  /// one node, if a copy may lie there in different parts.
  std::vector<OwnedChain> split_copies(Space space, Hashes hashes) const;
  std::vector<OwnedChain> other_copies(FrameType verb, Space space, Hashes hashes) const;
  /// Hot blocks matter only if chains are cut into extents on several nodes.
  bool has_hot_roots() const { return map->node_count() > 1 && map->has_extents(); }
  /// The map for lookups and puts now: without the nodes that do not answer, which it probes. Others stand in for
  /// those as if they had left, so every client that sees the same nodes finds the same owners.
  std::shared_ptr<const ClusterMap> reachable_map();
  HotSets::Roots hot_roots(Space space, Hashes chain) const;
  /// Asks all nodes for their hot roots, once per space.
  void meet_hot_roots(Space space);
  void ask_hot_roots(Space space, std::size_t node, bool at_once);
  /// A node reported this version of its hot roots: fetches their blocks if it is new.
  void hear_hot_version(Space space, std::size_t node, std::uint64_t version);
  /// The node to ask for `chain` if its owner is late: the second node, which also stands in for it. Empty if there
  /// is none or it is away.
  std::optional<std::size_t> second_node(const ClusterMap& on, const OwnedChain& chain) const;
  /// Chooses among equal holders of `block`: one in this client's zone if possible, and by hash, so that each has its
  /// share; unless another one answers much sooner.
  std::size_t nearest(const ClusterMap& on, const BlockHash& block, std::size_t except);
  /// Whether the owner of the block at `position` is replaced by a stand-in.
  bool is_owner_away(Hashes chain, std::size_t position, std::size_t hot_blocks) const;
  /// `group` is notified of the end. The call may have ended on return.
  void start(Call& call, std::size_t node, Space space, CallGroup& group, TimePoint until) {
    call.space = static_cast<std::uint32_t>(space);
    call.group = &group;
    links[node]->start(call, until);
  }
  /// One call to each member, in their order.
  template <class C>
  void start_on_each(std::vector<C>& calls, CallGroup& group, TimePoint until) {
    KV_ASSERT(calls.size() == members.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i].group = &group;
      links[members[i]]->start(calls[i], until);
    }
  }
  // The cluster's map (cluster/follow.cc).
  void follow(const NodeLink& node,
              std::uint64_t epoch);  ///< The node has a later map, or a check is due: asks soon.
  std::vector<MapVotes::Voter> map_voters() const;
  void begin_round(std::size_t number, bool is_awaited);
  void ask_for_map(std::size_t number);
  void hear_map(std::size_t number);
  asio::awaitable<void> wait_for_map(TimePoint until);
  void node_failed();
  void adopt(ClusterStatus status);
  void adopt_list();
  void set_link(std::size_t node, const ClusterStatus::Node& member);
  /// Records a lease, dropping the oldest beyond the limit.
  Lease keep_lease(LeaseEntry entry);
  /// Removes a lease from the records. Empty: unknown.
  std::vector<LeasePart> take_lease(Lease lease);
  /// Ends a node's part early. Does not wait for the node.
  void release(const LeasePart& part);
  /// Ends a lease's parts that the get does not use: the whole lease ends with the get.
  void release_unasked(const std::vector<LeasePart>& lease, std::span<const OwnedChain> asked);
  /// The id of the part for `chain`; the call must then use the session that granted it. 0: no part.
  static std::uint64_t use_lease(const std::vector<LeasePart>& parts, const OwnedChain& chain, Call& call);

  std::shared_ptr<ClientShared> shared;
  /// Nodes are numbered. A number belongs to its node while that is in the cluster; later another node may get it. At
  /// worst, a waiting call then meets a node that does not know its lease, or another node than it chose.
  std::vector<std::unique_ptr<NodeLink>> links;  ///< By number. A node that left keeps its link until then.
  std::vector<std::size_t> members;              ///< The numbers of the cluster's, or the list's, nodes.
  std::shared_ptr<const ClusterMap> map;         ///< Over all numbers. Waiting calls hold the map they began with.
  /// The last result of reachable_map().
  struct {
    std::shared_ptr<const ClusterMap> whole, rest;
    std::vector<std::size_t> away;
  } reachable;
  ClusterStatus cluster;
  ClusterMapCall map_call;
  MapVotes votes;
  bool is_map_asked = false;    ///< Nodes are being asked for their maps; map_event signals the end.
  bool is_map_awaited = false;  ///< Calls that need the map wait for that end.
  TimePoint round_began{}, next_round{};
  std::size_t round_count = 0;  ///< Nodes asked in this round.
  Event map_event;
  TimePoint next_question{};  ///< Earliest time for a question caused by a failure.
  std::size_t question_count = 0;
  const std::shared_ptr<IdleGets> idle_gets;
  std::map<std::uint64_t, LeaseEntry> leases;  ///< In order of grant.
  std::uint64_t last_lease = 0;
  HotSets hot_sets;
  Hedger hedger;  ///< Nodes by number.
  KnownChains known_chains;
  std::vector<std::unique_ptr<HotRootsCall>> hot_calls;  ///< By node. They end with the links.
  /// Expires with the client, as a sign to work posted on the executor that runs later.
  std::shared_ptr<int> life = std::make_shared<int>();
};

/// Counts a call in progress. Holds the shared part, since a coroutine may be destroyed after its client.
class VerbInProgress {
 public:
  explicit VerbInProgress(const std::shared_ptr<ClientShared>& shared) : shared_(shared) { ++shared_->call_count; }
  /// For a call with metrics, recorded by done().
  VerbInProgress(const std::shared_ptr<ClientShared>& shared, ClientCall call)
      : shared_(shared), call_(call), began_(shared->clock.now()) {
    ++shared_->call_count;
  }
  ~VerbInProgress() { --shared_->call_count; }
  void done(error_code why) const { shared_->metrics.ended(call_, shared_->clock.now() - began_, why); }
  VerbInProgress(const VerbInProgress&) = delete;
  VerbInProgress& operator=(const VerbInProgress&) = delete;

 private:
  std::shared_ptr<ClientShared> shared_;
  ClientCall call_{};
  TimePoint began_{};
};

/// The part of a chain, or of a set's blocks, in one request to a node. With extents: one extent, which the node treats
/// as a chain of its own. So its blocks do not depend on the node's other extents, and a change of the map affects only
/// the extents it moves. Without extents, and for a set: all the node's blocks. Consecutive blocks are not copied.
struct OwnedChain {
  std::size_t node = 0;
  Hashes hashes;
  std::span<const std::uint32_t> positions;  ///< In the whole chain; empty: first, first + 1, ...
  std::size_t first = 0;
  std::size_t anchor = 0;  ///< With extents: index of the hash that determines the owner.
  std::size_t position(std::size_t i) const { return positions.empty() ? first + i : positions[i]; }

  std::span<const std::uint32_t> group_counts;  ///< For a set with groups: how they cut the names.

  std::vector<BlockHash> own_hashes;
  std::vector<std::uint32_t> own_positions, own_group_counts;
};
/// The requests for `chain`, a chain from its first block on. Borrows it; the elements must not be copied afterwards.
std::vector<OwnedChain> split_chain(const ClusterMap& map, Hashes chain, std::size_t hot_blocks = 0);
/// The same for some of its extents.
std::vector<OwnedChain> split_extents(const ClusterMap& map, Hashes chain, std::span<const ClusterMap::Extent> extents);
/// The same for blocks that stand alone, or groups cut by `group_counts`. A group goes whole to the owner of its first
/// name, so that one node can report whether all of it is held.
std::vector<OwnedChain> split_set(const ClusterMap& map, Hashes blocks,
                                  std::span<const std::uint32_t> group_counts = {});

/// Keeps a region from being freed while a node works on it for this call. A null region is allowed.
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

/// Offset of `block` in `region`, as requests give it.
inline std::uint64_t offset_in(const LentMemory::Region& region, std::span<const std::byte> block) {
  const std::span<const std::byte> bytes = region.bytes();
  const auto offset = static_cast<std::size_t>(block.data() - bytes.data());
  KV_ASSERT(offset <= bytes.size() && block.size() <= bytes.size() - offset);  // before a node may touch it
  return offset;
}

/// How a request names the caller's blocks in a region.
struct NamedRegion {
  std::uint32_t handle = 0, lanes = 0;
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> offsets;
};
/// For `count` blocks; block(i) is the i-th. Without a region: empty.
template <class Block>
NamedRegion name_region(const CallSession& session, flatbuffers::FlatBufferBuilder& builder,
                        const LentMemory::Region* region, std::size_t count, Block&& block) {
  NamedRegion named;
  if (region == nullptr) return named;
  named.handle = session.region_handle(*region);
  named.lanes = session.lanes_for(*region);
  std::uint64_t* list = nullptr;
  named.offsets = builder.CreateUninitializedVector(count, &list);
  for (std::size_t i = 0; i < count; ++i) list[i] = offset_in(*region, block(i));
  return named;
}

/// Adds `block` to `ranges`, extending the last range if it is adjacent, as it usually is.
inline void append_range(std::vector<std::span<const std::byte>>& ranges, std::span<const std::byte> block) {
  if (!ranges.empty() && ranges.back().data() + ranges.back().size() == block.data()) {
    ranges.back() = {ranges.back().data(), ranges.back().size() + block.size()};
  } else if (!block.empty()) {
    ranges.push_back(block);
  }
}

/// Time until a deadline, at least 1: a node treats 0 as its own limit.
inline std::uint64_t time_left_us(TimePoint until, const Clock& clock) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - clock.now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

/// False if some of `blocks` are in a device's memory, but not all in `region`: this processor would have to touch the
/// rest, and must not touch device memory.
template <class Byte>
bool may_touch(const LentMemory& memory, const std::shared_ptr<LentMemory::Region>& region,
               std::span<const std::span<Byte>> blocks) {
  return region || std::ranges::none_of(blocks, [&](std::span<Byte> block) { return memory.is_device(block); });
}

inline const wire::Hash* wire_hashes(Hashes hashes) {
  static_assert(sizeof(wire::Hash) == sizeof(BlockHash) && alignof(wire::Hash) == alignof(BlockHash));
  return reinterpret_cast<const wire::Hash*>(hashes.data());
}

inline const wire::ExtraDigest* wire_extras(std::span<const ExtraDigest> extras) {
  static_assert(sizeof(wire::ExtraDigest) == sizeof(ExtraDigest));
  return reinterpret_cast<const wire::ExtraDigest*>(extras.data());
}

asio::awaitable<void> wait_all(CallGroup& group);

inline constexpr std::chrono::microseconds kDeadlineMax = std::chrono::hours(24);
/// Size of a request's table, besides the parts that grow with the chain.
inline constexpr std::size_t kTableOverheadBytes = 512;
/// How many of `block_count` blocks fit in one request to a node, with this many table bytes per block and in addition.
inline std::size_t blocks_in_request(const LinkTerms& terms, std::size_t block_count, std::size_t bytes_per_block,
                                     std::size_t other_bytes = 0) {
  const std::size_t overhead = kTableOverheadBytes + other_bytes;
  const std::size_t room = terms.table_bytes_max - std::min<std::size_t>(terms.table_bytes_max, overhead);
  return std::min({block_count, std::size_t{terms.chain_blocks_max}, room / bytes_per_block});
}
/// The same for a set's names, in whole groups.
inline GroupPart groups_in_request(const LinkTerms& terms, const OwnedChain& part, std::size_t bytes_per_block) {
  const std::size_t per_group = part.group_counts.empty() ? 0 : sizeof(std::uint32_t);
  const std::size_t count_max = blocks_in_request(terms, part.hashes.size(), bytes_per_block + per_group);
  return leading_part(part.group_counts, part.hashes.size(), count_max);
}
/// Group counts as in requests; absent without groups.
inline flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> wire_groups(flatbuffers::FlatBufferBuilder& builder,
                                                                           const OwnedChain& part,
                                                                           std::size_t group_count) {
  if (part.group_counts.empty()) return 0;
  KV_ASSERT(group_count <= part.group_counts.size());
  return builder.CreateVector(part.group_counts.data(), group_count);
}
inline constexpr std::chrono::microseconds kLeaseMax = std::chrono::hours(1);     ///< Upper bound on a node's lease_us.
inline constexpr std::chrono::microseconds kDiskTimeMax = std::chrono::hours(1);  ///< The same for its disk_us.
/// Size limit of an answer with a few numbers, as for match and touch.
inline constexpr std::size_t kSmallAnswerBytes = 256;

}  // namespace kv
