#include "store/node/session/requests/lookups.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "index/name_groups.h"

namespace kv {
namespace {

constexpr std::size_t kNamesPerLock = 512;  ///< Of a set, looked up one by one: some ten microseconds, cold a hundred.

static_assert(kNamesPerLock >= kGroupNamesMax);

/// Calls body(part, its group_counts) for each part of `names` until one returns false; at least once, so that the
/// store refuses or answers an empty list like any other. Between two parts the lock is free: other lookups run, and
/// blocks found by one part may be gone by the next. So a part never cuts a group.
template <class Body>
void for_each_part(std::span<const BlockHash> names, std::span<const std::uint32_t> group_counts, Body body) {
  std::size_t at = 0;
  do {
    const GroupPart part = leading_part(group_counts, names.size() - at, kNamesPerLock);
    if (!body(names.subspan(at, part.name_count), group_counts.first(part.group_count))) return;
    at += part.name_count;
    group_counts = group_counts.subspan(part.group_count);
  } while (at < names.size());
}

/// An unreadable disk counts as empty, and a group lies nowhere if a part of it lies there.
void forget_disk(ReadDesk::SetMatch& match, std::span<const std::uint32_t> group_counts) {
  for_each_group(group_counts, match.held.size(), [&](std::size_t first, std::size_t count) {
    const auto held = std::span(match.held).subspan(first, count);
    if (std::ranges::find(held, ReadDesk::Held::kOnDisk) != held.end())
      std::ranges::fill(held, ReadDesk::Held::kNowhere);
  });
}

}  // namespace

std::optional<Lookups::Wanted> Lookups::on_match(const Frame& frame) {
  const auto* request = read_request<wire::MatchRequest>(session_, frame);
  if (request == nullptr) return std::nullopt;
  const OpenSpace* const space =
      request->why() ? door_.find(frame, request->space(), request->namespace_check())
                     : door_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kChain);
  if (space == nullptr) return std::nullopt;
  NodeContext& node = session_.node;
  const auto hashes = hashes_of(request->hashes());
  if (request->nodes() > kHotNodesMax || request->beginning() > hashes.size() ||
      request->hot_blocks() > request->beginning()) {
    session_.refuse(frame, Errc::kBadRequest,
                    "match: " + count_text("nodes", request->nodes(), kHotNodesMax) + ", " +
                        count_text("beginning", request->beginning(), hashes.size()) + ", " +
                        count_text("hot_blocks", request->hot_blocks(), request->beginning()));
    return std::nullopt;
  }
  if (request->why()) {
    misses_.answer_why(frame, *space, hashes);
    return std::nullopt;
  }
  ReadDesk::MatchOptions options;
  options.session = session_.id;
  options.lease = request->lease();
  options.token_ids = numbers_of(request->token_ids());
  options.extras = extras_of(request->extras());
  options.hint = reuse_of(request->reuse());
  options.chain = {request->chain_blocks(), request->chain_first(), request->chain_last(), {}};
  options.is_elsewhere = request->elsewhere();
  sampled_.look(hashes);  // before any wait for it
  options.sampled = &sampled_;
  auto match = node.store.with(&session_.phases, [&](Store& store) {
    sampled_.set(store.samples());  // for the next match
    return store.match(space->id, hashes, options, node.clock.now());
  });
  if (!match) {
    session_.refuse(
        frame, match.error(),
        fmt::format("match: {} (space {}, {}, extras: {}, chain_blocks: {}, chain_first: {}, chain_last: {})",
                    match.error().message(), request->space(),
                    count_text("hashes", hashes.size(), node.chain_blocks_max), options.extras.size(),
                    request->chain_blocks(), request->chain_first(), request->chain_last()));
    return std::nullopt;
  }
  // A session with an outstanding lease is not idle, and is not ended to make room for another.
  if (match->lease != LeaseId{}) lease_until_ = node.clock.now() + node.lease_duration;
  // A disk that is off may hold them but cannot supply them: promising them would make a scheduler wait in vain.
  if (node.disk_worker == nullptr || !node.disk_worker->can_read()) match->disk_block_count = 0;
  const std::size_t hit_count = match->memory_block_count + match->disk_block_count;
  node.metrics.add_tokens(hit_count * space->block_size, (hashes.size() - hit_count) * space->block_size);
  const auto disk_time = match->disk_block_count > 0
                             ? node.disk_worker->estimate_read(match->disk_block_count * space->block_bytes)
                             : std::chrono::microseconds(0);
  const std::uint64_t hot_version = count_beginning(*request, *space);
  session_.replies.reply(FrameType::kMatch, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    wire::Hash partial;
    std::memcpy(&partial, match->partial_block.bytes.data(), sizeof partial);
    const auto lease_us = std::chrono::duration_cast<std::chrono::microseconds>(node.lease_duration).count();
    return wire::CreateMatchResponse(
        builder, static_cast<std::uint32_t>(match->memory_block_count),
        static_cast<std::uint32_t>(match->disk_block_count), static_cast<std::uint64_t>(match->lease),
        match->lease == LeaseId{} ? 0 : static_cast<std::uint64_t>(lease_us),
        static_cast<std::uint16_t>(match->lease_error), static_cast<std::uint32_t>(match->partial_token_count),
        match->partial_token_count > 0 ? &partial : nullptr, static_cast<std::uint64_t>(disk_time.count()), hot_version,
        node.cluster.epoch(), static_cast<std::uint32_t>(match->known_block_count));
  });
  // After the answer, which does not wait for the disk.
  if (!request->prefetch() || match->disk_block_count == 0) return std::nullopt;
  return Wanted{space, hashes};
}

