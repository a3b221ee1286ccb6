#include "client/link/lent_memory.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  // std::less, since < has no meaning for pointers into different objects.
  const std::less<const std::byte*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

}  // namespace

Result<std::span<std::byte>> LentMemory::allocate(std::size_t bytes) {
  const auto reserved = reserve(bytes);
  if (!reserved) return reserved.error();
  return adopt(bytes, make_memory(place_, bytes));
}

Result<void> LentMemory::reserve(std::size_t bytes) {
  if (bytes == 0) return Errc::kBadRequest;
  // Reserved before allocation, which runs on another thread: two at once must not both fit.
  if (bytes > bytes_max_ - bytes_) return Errc::kBusy;
  bytes_ += bytes;
  return {};
}

Result<std::span<std::byte>> LentMemory::adopt(std::size_t bytes, Result<std::unique_ptr<SharedMemory>> memory) {
  KV_ASSERT(bytes <= bytes_);
  if (!memory) {
    bytes_ -= bytes;
    return memory.error();
  }
  auto region = std::make_shared<Region>();
  region->memory = std::move(*memory);
  const std::span<std::byte> span = region->bytes();
  KV_ASSERT(span.size() == bytes);
  // A device's memory was unmapped before its removal here, and the kernel reused its addresses.
  if (any_of(span, [](const Region&) { return true; })) {
    bytes_ -= bytes;
    return error_code(Errc::kBadRequest);
  }
  regions_.emplace(span.data(), std::move(region));
  KV_ASSERT(bytes_ <= bytes_max_);  // 1
  return span;
}

/// The region leaves the table now; its memory goes with the last holder, such as a device that has registered it.
Result<std::shared_ptr<LentMemory::Region>> LentMemory::free(std::span<std::byte> memory) {
  const auto found = regions_.find(memory.data());
  if (found == regions_.end()) return error_code(Errc::kBadRequest);
  const std::shared_ptr<Region> region = found->second;
  if (region->is_device()) return error_code(Errc::kBadRequest);
  if (region->call_count > 0) return error_code(Errc::kBusy);  // 5
  forget(*region);
  return region;
}

Result<void> LentMemory::add_device(std::span<std::byte> addresses, Descriptor dmabuf, std::uint64_t dmabuf_offset) {
  const auto first = reinterpret_cast<std::uintptr_t>(addresses.data());
  if (first == 0 || addresses.empty() || addresses.size() > UINTPTR_MAX - first) return Errc::kBadRequest;
  if (dmabuf_offset > UINT64_MAX - addresses.size()) return Errc::kBadRequest;
  if (any_of(addresses, [](const Region&) { return true; })) return Errc::kBadRequest;
  if (addresses.size() > bytes_max_ - bytes_) return Errc::kBusy;
  auto region = std::make_shared<Region>();
  region->addresses = addresses;
  region->dmabuf = std::move(dmabuf);
  region->dmabuf_offset = dmabuf_offset;
  bytes_ += addresses.size();
  ++device_count_;
  const bool is_new = regions_.emplace(addresses.data(), std::move(region)).second;
  KV_ASSERT(is_new && bytes_ <= bytes_max_);  // 1, 3
  return {};
}

Result<std::shared_ptr<LentMemory::Region>> LentMemory::begin_removal(std::span<std::byte> memory) {
  const auto found = regions_.find(memory.data());
  if (found == regions_.end()) return error_code(Errc::kBadRequest);
  const std::shared_ptr<Region> region = found->second;
  if (!region->is_device() || region->bytes().size() != memory.size()) return error_code(Errc::kBadRequest);
  if (region->call_count > 0) return error_code(Errc::kBusy);  // 5
  region->is_leaving = true;
  return region;
}

void LentMemory::set_gone(Region& region) {
  KV_ASSERT(region.is_leaving && !region.is_gone);
  region.is_gone = true;
  region.dmabuf = Descriptor();  // an open dma-buf keeps the device's memory allocated
}

void LentMemory::end_removal(const Region& region) {
  KV_ASSERT(region.is_gone);
  const auto found = regions_.find(region.bytes().data());
  // Two removals of one region may wait at the same time; the second finds it gone, or replaced.
  if (found == regions_.end() || found->second.get() != &region) return;
  KV_ASSERT(device_count_ > 0);
  --device_count_;
  forget(region);
}

void LentMemory::forget(const Region& region) {
  KV_ASSERT(region.call_count == 0 && bytes_ >= region.bytes().size());  // 5
  bytes_ -= region.bytes().size();
  // The addresses may come back as other memory, which nodes do not write.
  for (auto& [id, ranges] : quarantines_) {
    std::erase_if(ranges, [&](std::span<const std::byte> range) { return overlap(range, region.bytes()); });
  }
  std::erase_if(quarantines_, [](const auto& quarantine) { return quarantine.second.empty(); });
  regions_.erase(region.bytes().data());
}

/// The region that holds all of `memory`; null if part lies outside.
std::shared_ptr<LentMemory::Region> LentMemory::find(std::span<const std::byte> memory) const {
  auto after = regions_.upper_bound(memory.data());
  if (after == regions_.begin()) return nullptr;
  const std::shared_ptr<Region>& region = std::prev(after)->second;
  const std::span<const std::byte> bytes = region->bytes();
  // Not negative: this is the last region that begins at or before `memory`.
  const auto offset = static_cast<std::size_t>(memory.data() - bytes.data());
  if (offset > bytes.size() || memory.size() > bytes.size() - offset) return nullptr;
  return region;
}

/// Whether `is` is true of a region that overlaps `memory`. Regions are in order and do not overlap: the search goes
/// backwards from the last one that begins before the end of `memory`, to the first that lies wholly before it.
template <class Is>
bool LentMemory::any_of(std::span<const std::byte> memory, Is is) const {
  if (memory.empty()) return false;
  for (auto it = regions_.upper_bound(memory.data() + (memory.size() - 1)); it != regions_.begin();) {
    --it;
    if (!overlap(it->second->bytes(), memory)) return false;
    if (is(*it->second)) return true;
  }
  return false;
}

std::vector<std::span<const std::byte>> LentMemory::made() const {
  std::vector<std::span<const std::byte>> made;
  for (const auto& [first, region] : regions_) {
    if (!region->is_device()) made.emplace_back(region->bytes());
  }
  return made;
}

bool LentMemory::is_device(std::span<const std::byte> memory) const {
  return device_count_ > 0 && any_of(memory, [](const Region& region) { return region.is_device(); });
}

LentMemory::QuarantineId LentMemory::quarantine(std::vector<std::span<const std::byte>> ranges) {
  KV_ASSERT(!ranges.empty());
  const QuarantineId id{next_id_++};
  quarantines_.emplace(id, std::move(ranges));
  return id;
}

void LentMemory::end_quarantine(QuarantineId id) { quarantines_.erase(id); }

bool LentMemory::is_quarantined(std::span<const std::byte> memory) const {
  for (const auto& [id, ranges] : quarantines_) {
    for (const std::span<const std::byte> range : ranges) {
      if (overlap(range, memory)) return true;
    }
  }
  return device_count_ > 0 && any_of(memory, [](const Region& region) { return region.is_leaving; });
}

}  // namespace kv
