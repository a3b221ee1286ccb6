#include "store/node/session/core/space_door.h"

#include "base/text/printable.h"

namespace kv {

void SpaceDoor::on_open(const Frame& frame) {
  const auto* request = read_table<wire::OpenRequest>(frame.table);
  if (request == nullptr || request->record() == nullptr)
    return session_.refuse(frame, Errc::kBadRequest, "open: the table fails verification or lacks `record`");
  // Parsed rather than merely hashed: two texts of one record would be two namespaces, with half of the hits each.
  const auto record = NamespaceRecord::parse(request->record()->string_view());
  if (!record) return session_.refuse(frame, record.error());
  const auto stored = session_.access.stored(*record);
  if (!stored && stored.error().code == Errc::kPermissionDenied)
    return session_.deny(frame, Right::kBlocks, "open: " + stored.error().text);
  if (!stored) return session_.refuse(frame, stored.error().code, "open: " + stored.error().text);
  NodeContext& node = session_.node;
  std::size_t count = 0;
  const auto space = node.store.with([&](Store& store) {
    // Under the same lock as the refusal, whose text includes it.
    count = store.namespace_count();
    return store.open(stored->record, session_.id);
  });
  if (!space && space.error() == Errc::kBusy) {
    return session_.refuse(
        frame, space.error(),
        fmt::format("open: all {} namespaces that this node may have hold blocks, in memory or on disk, or are being "
                    "written. Drop some (kvstorectl namespaces, kvstorectl drop --all), or raise namespace-count-max",
                    count));
  }
  if (!space && space.error() == Errc::kOverQuota) {
    return session_.refuse(
        frame, space.error(),
        fmt::format("open: the tenant '{}' has as many namespaces with blocks as its namespaces-max allows",
                    printable(stored->record.owner())));
  }
  if (!space) {
    return session_.refuse(frame, space.error(),
                           fmt::format("open: {} (block_bytes {})", space.error().message(), record->block_bytes()));
  }
  const OpenSpace opened(*space, *stored);
  const std::uint32_t handle = spaces_.open(opened);
  session_.replies.reply(FrameType::kOpen, frame.header.request_id, 0, [&](FlatBufferBuilder& builder) {
    const auto name = create_bytes(builder, opened.name.bytes);
    return wire::CreateOpenResponse(builder, handle, record->block_bytes(), name);
  });
}

/// Checked for each request, not only on open: a policy changes.
bool SpaceDoor::is_foreign(const Frame& frame, const SpaceOwner& owner) {
  const Right right = rule_for(frame.header.type).right;
  const std::string why = session_.access.space_denial(owner, right);
  if (why.empty()) return false;
  session_.deny(frame, right, std::string(frame_type_name(frame.header.type)) + ": " + why);
  return true;
}

const OpenSpace* SpaceDoor::find(const Frame& frame, std::uint32_t handle, std::uint64_t check) {
  const auto fail = [&](Errc code, const std::string& message) {
    session_.refuse(frame, code, frame_type_name(frame.header.type) + ("." + message));
    return nullptr;
  };
  const OpenSpace* space = spaces_.find(handle);
  if (space != nullptr && is_foreign(frame, space->owner)) return nullptr;
  if (space != nullptr && space->owner.is_salted && space->owner.epoch != session_.access.secret_epoch())
    return fail(Errc::kNoNamespace,
                fmt::format("space: {}, of a tenant secret that was replaced; open the namespace again", handle));
  if (space == nullptr) {
    return fail(Errc::kNoNamespace,
                fmt::format("space: {}, not a handle that this session was given; open the namespace again", handle));
  }
  // The client means another namespace than this handle: a mix-up of its own, or by a proxy between two sessions. The
  // lookup is skipped, since a hit would be wrong bytes under the right hash.
  if (check != space->check) {
    return fail(Errc::kMismatch,
                fmt::format("namespace_check: {}, space {} has {}; nothing was done", check, handle, space->check));
  }
  return space;
}

const OpenSpace* SpaceDoor::find(const Frame& frame, std::uint32_t handle, std::uint64_t check, NamespaceKind kind) {
  const OpenSpace* const space = find(frame, handle, check);
  if (space == nullptr || space->kind == kind) return space;
  const bool is_set = space->kind == NamespaceKind::kSet;
  session_.refuse(frame, Errc::kUnsupported,
                  fmt::format("{}.space: {}{}", frame_type_name(frame.header.type), handle,
                              is_set ? ", a set: ask with set_match, set_get and set_put"
                                     : ", a chain: ask with match, get and put"));
  return nullptr;
}

}  // namespace kv