std::uint64_t Lookups::count_beginning(const wire::MatchRequest& request, const OpenSpace& space) {
  if (request.nodes() == 0) return 0;  // the client does not use hot roots
  HotRoots& roots = *session_.node.hot_roots;
  if (request.beginning() == 0) return roots.version(space.stored_name);
  const auto beginning = hashes_of(request.hashes()).first(request.beginning());
  // In a cluster the node has this number; otherwise the client supplies it.
  const std::size_t known = session_.node.cluster.view()->members.size();
  const auto nodes = known == 0 ? request.nodes() : std::min(request.nodes(), static_cast<std::uint32_t>(known));
  return roots.count(space.stored_name, beginning, request.hot_blocks(), nodes, space.owner);
}

void Lookups::on_hot_roots(const Frame& frame) {
  const auto* request = read_request<wire::HotRootsRequest>(session_, frame);
  if (request == nullptr) return;
  const OpenSpace* const space = door_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kChain);
  if (space == nullptr) return;
  const auto list = session_.node.hot_roots->list(space->stored_name);
  session_.replies.reply(FrameType::kHotRoots, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto* blocks = reinterpret_cast<const wire::Hash*>(list->blocks.data());
    return wire::CreateHotRootsResponse(builder, list->version,
                                        builder.CreateVectorOfStructs(blocks, list->blocks.size()));
  });
}

void Lookups::on_cluster_map(const Frame& frame) {
  if (read_request<wire::ClusterMapRequest>(session_, frame) == nullptr) return;
  const auto view = session_.node.cluster.view();
  session_.replies.reply(FrameType::kClusterMap, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes;
    for (const Member& member : view->members) {
      const auto endpoints = builder.CreateVectorOfStrings(member.endpoints);
      const auto id = builder.CreateString(member.id);
      const auto zone = builder.CreateString(member.zone);
      nodes.push_back(wire::CreateClusterNode(builder, id, endpoints, member.weight,
                                              static_cast<std::uint8_t>(member.state), zone,
                                              static_cast<std::uint8_t>(member.phase)));
    }
    return wire::CreateClusterMapResponse(builder, view->epoch, view->extent_blocks, builder.CreateVector(nodes));
  });
}

std::optional<Lookups::Wanted> Lookups::on_set_match(const Frame& frame) {
  const auto* request = read_request<wire::SetMatchRequest>(session_, frame);
  if (request == nullptr) return std::nullopt;
  const OpenSpace* const space = door_.find(frame, request->space(), request->namespace_check(), NamespaceKind::kSet);
  if (space == nullptr) return std::nullopt;
  NodeContext& node = session_.node;
  const auto hashes = hashes_of(request->hashes());
  const auto group_counts = numbers_of(request->group_counts());
  if (hashes.size() > node.chain_blocks_max) {  // before the groups are examined
    session_.refuse(frame, Errc::kTooLarge, "set_match." + count_text("hashes", hashes.size(), node.chain_blocks_max));
    return std::nullopt;
  }
  if (const std::string why = check_groups(hashes, group_counts); !why.empty()) {
    session_.refuse(frame, Errc::kBadRequest, "set_match." + why);
    return std::nullopt;
  }
  auto match = match_set(*space, hashes, group_counts, {.lease = request->lease(), .hint = reuse_of(request->reuse())});
  if (!match) {
    session_.refuse(frame, match.error(),
                    fmt::format("set_match: {} (space {}, {})", match.error().message(), request->space(),
                                count_text("hashes", hashes.size(), node.chain_blocks_max)));
    return std::nullopt;
  }
  if (match->lease != LeaseId{}) lease_until_ = node.clock.now() + node.lease_duration;
  if (node.disk_worker == nullptr || !node.disk_worker->can_read()) forget_disk(*match, group_counts);
  std::vector<std::uint8_t> held((hashes.size() + 7) / 8), on_disk(held.size());
  std::vector<std::uint32_t> lengths;
  std::uint64_t disk_bytes = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto bit = static_cast<std::uint8_t>(1u << i % 8);
    // Only held blocks have lengths: the client counts the bits to assign them.
    if (match->held[i] == ReadDesk::Held::kNowhere) continue;
    held[i / 8] |= bit;
    lengths.push_back(match->lengths[i]);
    if (match->held[i] != ReadDesk::Held::kOnDisk) continue;
    on_disk[i / 8] |= bit;
    disk_bytes += match->lengths[i];
  }
  const auto disk_time = disk_bytes > 0 ? node.disk_worker->estimate_read(disk_bytes) : std::chrono::microseconds(0);
  session_.replies.reply(FrameType::kSetMatch, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto lease_us = std::chrono::duration_cast<std::chrono::microseconds>(node.lease_duration).count();
    const auto of_held = builder.CreateVector(held);
    const auto of_disk = disk_bytes > 0 ? builder.CreateVector(on_disk) : 0;
    const auto of_lengths = builder.CreateVector(lengths);
    return wire::CreateSetMatchResponse(builder, of_held, of_disk, of_lengths, static_cast<std::uint64_t>(match->lease),
                                        match->lease == LeaseId{} ? 0 : static_cast<std::uint64_t>(lease_us),
                                        static_cast<std::uint16_t>(match->lease_error),
                                        static_cast<std::uint64_t>(disk_time.count()), node.cluster.epoch());
  });
  if (!request->prefetch() || disk_bytes == 0) return std::nullopt;
  return Wanted{space, hashes, group_counts};
}

