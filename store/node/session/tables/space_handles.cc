#include "store/node/session/tables/space_handles.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace kv {

InstanceId draw_instance_id() {
  std::random_device device;
  InstanceId id;
  for (std::size_t i = 0; i < id.size(); i += sizeof(std::uint32_t)) {
    const std::uint32_t word = device();
    std::memcpy(id.data() + i, &word, sizeof word);
  }
  return id;
}

OpenSpace::OpenSpace(SpaceId space, const StoredSpace& stored)
    : id(space),
      name(stored.record.callers_id()),
      stored_name(stored.record.id()),
      shown_name(stored.record.unsalted().id()),
      check(namespace_check(name)),
      block_bytes(stored.record.block_bytes()),
      block_size(stored.record.block_size()),
      kind(stored.record.kind()),
      owner(stored.owner) {}

std::uint32_t SessionSpaces::open(const OpenSpace& space) {
  const auto found = std::ranges::find_if(entries_, [&](const auto& each) { return each.second.space.id == space.id; });
  if (found != entries_.end()) {
    found->second.used = ++use_last_;
    return found->first;
  }
  make_room();
  entries_.emplace(++handle_last_, Entry{space, ++use_last_});
  return handle_last_;
}

const OpenSpace* SessionSpaces::find(std::uint32_t handle) {
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return nullptr;
  found->second.used = ++use_last_;
  return &found->second.space;
}

void SessionSpaces::make_room() {
  if (entries_.size() < kCountMax) return;
  entries_.erase(std::ranges::min_element(entries_, {}, [](const auto& each) { return each.second.used; }));
}

}  // namespace kv
