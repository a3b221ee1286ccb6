#include "store/event_log.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

std::uint32_t EventPage::index_of(const std::shared_ptr<const NamespaceRecord>& record) {
  // Neighbours are most often of one namespace.
  if (!spaces.empty() && spaces.back() == record) return static_cast<std::uint32_t>(spaces.size() - 1);
  const auto [at, is_new] = known_.emplace(record.get(), static_cast<std::uint32_t>(spaces.size()));
  if (is_new) spaces.push_back(record);
  return at->second;
}

EventLog::EventLog(std::size_t count_max) : entries_(count_max) { KV_ASSERT(count_max > 0); }

void EventLog::open(TreeId tree, std::shared_ptr<const NamespaceRecord> record) {
  const auto at = static_cast<std::size_t>(tree);
  if (of_tree_.size() <= at) of_tree_.resize(at + 1);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(spaces_.size()));
    spaces_.emplace_back();
  }
  of_tree_[at] = free_.back();
  free_.pop_back();
  spaces_[of_tree_[at]] = {.record = std::move(record), .event_count = 0, .is_open = true};
}

void EventLog::close(TreeId tree) {
  const std::uint32_t at = of_tree_[static_cast<std::size_t>(tree)];
  Space& space = spaces_[at];
  KV_ASSERT(space.is_open);
  space.is_open = false;
  if (space.event_count == 0) {
    space.record.reset();
    free_.push_back(at);
  } else if (++closed_count_ > kClosedMax) {
    lose();
  }
}

EventLog::Entry& EventLog::append(TreeId tree, BlockTier tier, bool is_stored, const BlockHash& hash) {
  Entry& entry = entries_[next_ % entries_.size()];
  if (next_ - oldest_ == entries_.size()) {
    release(entry.space);
    ++oldest_;
  }
  ++next_;
  entry.hash = hash;
  entry.space = of_tree_[static_cast<std::size_t>(tree)];
  entry.tier = tier;
  entry.is_stored = is_stored;
  ++spaces_[entry.space].event_count;
  return entry;
}

void EventLog::release(std::uint32_t at) {
  Space& space = spaces_[at];
  KV_ASSERT(space.event_count > 0);
  if (--space.event_count > 0 || space.is_open) return;
  space.record.reset();
  free_.push_back(at);
  --closed_count_;
}

void EventLog::lose() {
  oldest_ = ++next_;  // a number that no change has: who has read all before it has missed something, too
  for (std::uint32_t at = 0; at < spaces_.size(); ++at) {
    Space& space = spaces_[at];
    space.event_count = 0;
    if (space.is_open || space.record == nullptr) continue;
    space.record.reset();
    free_.push_back(at);
  }
  closed_count_ = 0;
}

void EventLog::read(std::uint64_t from, std::size_t count_max, EventPage& page) const {
  page.oldest = oldest_;
  page.next = next_;
  // Numbers to come are not known here: of another life of the node.
  page.has_gap = from < oldest_ || from > next_;
  if (page.has_gap) return;
  page.next = from + std::min<std::uint64_t>(count_max, next_ - from);
  for (std::uint64_t number = from; number < page.next; ++number) {
    const Entry& entry = entries_[number % entries_.size()];
    EventPage::Event& event = page.events.emplace_back();
    event.is_stored = entry.is_stored;
    event.tier = entry.tier;
    event.space = page.index_of(spaces_[entry.space].record);
    event.hash = entry.hash;
    if (!entry.is_stored) continue;
    event.parent = entry.parent;
    event.position = entry.position;
  }
}

}  // namespace kv