Result<ReadDesk::SetMatch> Lookups::match_set(const OpenSpace& space, std::span<const BlockHash> hashes,
                                              std::span<const std::uint32_t> group_counts,
                                              ReadDesk::SetMatchOptions options) {
  NodeContext& node = session_.node;
  if (hashes.size() > node.chain_blocks_max) return error_code(Errc::kTooLarge);
  ReadDesk::SetMatch whole;
  options.session = session_.id;
  error_code error;
  for_each_part(hashes, group_counts, [&](std::span<const BlockHash> part, std::span<const std::uint32_t> counts) {
    options.group_counts = counts;
    auto found = node.store.with(
        &session_.phases, [&](Store& store) { return store.match_set(space.id, part, options, node.clock.now()); });
    if (!found) {
      error = found.error();
      return false;
    }
    // All parts under one lease: the client has one id to release.
    options.rest = found->lease;
    if (found->lease_error != Errc{}) {
      whole.lease_error = found->lease_error;
      options.lease = false;  // later parts would give half of the request
    }
    if (part.size() == hashes.size()) {
      whole = std::move(*found);
      return false;
    }
    whole.held.insert(whole.held.end(), found->held.begin(), found->held.end());
    whole.lengths.insert(whole.lengths.end(), found->lengths.begin(), found->lengths.end());
    whole.lease = found->lease;
    return true;
  });
  if (error) {
    // The client gets an error without the lease's id, so end the lease here.
    if (options.rest != LeaseId{})
      node.store.with([&](Store& store) { static_cast<void>(store.release(session_.id, options.rest)); });
    return error;
  }
  return whole;
}

void Lookups::on_release(const Frame& frame) {
  const auto* request = read_request<wire::ReleaseRequest>(session_, frame);
  if (request == nullptr) return;
  const auto lease = LeaseId(request->lease());
  const auto released = session_.node.store.with([&](Store& store) { return store.release(session_.id, lease); });
  if (!released) {
    return session_.refuse(frame, released.error(),
                           fmt::format("lease: {}, not a live lease of this session", request->lease()));
  }
  session_.replies.reply_empty(FrameType::kRelease, frame.header.request_id);
}

void Lookups::on_prefix(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes) {
  const FrameType type = frame.header.type;
  const auto count = space.kind == NamespaceKind::kSet ? count_in_set(type, space, hashes)
                                                       : this->count(type, space.id, hashes, nullptr);
  if (!count) {
    return session_.refuse(
        frame, count.error(),
        fmt::format("{}: {} (hashes: {})", frame_type_name(type), count.error().message(), hashes.size()));
  }
  session_.replies.reply_count(type, frame.header.request_id, *count);
}

Result<std::size_t> Lookups::count(FrameType type, SpaceId space, std::span<const BlockHash> hashes,
                                   std::vector<BlockHash>* fresh) {
  return session_.node.store.with(&session_.phases, [&](Store& store) {
    switch (type) {
      case FrameType::kTouch: return store.touch(space, hashes, session_.node.clock.now());
      case FrameType::kRetain: return store.retain(space, hashes, fresh);
      default: return store.unretain(space, hashes);
    }
  });
}

/// As count(), one part at a time. A retain refused midway is undone: all or nothing.
Result<std::size_t> Lookups::count_in_set(FrameType type, const OpenSpace& space, std::span<const BlockHash> hashes) {
  if (hashes.size() > session_.node.chain_blocks_max) return error_code(Errc::kTooLarge);
  std::vector<BlockHash> fresh;
  std::size_t sum = 0;
  error_code error;
  for_each_part(hashes, {}, [&](std::span<const BlockHash> part, auto) {
    const auto counted = count(type, space.id, part, &fresh);
    error = counted ? error_code() : counted.error();
    sum += counted ? *counted : 0;
    return !error;
  });
  if (!error) return sum;
  // Only those that this request retained: earlier retained blocks stay so.
  for_each_part(fresh, {}, [&](std::span<const BlockHash> part, auto) {
    return count(FrameType::kUnretain, space.id, part, nullptr).has_value();
  });
  return error;
}

}  // namespace kv
