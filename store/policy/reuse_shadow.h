// store/policy/reuse_shadow.h: a sample of present and departed blocks, to learn when blocks are used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/policy/hint_trust.h"
#include "store/policy/yield_table.h"

namespace kv {

/// Follows sampled blocks, least recently used ones dropped first, over more uses than memory does: this shows which
/// departed blocks would have been used again. Counts in a YieldTable each use at its age, and all time in between,
/// including that of waiting blocks; these are visited in turn, a few with each use. Its own order is that of LRU, so
/// it also shows exactly which uses LRU would have found: those of its first entries, the sample's share of memory.
class ReuseShadow {
 public:
  ReuseShadow(YieldTable& table, HintTrust& trust) : table_(table), trust_(trust) {}

  /// Forgets everything. `lru_entries`: the entries that LRU would have in memory.
  void resize(std::uint32_t entries, std::uint32_t lru_entries);
  /// A block's role in a request.
  struct Kind {
    bool is_last = false;   ///< The request's last block.
    bool is_alone = false;  ///< In a set: uses are not counted.
    std::uint8_t new_class = 0;
    ReuseHint hint = ReuseHint::kNone;      ///< The request's hint.
    ReuseHint believed = ReuseHint::kNone;  ///< The hint, if believed.
    std::uint8_t tenant = 0;                ///< The tenant's place in HintTrust.
  };
  /// A request for the block, when the clock stood at `now`. Returns whether LRU would have found it.
  bool asked(std::uint64_t name, std::uint32_t now, Kind how);
  /// The block was stored. That is not a use, but it is present from now on.
  void stored(std::uint64_t name, std::uint32_t now, Kind how);

  /// Corrects the block's role in its latest request.
  void correct(std::uint64_t name, std::uint32_t now, Kind how);

  void prefetch(std::uint64_t name) const { __builtin_prefetch(&places_[name & (places_.size() - 1)]); }

  std::uint64_t event_count() const { return event_count_; }  ///< Both kinds, since the start.
  std::size_t memory_bytes() const {
    return entries_.capacity() * sizeof(Entry) + places_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct alignas(32) Entry {  // half a cache line
    std::uint64_t name = 0;
    std::uint32_t used_at = 0;
    std::uint32_t counted_to = 0;  ///< Age up to which its time is in the table.
    std::uint32_t newer = kNone, older = kNone;
    std::uint16_t of_class = 0;
    std::uint8_t use_count = 0;
    ReuseHint hint = ReuseHint::kNone;
    std::uint8_t tenant = 0;
    bool is_in_lru = false;
    std::uint8_t bucket = 0;  ///< Of `counted_to`, in the table.
  };
  static_assert(sizeof(Entry) == 32);

  std::uint32_t find(std::uint64_t name) const;
  std::uint32_t add(std::uint64_t name);
  void remove_oldest(std::uint32_t now);
  void take_out(std::uint32_t entry);
  void enter_lru(std::uint32_t entry);
  void put_first(std::uint32_t entry);
  void count_time(Entry& entry, std::uint32_t now);
  void count_some(std::uint32_t now);

  YieldTable& table_;
  HintTrust& trust_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> places_;  ///< Open addressing by name: an entry or kNone.
  std::uint32_t size_ = 0, newest_ = kNone, oldest_ = kNone, hand_ = 0, capacity_ = 0;
  std::uint32_t lru_capacity_ = 0, lru_size_ = 0, lru_last_ = kNone;  ///< lru_last_: the oldest that LRU would have.
  std::uint64_t event_count_ = 0;
};

}  // namespace kv
