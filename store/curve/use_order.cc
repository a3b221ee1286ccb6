#include "store/curve/use_order.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kMovedAtOnce = 8;  ///< More than enough to finish before the places are used up.
constexpr std::size_t kEntriesMin = 16;

}  // namespace

UseOrder::UseOrder(std::size_t entry_count_max)
    : place_of_(std::max(entry_count_max, kEntriesMin), kNone),
      entry_at_(2 * place_of_.size(), kNone),
      weight_of_(place_of_.size()),
      sums_(entry_at_.size() + 1) {
  KV_ASSERT(entry_count_max <= kEntriesMax);
}

void UseOrder::add(std::size_t place, std::uint32_t weight) {
  for (std::size_t i = place + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += weight;
}

std::uint32_t UseOrder::sum_before(std::size_t place) const {
  std::uint32_t sum = 0;
  for (std::size_t i = place; i > 0; i &= i - 1) sum += sums_[i];
  return sum;
}

void UseOrder::use(std::uint16_t entry, std::uint32_t weight) {
  if (has(entry)) remove(entry);
  KV_ASSERT(head_ < entry_at_.size());
  place_of_[entry] = static_cast<std::uint16_t>(head_);
  entry_at_[head_] = entry;
  weight_of_[entry] = weight;
  oldest_ = std::min(oldest_, head_);
  add(head_++, weight);
  total_ += weight;
  if (!is_moving_ && head_ >= entry_at_.size() / 4 * 3) {
    is_moving_ = true;
    read_ = write_ = 0;
  }
  if (is_moving_) move_down();
}

void UseOrder::move_down() {
  for (std::size_t i = 0; i < kMovedAtOnce && read_ < head_; ++i, ++read_) {
    const std::uint16_t entry = std::exchange(entry_at_[read_], kNone);
    if (entry == kNone) continue;
    if (read_ != write_) {
      add(read_, 0 - weight_of_[entry]);
      add(write_, weight_of_[entry]);
    }
    place_of_[entry] = static_cast<std::uint16_t>(write_);
    entry_at_[write_] = entry;
    oldest_ = std::min(oldest_, write_);
    ++write_;
  }
  if (read_ < head_) return;
  head_ = write_;
  is_moving_ = false;
}

void UseOrder::set_weight(std::uint16_t entry, std::uint32_t weight) {
  KV_ASSERT(has(entry));
  const std::uint32_t more = weight - weight_of_[entry];  // modulo 2^32
  weight_of_[entry] = weight;
  add(place_of_[entry], more);
  total_ += more;
}

void UseOrder::remove(std::uint16_t entry) {
  const std::size_t place = std::exchange(place_of_[entry], kNone);
  KV_ASSERT(place != kNone);
  entry_at_[place] = kNone;
  add(place, 0 - weight_of_[entry]);
  total_ -= weight_of_[entry];
}

std::uint64_t UseOrder::newer(std::uint16_t entry) const {
  KV_ASSERT(has(entry));
  return total_ - sum_before(std::size_t{place_of_[entry]} + 1);
}

std::uint16_t UseOrder::oldest() {
  while (oldest_ < head_ && entry_at_[oldest_] == kNone) ++oldest_;
  return oldest_ < head_ ? entry_at_[oldest_] : kNone;
}

std::size_t UseOrder::memory_bytes() const {
  return (place_of_.capacity() + entry_at_.capacity()) * sizeof(std::uint16_t) +
         (weight_of_.capacity() + sums_.capacity()) * sizeof(std::uint32_t);
}

}  // namespace kv
