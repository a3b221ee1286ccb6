#include "store/node/session/space_handles.h"

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

std::uint32_t NodeHandles::open(const InstanceId& instance, const OpenSpace& space) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handle_of_.find(space.id); found != handle_of_.end()) return found->second;
  // The oldest goes. Its clients are refused as unknown, and open it again.
  if (entries_.size() >= kCountMax) {
    const auto oldest = entries_.find(handles_.begin()->second);
    handle_of_.erase(oldest->second.space.id);
    entries_.erase(oldest);
    handles_.erase(handles_.begin());
  }
  // From a random start: a handle of the node's last life is unknown, rather than some other namespace of this one.
  std::uint32_t base;
  std::memcpy(&base, instance.data(), sizeof base);
  const std::uint64_t number = count_++;
  const std::uint32_t handle = base + static_cast<std::uint32_t>(number);
  entries_.insert_or_assign(handle, Entry{space, number});
  handles_.emplace(number, handle);
  handle_of_.emplace(space.id, handle);
  return handle;
}

std::optional<OpenSpace> NodeHandles::find(std::uint32_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return std::nullopt;
  return found->second.space;
}

std::uint32_t SessionSpaces::open(const OpenSpace& space) {
  const auto found = std::ranges::find_if(entries_, [&](const auto& each) { return each.second.space.id == space.id; });
  if (found != entries_.end()) {
    found->second.used = ++use_last_;
    return found->first;
  }
  // A session's bound: it may open as many namespaces as it likes, and only the handles that it used last are kept.
  make_room();
  entries_.emplace(++handle_last_, Entry{space, ++use_last_});
  return handle_last_;
}

const OpenSpace& SessionSpaces::remember(std::uint32_t handle, const OpenSpace& space) {
  make_room();
  return entries_.insert_or_assign(handle, Entry{space, ++use_last_}).first->second.space;
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
