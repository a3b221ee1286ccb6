// store/node/session/tables/space_handles.h: a client's numbers for namespaces, valid only in the session that received
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "index/namespace_record.h"
#include "store/node/access/access.h"
#include "store/store.h"
#include "transport/frames/frame.h"

namespace kv {

/// Drawn anew each time a node starts, and sent at hello. (The node's id, in contrast, is the same in every life.)
using InstanceId = std::array<std::byte, kInstanceBytes>;
InstanceId draw_instance_id();

/// An opened namespace, with the fields that requests need. Copied from the record: a namespace may go away.
struct OpenSpace {
  OpenSpace(SpaceId space, const StoredSpace& stored);
  SpaceId id;
  NamespaceId name;           ///< As callers name it: used only for checks and seeds.
  NamespaceId stored_name;    ///< Its name in the store and in the rest of the node.
  NamespaceId shown_name;     ///< As people see it (kvstorectl namespaces).
  std::uint64_t check;        ///< namespace_check() of `name`.
  std::uint64_t block_bytes;  ///< Of every block of a chain; in a set, the maximum.
  std::size_t block_size;     ///< 0 in a set.
  NamespaceKind kind;
  SpaceOwner owner;
};

/// The namespaces that one session has open. Other numbers are unknown here.
class SessionSpaces {
 public:
  /// Beyond this the least recently used one is forgotten; the client opens it again after the error.
  static constexpr std::size_t kCountMax = 256;

  /// The handle; the same as before if the namespace is open.
  std::uint32_t open(const OpenSpace& space);
  /// nullptr if it is not open here. Valid until the next open().
  const OpenSpace* find(std::uint32_t handle);

 private:
  struct Entry {
    OpenSpace space;
    std::uint64_t used;  ///< In order of use.
  };
  void make_room();

  std::unordered_map<std::uint32_t, Entry> entries_;  ///< By handle.
  std::uint32_t handle_last_ = 0;                     ///< Never used again within the session.
  std::uint64_t use_last_ = 0;
};

}  // namespace kv
