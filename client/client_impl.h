// client/client_impl.h: what the verbs of Client share (client.cc, get.cc, put.cc, match.cc, memory.cc).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/client.h"
#include "client/cluster/cluster_map_call.h"
#include "client/cluster/map_votes.h"
#include "client/cluster_map.h"
#include "client/hedge/hedger.h"
#include "client/hot/hot_roots_call.h"
#include "client/hot/hot_sets.h"
#include "client/hot/known_chains.h"
#include "client/link/node_link.h"
#include "index/name_groups.h"

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
    std::size_t first;                   ///< OwnedChain::first of what it is for: a node grants one for each extent.
  };
  struct LeaseEntry {
    TimePoint until = TimePoint::max();  ///< Of the part that ends first.
    std::vector<LeasePart> parts;
    /// What a node granted, for so long; 0: nothing.
    void add(LeasePart part, std::uint64_t lease_us, TimePoint now);
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
  /// As the space's kind asks: of a chain, as it lies behind its hot root.
  std::vector<OwnedChain> split(Space space, std::span<const BlockHash> hashes) const;
  /// Of a chain: where a match has found it, else where it is to be looked for now.
  std::vector<OwnedChain> split_found(Space space, std::span<const BlockHash> hashes);
  /// Of a chain, or of a set's blocks: wherever a copy may lie. Several for one node, if it may lie there differently.
  /// Copies stay where a block belonged before the map changed, too.
  std::vector<OwnedChain> split_copies(Space space, std::span<const BlockHash> hashes) const;
  std::vector<OwnedChain> other_copies(FrameType verb, Space space, std::span<const BlockHash> hashes) const;
  /// Only where a chain is cut into extents on several nodes does it matter that a block is hot.
  bool has_hot_roots() const { return map->node_count() > 1 && map->has_extents(); }
  /// Where to look for blocks, and to put them, now: the map without the nodes that do not answer. Others stand in for
  /// those as if they had left, so every client that knows the same finds the same. Probes them.
  std::shared_ptr<const ClusterMap> reachable_map();
  HotSets::Roots hot_roots(Space space, std::span<const BlockHash> chain) const;
  /// Asks all nodes, once.
  void meet_hot_roots(Space space);
  void ask_hot_roots(Space space, std::size_t node, bool at_once);
  /// A node answered that its hot root has this version: asks it for its blocks if that is news.
  void hear_hot_version(Space space, std::size_t node, std::uint64_t version);
  /// Who is asked for `chain` besides its owner, if that is late: its second node, which stands in for it as well. None
  /// where there is no such, or it is away.
  std::optional<std::size_t> second_node(const ClusterMap& on, const OwnedChain& chain) const;
  /// Of equals that have what `block` names, the one to ask: in this client's zone, if one is, and by hash among those,
  /// so that each has its share; unless another one answers far sooner.
  std::size_t nearest(const ClusterMap& on, const BlockHash& block, std::size_t except);
  /// Of the block at `position`: others stand in for its owner.
  bool is_owner_away(std::span<const BlockHash> chain, std::size_t position, std::size_t hot_blocks) const;
  /// `group` is told of the end. The call may have ended when this returns.
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
              std::uint64_t epoch);  ///< It knows a later map, or a look is due: asks, in a while.
  std::vector<MapVotes::Voter> map_voters() const;
  void begin_round(std::size_t number, bool is_awaited);
  void ask_for_map(std::size_t number);
  void hear_map(std::size_t number);
  asio::awaitable<void> wait_for_map(TimePoint until);
  void node_failed();
  void adopt(ClusterStatus status);
  void adopt_list();
  void set_link(std::size_t node, const ClusterStatus::Node& member);
  /// Takes a lease into the books, from where the oldest go when there are too many.
  Lease keep_lease(LeaseEntry entry);
  /// Takes a lease out of the books. Empty: it is not there.
  std::vector<LeasePart> take_lease(Lease lease);
  /// Ends a node's part early. Never waits for the node.
  void release(const LeasePart& part);
  /// Ends the parts of a lease that are for none of what a get asks for: with the get the whole lease is over.
  void release_unasked(const std::vector<LeasePart>& lease, std::span<const OwnedChain> asked);
  /// The id of the part for `chain`, for a call that must then go to the session which granted it. 0: there is none.
  static std::uint64_t use_lease(const std::vector<LeasePart>& parts, const OwnedChain& chain, Call& call);

  std::shared_ptr<ClientShared> shared;
  /// Nodes are numbered. A number is a node's as long as that belongs to the cluster; then another may get it. Whoever
  /// waits in between finds at worst that a node does not know a lease, or is another than was placed on.
  std::vector<std::unique_ptr<NodeLink>> links;  ///< By number. One that has left keeps its link until then.
  std::vector<std::size_t> members;              ///< The numbers of those that belong to the cluster, or list.
  std::shared_ptr<const ClusterMap> map;         ///< Over all numbers. Who waits holds the one with which it began.
  /// The last that reachable_map() made.
  struct {
    std::shared_ptr<const ClusterMap> whole, rest;
    std::vector<std::size_t> away;
  } reachable;
  ClusterStatus cluster;
  ClusterMapCall map_call;
  MapVotes votes;
  bool is_map_asked = false;    ///< Nodes, for their maps; then map_event tells of the end.
  bool is_map_awaited = false;  ///< And calls that want the map wait for that.
  TimePoint round_began{}, next_round{};
  std::size_t round_count = 0;  ///< Nodes asked in this round.
  Event map_event;
  TimePoint next_question{};  ///< Not before: of those that failures cause.
  std::size_t question_count = 0;
  const std::shared_ptr<IdleGets> idle_gets;
  std::map<std::uint64_t, LeaseEntry> leases;  ///< In order of grant.
  std::uint64_t last_lease = 0;
  HotSets hot_sets;
  Hedger hedger;  ///< Nodes by number.
  KnownChains known_chains;
  std::vector<std::unique_ptr<HotRootsCall>> hot_calls;  ///< By node. They end with the links.
  /// Gone with the client: what was posted to the executor and comes later finds that out here.
  std::shared_ptr<int> life = std::make_shared<int>();
};

