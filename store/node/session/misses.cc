#include "store/node/session/misses.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "index/record_differences.h"
#include "store/node/session/session_wire.h"

namespace kv {
namespace {

constexpr std::size_t kSpacesLookedAt = 16384;
constexpr std::size_t kOthersTold = 4, kDifferencesTold = 16, kValueBytesTold = 128;
/// A namespace that differs in more was not meant to be the same one.
constexpr std::size_t kTwinDifferencesMax = 3;

struct Twin {
  Store::SpaceLook look;
  std::vector<FieldDifference> differences;
};

/// Namespaces that the writer, or the reader, may have meant to be this one: those that have the block; and, if nothing
/// was ever stored here, those where something was, and that differ in little. The likeliest first.
/// `sees_all`: whosever they are; else of this one's owner alone.
std::vector<Twin> find_twins(NodeContext& node, const OpenSpace& space, std::span<const BlockHash> chain, bool sees_all,
                             const SpaceTraffic& own) {
  const auto record = node.store.with([&](Store& store) { return store.find_namespace(space.id); });
  std::vector<Twin> twins;
  if (record == nullptr) return twins;
  const NamespaceRecord shown = record->unsalted();
  const std::string owner = record->owner();
  std::optional<NamespaceId> after;
  bool has_more = true;
  for (std::size_t looked = 0; has_more && looked < kSpacesLookedAt; looked += Store::kSpacesPerCall) {
    std::vector<Store::SpaceLook> looks;
    has_more = node.store.with([&](Store& store) {
      return store.look_in_spaces(record->is_set(), chain, sees_all ? nullptr : &owner, after, looks);
    });
    for (Store::SpaceLook& look : looks) {
      const bool is_used = look.traffic.stored_blocks > 0 || look.block_count > 0;
      if (look.name == space.stored_name || !(look.has_chain || (own.stored_blocks == 0 && is_used))) continue;
      Twin twin{std::move(look), {}};
      const NamespaceRecord other = twin.look.record->unsalted();
      twin.look.name = other.id();
      twin.differences = record_differences(shown, other);
      if (twin.differences.empty()) continue;  // of an earlier secret
      if (twin.look.has_chain || twin.differences.size() <= kTwinDifferencesMax) twins.push_back(std::move(twin));
    }
  }
  // Where nobody looks, somebody stores in vain.
  std::ranges::sort(twins, {}, [](const Twin& twin) {
    return std::tuple(!twin.look.has_chain, twin.look.traffic.lookups > 0, twin.differences.size(),
                      ~twin.look.block_count, twin.look.name);
  });
  if (twins.size() > kOthersTold) twins.resize(kOthersTold);
  return twins;
}

flatbuffers::Offset<flatbuffers::String> told(FlatBufferBuilder& builder, const FieldDifference& of,
                                              const std::string& value) {
  if (value.empty() || of.is_secret()) return 0;
  return builder.CreateString(value.data(), std::min(value.size(), kValueBytesTold));
}

flatbuffers::Offset<wire::OtherSpace> build(FlatBufferBuilder& builder, const Twin& twin) {
  std::vector<flatbuffers::Offset<wire::FieldDifference>> differs;
  for (const FieldDifference& each : twin.differences) {
    if (differs.size() == kDifferencesTold) break;
    const auto field = builder.CreateString(each.field);
    const auto here = told(builder, each, each.here), there = told(builder, each, each.there);
    differs.push_back(wire::CreateFieldDifference(builder, field, here, there));
  }
  const auto name = create_bytes(builder, twin.look.name.bytes);
  const auto list = builder.CreateVector(differs);
  const SpaceTraffic& traffic = twin.look.traffic;
  return wire::CreateOtherSpace(builder, name, twin.look.has_chain, twin.look.block_count, traffic.stored_blocks,
                                traffic.lookups, traffic.empty_lookups, list);
}

std::uint64_t microseconds_of(Duration time) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
}

}  // namespace

void answer_why(SessionCore& session, const SessionCore::Frame& frame, const OpenSpace& space,
                std::span<const BlockHash> hashes) {
  NodeContext& node = session.node;
  auto miss =
      node.store.with(&session.phases, [&](Store& store) { return store.explain(space.id, hashes, node.clock.now()); });
  if (!miss) {
    return session.refuse(
        frame, miss.error(),
        "match: " + miss.error().message() + " (" + count_text("hashes", hashes.size(), node.chain_blocks_max) + ")");
  }
  if (miss->disk_block_count > 0 && (node.spill == nullptr || !node.spill->can_read())) {
    miss->disk_block_count = 0;
    miss->why = MissKind::kDiskOff;
  }
  const std::size_t found_count = miss->memory_block_count + miss->disk_block_count;
  std::vector<Twin> twins;
  const bool says_why = miss->why != MissKind::kUnknown;
  // A namespace in which longer chains are found is not mistaken for another.
  if (says_why && miss->why != MissKind::kBeingStored && found_count < Store::kLookedForMax) {
    const AccessGrant& grant = session.access.grant();
    const bool sees_all = grant.tenant.empty() && has_right(grant.roles, Right::kObserve);
    const auto missed = space.kind == SpaceKind::kSet ? hashes.subspan(found_count, 1) : hashes.first(found_count + 1);
    twins = find_twins(node, space, missed, sees_all, miss->traffic);
  }
  session.replies.reply(FrameType::kMatch, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    flatbuffers::Offset<wire::MissReason> reason;
    if (says_why) {
      std::vector<flatbuffers::Offset<wire::OtherSpace>> others;
      others.reserve(twins.size());
      for (const Twin& twin : twins) others.push_back(build(builder, twin));
      const auto list = builder.CreateVector(others);
      const SpaceTraffic& own = miss->traffic;
      reason = wire::CreateMissReason(builder, static_cast<std::uint8_t>(miss->why), microseconds_of(miss->left),
                                      microseconds_of(miss->idle), microseconds_of(miss->remembers), own.stored_blocks,
                                      own.lookups, own.empty_lookups, list);
    }
    wire::MatchResponseBuilder response(builder);
    response.add_host_blocks(static_cast<std::uint32_t>(miss->memory_block_count));
    response.add_disk_blocks(static_cast<std::uint32_t>(miss->disk_block_count));
    response.add_epoch(node.cluster.epoch());
    if (says_why) response.add_reason(reason);
    return response.Finish();
  });
}

}  // namespace kv
