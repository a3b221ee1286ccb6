#include "store/policy/reuse_shadow.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::uint32_t kCountedAtOnce = 16;

}  // namespace

void ReuseShadow::resize(std::uint32_t entries, std::uint32_t lru_entries) {
  capacity_ = std::max(entries, 16u);
  lru_capacity_ = std::clamp(lru_entries, 1u, capacity_);
  lru_size_ = 0;
  lru_last_ = kNone;
  entries_.clear();
  entries_.shrink_to_fit();
  entries_.reserve(capacity_ + std::size_t{1});  // later growth would copy them all, under the Store's lock
  places_.assign(std::bit_ceil(capacity_ * 2), kNone);
  size_ = hand_ = 0;
  newest_ = oldest_ = kNone;
}

bool ReuseShadow::asked(std::uint64_t name, std::uint32_t now, Kind how) {
  ++event_count_;
  bool is_lru_hit = false;
  std::uint32_t at = find(name);
  if (at == kNone) {
    at = add(name);
  } else {
    Entry& entry = entries_[at];
    count_time(entry, now);
    table_.add_use(entry.of_class, now - entry.used_at);
    if (entry.use_count == 1) trust_.add_use(entry.tenant, entry.hint);
    is_lru_hit = entry.is_in_lru;
    take_out(at);
    put_first(at);
  }
  Entry& entry = entries_[at];
  entry.use_count = static_cast<std::uint8_t>(std::min(entry.use_count + 1, 255));
  entry.used_at = now;
  entry.counted_to = 0;
  entry.bucket = 0;
  entry.hint = how.hint;
  entry.tenant = how.tenant;
  entry.of_class = static_cast<std::uint16_t>(
      YieldTable::class_of(how.is_last, how.is_alone ? 1 : entry.use_count, how.new_class, how.believed));
  enter_lru(at);
  if (size_ > capacity_) remove_oldest(now);
  count_some(now);
  return is_lru_hit;
}

/// The entry has just become the newest.
void ReuseShadow::enter_lru(std::uint32_t at) {
  Entry& entry = entries_[at];
  if (std::exchange(entry.is_in_lru, true)) {
    if (lru_last_ == kNone) lru_last_ = at;
    return;
  }
  if (lru_size_++ == 0) lru_last_ = at;
  if (lru_size_ <= lru_capacity_) return;
  Entry& out = entries_[lru_last_];
  out.is_in_lru = false;
  lru_last_ = out.newer;
  --lru_size_;
}

void ReuseShadow::stored(std::uint64_t name, std::uint32_t now, Kind how) {
  if (find(name) == kNone) static_cast<void>(asked(name, now, how));
}

void ReuseShadow::correct(std::uint64_t name, std::uint32_t now, Kind how) {
  const std::uint32_t at = find(name);
  if (at == kNone) return;
  Entry& entry = entries_[at];
  count_time(entry, now);
  entry.of_class = static_cast<std::uint16_t>(
      YieldTable::class_of(how.is_last, how.is_alone ? 1 : entry.use_count, how.new_class, how.believed));
}

std::uint32_t ReuseShadow::find(std::uint64_t name) const {
  for (std::size_t place = name & (places_.size() - 1); places_[place] != kNone;
       place = (place + 1) & (places_.size() - 1))
    if (entries_[places_[place]].name == name) return places_[place];
  return kNone;
}

std::uint32_t ReuseShadow::add(std::uint64_t name) {
  const std::uint32_t at = size_++;
  if (at == entries_.size()) entries_.emplace_back();
  entries_[at] = {};
  entries_[at].name = name;
  std::size_t place = name & (places_.size() - 1);
  while (places_[place] != kNone) place = (place + 1) & (places_.size() - 1);
  places_[place] = at;
  put_first(at);
  return at;
}

/// The array's last entry takes the place of the removed one, so that there are no holes for the hand.
void ReuseShadow::remove_oldest(std::uint32_t now) {
  const std::uint32_t gone = oldest_;
  KV_ASSERT(gone != kNone);
  lru_size_ -= entries_[gone].is_in_lru;
  count_time(entries_[gone], now);
  take_out(gone);
  const std::size_t mask = places_.size() - 1;
  std::size_t place = entries_[gone].name & mask;
  while (places_[place] != gone) place = (place + 1) & mask;
  // Entries behind it move up, or a search for them would end at the hole.
  for (std::size_t next = (place + 1) & mask; places_[next] != kNone; next = (next + 1) & mask) {
    const std::size_t home = entries_[places_[next]].name & mask;
    if (((next - home) & mask) < ((next - place) & mask)) continue;
    places_[place] = places_[next];
    place = next;
  }
  places_[place] = kNone;
  const std::uint32_t last = --size_;
  if (last == gone) return;
  for (place = entries_[last].name & mask; places_[place] != last;) place = (place + 1) & mask;
  places_[place] = gone;
  Entry& moved = entries_[gone] = entries_[last];
  if (lru_last_ == last) lru_last_ = gone;
  (moved.newer == kNone ? newest_ : entries_[moved.newer].older) = gone;
  (moved.older == kNone ? oldest_ : entries_[moved.older].newer) = gone;
}

void ReuseShadow::take_out(std::uint32_t at) {
  const Entry& entry = entries_[at];
  if (lru_last_ == at) lru_last_ = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
}

void ReuseShadow::put_first(std::uint32_t at) {
  entries_[at].newer = kNone;
  entries_[at].older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = at;
  newest_ = at;
}

void ReuseShadow::count_time(Entry& entry, std::uint32_t now) {
  const std::uint32_t age = now - entry.used_at;
  if (age <= entry.counted_to) return;
  entry.bucket = static_cast<std::uint8_t>(table_.add_time(entry.of_class, entry.counted_to, age, entry.bucket));
  if (entry.use_count == 1) trust_.add_time(entry.tenant, entry.hint, age - entry.counted_to);
  entry.counted_to = age;
}

void ReuseShadow::count_some(std::uint32_t now) {
  for (std::uint32_t i = 0; i < std::min(kCountedAtOnce, size_); ++i) {
    if (hand_ >= size_) hand_ = 0;
    count_time(entries_[hand_++], now);
  }
}

}  // namespace kv
