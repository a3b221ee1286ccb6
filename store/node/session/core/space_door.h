// store/node/session/core/space_door.h: the only access to namespaces. It decides which a client may see.
#pragma once

#include <cstdint>

#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"

namespace kv {

/// Opens namespaces, and finds the one that a request refers to.
///   1. A request is carried out in the namespace that the client means: under a handle that this session opened, and
///      with the check of that namespace. A mix-up is an error, never another namespace.
///   2. A client to which the policy assigns a tenant sees only that tenant's namespaces and the shares that it may
///      use, by the policy as it is now.
///   3. With a secret, names in the store derive from the tenant (PeerAccess::stored): requests find only its own.
/// Thread safety: none; on the session's executor.
class SpaceDoor {
 public:
  using Frame = SessionCore::Frame;
  explicit SpaceDoor(SessionCore& session) : session_(session) {}

  void on_open(const Frame& frame);
  /// nullptr after refusing the request. Valid until the next call.
  const OpenSpace* find(const Frame& frame, std::uint32_t handle, std::uint64_t check);
  /// The same, but also refuses a namespace of the other kind.
  const OpenSpace* find(const Frame& frame, std::uint32_t handle, std::uint64_t check, NamespaceKind kind);
  /// For the slow log only, after a request was served. nullptr: not open here, or no longer.
  const OpenSpace* known(std::uint32_t handle) { return spaces_.find(handle); }

 private:
  bool is_foreign(const Frame& frame, const SpaceOwner& owner);  ///< True after refusing the request.

  SessionCore& session_;
  SessionSpaces spaces_;
};

}  // namespace kv
