// store/node/session/space_handles.h: the numbers by which clients speak of namespaces.
//
// A number means something only to the session that was given it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "index/namespace_record.h"
#include "store/node/access/access.h"
#include "store/store.h"
#include "transport/frame.h"

namespace kv {

/// Drawn anew each time a node starts, and told at hello: its id is the same in every life.
using InstanceId = std::array<std::byte, kInstanceBytes>;
InstanceId draw_instance_id();

/// An opened namespace, as far as requests need it. Copied out of the record: a namespace may go away.
struct OpenSpace {
  OpenSpace(SpaceId space, const StoredSpace& stored);
  SpaceId id;
  NamespaceId name;           ///< As its callers know it: of checks and seeds, and of nothing in here.
  NamespaceId stored_name;    ///< Under which others in the node know it.
  NamespaceId shown_name;     ///< As people know it (kvstorectl namespaces).
  std::uint64_t check;        ///< namespace_check() of `name`.
  std::uint64_t block_bytes;  ///< Of every block of a chain; of a set's largest.
  std::size_t block_size;     ///< 0 in a set.
  SpaceKind kind;
  SpaceOwner owner;
};

/// What one session has open. A number that it did not open is unknown here.
class SessionSpaces {
 public:
  /// Then the one used longest ago is forgotten; the client opens it again when it is told so.
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
