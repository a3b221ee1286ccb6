#include "client/lent_memory.h"

#include <functional>
#include <utility>

namespace kv {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

}  // namespace

Result<std::span<std::byte>> LentMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return error_code(Errc::kBadRequest);
  if (bytes > bytes_max_ - bytes_) return error_code(Errc::kBusy);
  auto memory = SharedMemory::create(bytes);
  if (!memory) return memory.error();
  auto region = std::make_shared<Region>();
  region->id = next_id_++;
  region->memory = std::move(*memory);
  const std::span<std::byte> span = region->bytes().first(bytes);
  bytes_ += region->bytes().size();
  regions_.emplace(span.data(), std::move(region));
  return span;
}

Result<std::shared_ptr<LentMemory::Region>> LentMemory::free(std::span<std::byte> memory) {
  const auto found = regions_.find(memory.data());
  if (found == regions_.end()) return error_code(Errc::kBadRequest);
  const std::shared_ptr<Region> region = found->second;
  if (region->call_count > 0) return error_code(Errc::kBusy);
  regions_.erase(found);
  bytes_ -= region->bytes().size();
  // The addresses may come back as other memory, which nobody writes.
  for (auto& [id, ranges] : quarantines_) {
    std::erase_if(ranges, [&](std::span<const std::byte> range) { return overlap(range, region->bytes()); });
  }
  std::erase_if(quarantines_, [](const auto& quarantine) { return quarantine.second.empty(); });
  return region;
}

std::shared_ptr<LentMemory::Region> LentMemory::find(std::span<const std::byte> memory) const {
  auto after = regions_.upper_bound(memory.data());
  if (after == regions_.begin()) return nullptr;
  const std::shared_ptr<Region>& region = std::prev(after)->second;
  const std::span<const std::byte> bytes = region->bytes();
  const auto offset = static_cast<std::size_t>(memory.data() - bytes.data());
  if (offset > bytes.size() || memory.size() > bytes.size() - offset) return nullptr;
  return region;
}

LentMemory::QuarantineId LentMemory::quarantine(std::vector<std::span<const std::byte>> ranges) {
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
  return false;
}

}  // namespace kv
