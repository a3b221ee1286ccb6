#include "store/tables/event_log.h"

#include <deque>
#include <queue>
#include <utility>

#include "base/assert.h"

namespace kv {

std::uint32_t EventPage::index_of(const std::shared_ptr<const NamespaceRecord>& record) {
  // Neighbours are mostly of one namespace.
  if (!spaces.empty() && spaces.back() == record) return static_cast<std::uint32_t>(spaces.size() - 1);
  const auto [at, is_new] = known_.emplace(record.get(), static_cast<std::uint32_t>(spaces.size()));
  if (is_new) spaces.push_back(record);
  return at->second;
}

struct EventLog::Track {
  std::shared_ptr<const NamespaceRecord> record;  ///< Of its namespaces, the one opened last.
  std::deque<Entry> entries;
  std::uint64_t oldest = 0;
  std::size_t closed_count = 0;  ///< Records of forgotten namespaces.
};

EventLog::EventLog(std::size_t count_max) : count_max_(count_max) { KV_ASSERT(count_max > 0); }
EventLog::~EventLog() = default;

/// Read access to a namespace depends on its owner, and on whether a secret names it.
EventLog::Track& EventLog::track_of(const std::shared_ptr<const NamespaceRecord>& record) {
  std::string owner = record->owner();
  if (!record->field(NamespaceRecord::kNodeSalt).empty()) owner += '\n';
  const bool is_mixed = tracks_.size() >= kTracksMax && !tracks_.contains(owner);
  if (is_mixed) owner = "\n";  // not a valid owner
  std::unique_ptr<Track>& track = tracks_[owner];
  if (!track) track = std::make_unique<Track>();
  track->record = is_mixed ? nullptr : record;
  return *track;
}

void EventLog::open(TreeId tree, std::shared_ptr<const NamespaceRecord> record) {
  const auto at = static_cast<std::size_t>(tree);
  if (of_tree_.size() <= at) of_tree_.resize(at + 1);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(spaces_.size()));
    spaces_.emplace_back();
  }
  of_tree_[at] = free_.back();
  free_.pop_back();
  Track& track = track_of(record);
  spaces_[of_tree_[at]] = {.record = std::move(record), .track = &track, .event_count = 0, .is_open = true};
}

void EventLog::close(TreeId tree) {
  const std::uint32_t at = of_tree_[static_cast<std::size_t>(tree)];
  Space& space = spaces_[at];
  KV_ASSERT(space.is_open);
  space.is_open = false;
  ++space.track->closed_count;
  ++closed_count_;
  if (space.event_count == 0) return release(at);
  if (closed_count_ <= kClosedMax) return;
  const auto closed = [](const auto& each) { return each.second->closed_count; };
  empty(*std::ranges::max_element(tracks_, {}, closed)->second);
}

EventLog::Entry& EventLog::append(TreeId tree, BlockTier tier, bool is_stored, const BlockHash& hash) {
  const std::uint32_t at = of_tree_[static_cast<std::size_t>(tree)];
  Track& track = *spaces_[at].track;
  if (count_ == count_max_) {  // 5
    const std::size_t share = std::max<std::size_t>(1, count_max_ / tracks_.size());
    const auto length = [](const auto& each) { return each.second->entries.size(); };
    forget_oldest(track.entries.size() >= share ? track : *std::ranges::max_element(tracks_, {}, length)->second);
  }
  ++count_;
  ++spaces_[at].event_count;
  Entry& entry = track.entries.emplace_back();
  entry.number = next_++;
  entry.hash = hash;
  entry.space = at;
  entry.tier = tier;
  entry.is_stored = is_stored;
  return entry;
}

void EventLog::forget_oldest(Track& track) {
  const Entry oldest = track.entries.front();
  track.entries.pop_front();
  track.oldest = oldest.number + 1;
  --count_;
  Space& space = spaces_[oldest.space];
  KV_ASSERT(space.event_count > 0);
  if (--space.event_count == 0 && !space.is_open) release(oldest.space);
}

/// For a forgotten namespace without changes in the log. Its track stays, because of its gaps.
void EventLog::release(std::uint32_t at) {
  Space& space = spaces_[at];
  --space.track->closed_count;
  --closed_count_;
  space = {};
  free_.push_back(at);
}

void EventLog::lose(TreeId tree) { empty(*spaces_[of_tree_[static_cast<std::size_t>(tree)]].track); }

void EventLog::empty(Track& track) {
  while (!track.entries.empty()) forget_oldest(track);
  track.oldest = ++next_;  // a number without a change: a reader of all changes before it has missed some, too
}

void EventLog::read(std::uint64_t from, std::size_t count_max, EventPage& page) const {
  page.tracks.clear();
  for (const auto& [owner, track] : tracks_) {
    if (track->oldest > 0) page.tracks.push_back({track->record, track->oldest});
  }
  page.next = next_;
  page.is_unknown = from > next_;  // from another life of the node
  if (page.is_unknown) return;
  // The tracks' changes in the order of their numbers: the track with the next one is on top.
  using Turn = std::pair<const Entry*, const Track*>;
  const auto is_later = [](const Turn& a, const Turn& b) { return a.first->number > b.first->number; };
  std::priority_queue<Turn, std::vector<Turn>, decltype(is_later)> turns(is_later);
  std::unordered_map<const Track*, std::deque<Entry>::const_iterator> at;
  for (const auto& [owner, track] : tracks_) {
    const auto first = std::ranges::lower_bound(track->entries, from, {}, &Entry::number);
    if (first == track->entries.end()) continue;
    at.emplace(track.get(), first);
    turns.emplace(&*first, track.get());
  }
  for (std::size_t count = 0; !turns.empty(); ++count) {
    const auto [entry, track] = turns.top();
    if (count == count_max) {
      page.next = entry->number;
      return;
    }
    turns.pop();
    EventPage::Event& event = page.events.emplace_back();
    event.is_stored = entry->is_stored;
    event.tier = entry->tier;
    event.space = page.index_of(spaces_[entry->space].record);
    event.hash = entry->hash;
    if (entry->is_stored) {
      event.parent = entry->parent;
      event.position = entry->position;
    }
    auto& next = at.at(track);
    if (++next != track->entries.end()) turns.emplace(&*next, track);
  }
}

}  // namespace kv
