#include "client/link/client_staging.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

ClientStaging::Room ClientStaging::take(std::size_t bytes) {
  if (!can_hold(bytes) || !is_made()) return {};
  const std::size_t count = (bytes + kUnitBytes - 1) / kUnitBytes;
  for (std::size_t first = 0; first + count <= is_taken_.size();) {
    std::size_t free = 0;
    while (free < count && !is_taken_[first + free]) ++free;
    if (free < count) {
      first += free + 1;
    } else if (memory_.is_quarantined(units(first, count))) {  // 1
      ++first;
    } else {
      std::fill_n(is_taken_.begin() + static_cast<std::ptrdiff_t>(first), count, true);
      return Room(this, units(first, count).first(bytes));
    }
  }
  return {};
}

bool ClientStaging::is_made() {
  if (region_ || bytes_ == 0) return bytes_ > 0;
  const std::size_t count = bytes_ / kUnitBytes;
  const auto made = count > 0 ? memory_.allocate(count * kUnitBytes) : error_code(Errc::kBadRequest);
  if (!made) {  // over the client's limit, or the machine's: never tried again
    bytes_ = 0;
    return false;
  }
  region_ = memory_.find(*made);
  is_taken_.assign(count, false);
  return true;
}

std::span<std::byte> ClientStaging::units(std::size_t first, std::size_t count) const {
  return region_->bytes().subspan(first * kUnitBytes, count * kUnitBytes);
}

void ClientStaging::give_back(std::span<std::byte> bytes) {
  const auto first = static_cast<std::size_t>(bytes.data() - region_->bytes().data()) / kUnitBytes;
  const std::size_t count = (bytes.size() + kUnitBytes - 1) / kUnitBytes;
  KV_ASSERT(first + count <= is_taken_.size());
  std::fill_n(is_taken_.begin() + static_cast<std::ptrdiff_t>(first), count, false);
}

}  // namespace kv