/// Counts a verb in progress. Holds the shared part, since a coroutine may be destroyed after its client.
class VerbInProgress {
 public:
  explicit VerbInProgress(const std::shared_ptr<ClientShared>& shared) : shared_(shared) { ++shared_->call_count; }
  /// One that is counted, once it ends by done().
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

/// The part of a chain, or of a set's blocks, that one request asks a node for. Of a chain with extents: one extent,
/// which to the node is a chain of its own. So what a node has of a chain does not depend on which other extents it
/// owns, and a change of the map leaves alone what it does not move. Without extents, and of a set: all that the node
/// owns, together. What lies together in the caller's chain is not copied.
struct OwnedChain {
  std::size_t node = 0;
  std::span<const BlockHash> hashes;
  std::span<const std::uint32_t> positions;  ///< In the whole chain; empty: first, first + 1, ...
  std::size_t first = 0;
  std::size_t anchor = 0;  ///< With extents: which of the hashes says whose it is.
  std::size_t position(std::size_t i) const { return positions.empty() ? first + i : positions[i]; }

  std::span<const std::uint32_t> group_counts;  ///< Of a set whose names come in groups: how these are cut.

  std::vector<BlockHash> own_hashes;
  std::vector<std::uint32_t> own_positions, own_group_counts;
};
/// What to ask for `chain`, which begins with the chain's first block. Borrows it; elements must not be copied
/// afterwards.
std::vector<OwnedChain> split_chain(const ClusterMap& map, std::span<const BlockHash> chain,
                                    std::size_t hot_blocks = 0);
/// The same of some of its extents, as the map has them.
std::vector<OwnedChain> split_extents(const ClusterMap& map, std::span<const BlockHash> chain,
                                      std::span<const ClusterMap::Extent> extents);
/// The same of blocks that stand alone; of groups of them, if `group_counts` cut them into such. A group goes to the
/// owner of its first name, whole, so that one node can say whether all of it is there.
std::vector<OwnedChain> split_set(const ClusterMap& map, std::span<const BlockHash> blocks,
                                  std::span<const std::uint32_t> group_counts = {});

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

/// How a request names the caller's blocks in a region.
struct NamedRegion {
  std::uint32_t handle = 0, lanes = 0;
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> offsets;
};
/// Of `count` blocks; block(i) is the i-th. Without a region: nothing.
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

/// Adds `block` to `ranges`: to the last of them, if it follows that, as it does most often.
inline void append_range(std::vector<std::span<const std::byte>>& ranges, std::span<const std::byte> block) {
  if (!ranges.empty() && ranges.back().data() + ranges.back().size() == block.data()) {
    ranges.back() = {ranges.back().data(), ranges.back().size() + block.size()};
  } else if (!block.empty()) {
    ranges.push_back(block);
  }
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
/// How many of `block_count` blocks a node takes in one request, whose table has so many bytes for each block, and so
/// many besides.
inline std::size_t blocks_in_request(const LinkTerms& terms, std::size_t block_count, std::size_t bytes_per_block,
                                     std::size_t other_bytes = 0) {
  const std::size_t overhead = kTableOverheadBytes + other_bytes;
  const std::size_t room = terms.table_bytes_max - std::min<std::size_t>(terms.table_bytes_max, overhead);
  return std::min({block_count, std::size_t{terms.chain_blocks_max}, room / bytes_per_block});
}
/// Of a set's names, whole groups.
inline GroupPart groups_in_request(const LinkTerms& terms, const OwnedChain& part, std::size_t bytes_per_block) {
  const std::size_t per_group = part.group_counts.empty() ? 0 : sizeof(std::uint32_t);
  const std::size_t count_max = blocks_in_request(terms, part.hashes.size(), bytes_per_block + per_group);
  return leading_part(part.group_counts, part.hashes.size(), count_max);
}
/// Their counts, as requests have them; absent without groups.
inline flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> wire_groups(flatbuffers::FlatBufferBuilder& builder,
                                                                           const OwnedChain& part,
                                                                           std::size_t group_count) {
  if (part.group_counts.empty()) return 0;
  KV_ASSERT(group_count <= part.group_counts.size());
  return builder.CreateVector(part.group_counts.data(), group_count);
}
inline constexpr std::chrono::microseconds kLeaseMax =
    std::chrono::hours(1);  ///< What we believe of a node's lease_us.
inline constexpr std::chrono::microseconds kDiskTimeMax = std::chrono::hours(1);  ///< And of its disk_us.
/// Of an answer that is a few numbers, as match and touch have it, at most.
inline constexpr std::size_t kSmallAnswerBytes = 256;

}  // namespace kv
