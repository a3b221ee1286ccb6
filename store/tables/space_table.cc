#include "store/tables/space_table.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

SpaceTable::Space* SpaceTable::find(std::string_view record) const {
  const auto found = of_record_.find(record);
  return found == of_record_.end() ? nullptr : found->second;
}

SpaceTable::Space* SpaceTable::find(const NamespaceId& name) const {
  const auto found = of_name_.find(name);
  return found == of_name_.end() ? nullptr : found->second;
}

SpaceTable::Space* SpaceTable::find(TreeId tree) const {
  KV_ASSERT(static_cast<std::size_t>(tree) < of_tree_.size());
  Space* const space = of_tree_[static_cast<std::size_t>(tree)];
  KV_ASSERT(space != nullptr);
  return space;
}

void SpaceTable::for_each(const std::function<void(Space&)>& visit) const {
  // A hash map's order differs between libraries; callers' output must not.
  std::vector<Space*> all;
  for (const auto& [id, space] : spaces_) all.push_back(space.get());
  std::ranges::sort(all, {}, &Space::id);
  for (Space* const space : all) visit(*space);
}

void SpaceTable::visit_next(const NamespaceId* after, std::size_t count_max,
                            const std::function<void(const Space&)>& visit) const {
  auto at = after == nullptr ? of_name_.begin() : of_name_.upper_bound(*after);
  for (std::size_t count = 0; at != of_name_.end() && count < count_max; ++at, ++count) visit(*at->second);
}

SpaceTable::Space& SpaceTable::add(std::shared_ptr<const NamespaceRecord> record, TreeId tree) {
  auto space = std::make_unique<Space>();
  space->id = SpaceId{id_next_++};
  space->record = std::move(record);
  space->name = space->record->id();
  space->tree = tree;
  const std::string whose = space->record->owner() + '\n' + std::string(space->record->field("salt"));
  space->tenant = std::hash<std::string>()(whose);
  Space& added = *space;
  const auto i = static_cast<std::size_t>(tree);
  if (i >= of_tree_.size()) of_tree_.resize(i + 1);
  KV_ASSERT(of_tree_[i] == nullptr);
  of_tree_[i] = &added;
  of_record_.emplace(added.record->text(), &added);
  of_name_.emplace(added.name, &added);
  spaces_.emplace(added.id, std::move(space));
  use(added);
  may_be_idle(added);  // still empty
  return added;
}

void SpaceTable::remove(Space& space) {
  KV_ASSERT(space.put_count == 0 && find(space.id) == &space);
  withdraw(space);
  for (const SessionId session : space.sessions) {
    const auto open = open_.find(session);
    KV_ASSERT(open != open_.end());
    open->second.erase(space.id);
    if (open->second.empty()) open_.erase(open);
  }
  of_tree_[static_cast<std::size_t>(space.tree)] = nullptr;
  of_record_.erase(space.record->text());  // while the record lives: the key is a view of it
  of_name_.erase(space.name);
  spaces_.erase(space.id);
}

void SpaceTable::open(Space& space, SessionId session) {
  space.sessions.insert(session);
  open_[session].insert(space.id);
}

void SpaceTable::end_session(SessionId session) {
  const auto open = open_.find(session);
  if (open == open_.end()) return;
  for (const SpaceId id : open->second) {
    Space* const found = find(id);
    KV_ASSERT(found != nullptr);  // remove() takes a space out of every session's list
    Space& space = *found;
    space.sessions.erase(session);
    if (!space.is_candidate) continue;
    withdraw(space);  // its turn comes earlier now
    may_be_idle(space);
  }
  open_.erase(open);
}

void SpaceTable::may_be_idle(Space& space) {
  if (space.is_candidate) return;
  space.is_candidate = true;
  space.turn = turn_of(space);
  candidates_.insert(space.turn);
}

void SpaceTable::withdraw(Space& space) {
  if (std::exchange(space.is_candidate, false)) candidates_.erase(space.turn);
}

/// A use makes a turn later, and a candidate's turn is updated only at the front. So use() need not touch the
/// candidates. (end_session(), which makes a turn earlier, updates it at once.)
SpaceTable::Space* SpaceTable::next_idle(const IsIdle& is_idle) {
  while (!candidates_.empty()) {
    Space& space = *find(std::get<SpaceId>(*candidates_.begin()));
    if (space.turn != turn_of(space)) {  // used or opened since
      withdraw(space);
      may_be_idle(space);
    } else if (!is_idle(space)) {
      withdraw(space);
    } else {
      return &space;
    }
  }
  return nullptr;
}

}  // namespace kv
