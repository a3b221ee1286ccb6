// store/node/session/space_door.h: the one way to a namespace. What a client may see is decided here.
#pragma once

#include <cstdint>
#include <string>

#include "store/node/session/session_core.h"
#include "store/node/session/space_handles.h"

namespace kv {

/// Opens namespaces, and finds the one that a request is about.
///   1. A request is carried out in the namespace that the client means: under a handle that this session opened, and
///      with the check of that namespace. A mix-up is an error, never another namespace.
///   2. A client that the policy gives a tenant meets that tenant's namespaces only, and those of shares that its
///   tenant
///      may use, by the policy as it is now.
///   3. With a secret, what a client opens is stored under a name that its tenant is a part of (PeerAccess::stored):
///      whatever it asks for, it finds nothing of another tenant's.
/// Thread safety: none; on the session's executor.
class SpaceDoor {
 public:
  using Frame = SessionCore::Frame;
  explicit SpaceDoor(SessionCore& session) : session_(session) {}

  void on_open(const Frame& frame);
  /// nullptr after refusing the request. Valid until the next call.
  const OpenSpace* find(const Frame& frame, std::uint32_t handle, std::uint64_t check);
  /// The same, but a namespace of the other kind is refused too.
  const OpenSpace* find(const Frame& frame, std::uint32_t handle, std::uint64_t check, SpaceKind kind);
  /// Of a request that was served: for the slow log, and nothing else. nullptr: it is not open here, or no longer.
  const OpenSpace* known(std::uint32_t handle) { return spaces_.find(handle); }

 private:
  bool is_foreign(const Frame& frame, const SpaceOwner& owner);  ///< True after refusing the request.

  SessionCore& session_;
  SessionSpaces spaces_;
};

}  // namespace kv
