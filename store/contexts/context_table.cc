#include "store/contexts/context_table.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {
namespace {

/// An owner or context besides its texts and blocks: the nodes of the maps.
constexpr std::size_t kContextBytes = 512, kKeptBytes = sizeof(BlockHash) + sizeof(Context::Kept);

void add_counters(ContextTotals& sum, const ContextTotals& more) {
  sum.created += more.created;
  sum.expired += more.expired;
  sum.deleted += more.deleted;
  sum.refused += more.refused;
  sum.lost_blocks += more.lost_blocks;
  sum.yielded_blocks += more.yielded_blocks;
  sum.written_tokens += more.written_tokens;
  sum.read_tokens += more.read_tokens;
  sum.stored_token_seconds += more.stored_token_seconds;
}

}  // namespace

bool is_context_name(std::string_view text) {
  return !text.empty() && text.size() <= kContextNameBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
}
bool is_context_tag(std::string_view text) {
  return !text.empty() && text.size() <= kContextTagBytesMax &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 127; });
}

bool ContextPlace::is_of(std::size_t block_count) const {
  if (!positions) return prefix_count == 0 || block_count <= prefix_count;
  return positions->size() == block_count && block_count > 0 && positions->back() < prefix_count &&
         std::ranges::adjacent_find(*positions, std::ranges::greater_equal()) == positions->end();
}

std::size_t Context::text_bytes() const {
  std::size_t bytes = name.size();
  for (const std::string& tag : tags) bytes += tag.size();
  return bytes;
}

std::size_t ContextTable::bytes_of(const Context& context) {
  const std::size_t place_bytes = context.place.positions ? sizeof(std::uint32_t) : 0;
  return kContextBytes + context.text_bytes() + context.hashes.size() * (kKeptBytes + place_bytes);
}

Errc ContextTable::lacks_room(const Context& context, const Context* replaced, std::string* reached) const {
  const auto found = owners_.find(context.owner);
  static const ContextTotals kNothing;
  const ContextTotals& has = found == owners_.end() ? kNothing : found->second.totals;
  const std::size_t one = replaced == nullptr ? 0 : 1;
  const std::size_t text_bytes = replaced == nullptr ? 0 : replaced->text_bytes();
  const std::size_t blocks = replaced == nullptr ? 0 : replaced->hashes.size();
  struct Bound {
    const char *whose, *what;
    std::size_t had, more, most;
    Errc why;
  };
  const Bound bounds[] = {{"the tenant", "contexts", has.count - one, 1, limits_.owner_count_max, Errc::kOverQuota},
                          {"the tenant", "blocks named by contexts", has.wanted_blocks - blocks, context.hashes.size(),
                           limits_.owner_blocks_max, Errc::kOverQuota},
                          {"the tenant", "bytes of names and tags of contexts", has.text_bytes - text_bytes,
                           context.text_bytes(), limits_.owner_text_bytes_max, Errc::kOverQuota},
                          {"the node", "contexts", count() - one, 1, limits_.count_max, Errc::kBusy},
                          {"the node", "blocks named by contexts", block_count_ - blocks, context.hashes.size(),
                           limits_.blocks_max, Errc::kBusy}};
  for (const Bound& bound : bounds) {
    if (bound.had + bound.more <= bound.most) continue;
    if (reached != nullptr) {
      *reached = std::string(bound.whose) + " has " + std::to_string(bound.had) + " " + bound.what + ", " +
                 std::to_string(bound.more) + " more are asked for, and at most " + std::to_string(bound.most) +
                 " are allowed";
    }
    return bound.why;
  }
  return {};
}

Errc ContextTable::refuses(const Context& context, const Context* replaced, std::string* reached) {
  const Errc why = lacks_room(context, replaced, reached);
  const auto found = owners_.find(context.owner);
  if (why != Errc{} && found != owners_.end()) ++found->second.totals.refused;
  return why;
}

bool ContextTable::has_room(const Context& context) const { return lacks_room(context, nullptr, nullptr) == Errc{}; }

ContextTable::Owner& ContextTable::make_owner(const std::string& name) {
  const auto [place, is_new] = owners_.try_emplace(name);
  if (is_new) place->second.totals.owner = name;
  return place->second;
}

Context& ContextTable::add(Context context, TimePoint now) {
  context.created = context.begun = now;
  context.told_count = context.hashes.size();
  Context& added = insert(std::move(context), now);
  ++owner_of(added).totals.created;
  ++order_count_;
  forget_owners();
  return added;
}

Context& ContextTable::add_again(Context context, TimePoint now) {
  context.told_count = 0;  // its missing blocks are not a shortfall to report
  Context& added = insert(std::move(context), now);
  forget_owners();
  return added;
}

void ContextTable::ended_before(const std::string& owner) {
  ++make_owner(owner).totals.expired;
  forget_owners();
}

Context& ContextTable::insert(Context context, TimePoint now) {
  Owner& owner = make_owner(context.owner);
  context.id = ContextId{++id_last_};
  context.looked = now;
  context.turn = context.end();
  auto kept = std::make_unique<Context>(std::move(context));
  Context& added = *kept;
  KV_ASSERT(owner.contexts.emplace(added.name, std::move(kept)).second);
  by_id_.emplace(added.id, &added);
  turns_.emplace(added.turn, added.id);
  block_count_ += added.hashes.size();
  used_bytes_ += bytes_of(added);
  ++owner.totals.count;
  owner.totals.text_bytes += added.text_bytes();
  owner.totals.wanted_blocks += added.hashes.size();
  return added;
}

Context* ContextTable::find(std::string_view owner, std::string_view name) const {
  const auto of_owner = owners_.find(owner);
  if (of_owner == owners_.end()) return nullptr;
  const auto found = of_owner->second.contexts.find(name);
  return found == of_owner->second.contexts.end() ? nullptr : found->second.get();
}

Context* ContextTable::find(ContextId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

void ContextTable::visit(std::string_view owner, std::string_view after,
                         const std::function<bool(Context&)>& visit) const {
  const auto of_owner = owners_.find(owner);
  if (of_owner == owners_.end()) return;
  const auto& contexts = of_owner->second.contexts;
  for (auto it = after.empty() ? contexts.begin() : contexts.upper_bound(after); it != contexts.end(); ++it) {
    if (!visit(*it->second)) return;
  }
}

void ContextTable::for_each(const std::function<void(Context&)>& visit) const {
  for (const auto& [id, context] : by_id_) visit(*context);
}

void ContextTable::extend(Context& context, ContextLife life, TimePoint now) {
  turns_.erase({context.turn, context.id});
  context.life = life;
  context.begun = now;
  context.turn = context.end();
  turns_.emplace(context.turn, context.id);
  ++order_count_;
}

void ContextTable::set_priority(Context& context, std::uint8_t priority) {
  KV_ASSERT(priority <= kContextPriorityMax);
  Owner& owner = owner_of(context);
  if (context.kept_count > 0) {
    owner.keeping[context.priority].erase(context.id);
    owner.keeping[priority].insert(context.id);
  }
  context.priority = priority;
  ++order_count_;
}

Context* ContextTable::next_below(std::string_view owner, std::uint8_t priority, const Turn* after) const {
  const auto of_owner = owners_.find(owner);
  if (of_owner == owners_.end()) return nullptr;
  const auto& keeping = of_owner->second.keeping;
  for (auto it = after == nullptr ? keeping.begin() : keeping.lower_bound(after->priority);
       it != keeping.end() && it->first < priority; ++it) {
    const bool is_within = after != nullptr && it->first == after->priority;
    const auto next = is_within ? it->second.upper_bound(after->id) : it->second.begin();
    if (next != it->second.end()) return by_id_.find(*next)->second;
  }
  return nullptr;
}

std::unique_ptr<Context> ContextTable::take(Context& context, Gone how) {
  ++order_count_;
  Owner& owner = owner_of(context);
  KV_ASSERT(context.kept_count == 0);  // subtracted before, or the totals would keep them
  const auto place = owner.contexts.find(context.name);
  std::unique_ptr<Context> taken = std::move(place->second);
  KV_ASSERT(taken.get() == &context);
  owner.contexts.erase(place);
  by_id_.erase(context.id);
  turns_.erase({context.turn, context.id});
  block_count_ -= context.hashes.size();
  used_bytes_ -= bytes_of(context);
  --owner.totals.count;
  owner.totals.text_bytes -= context.text_bytes();
  owner.totals.wanted_blocks -= context.hashes.size();
  owner.totals.expired += how == Gone::kExpired;
  owner.totals.deleted += how == Gone::kDeleted;
  return taken;
}

Context* ContextTable::next_ended(TimePoint now, Steps& steps) {
  while (!turns_.empty() && turns_.begin()->first <= now && steps.are_left()) {
    steps.take(Steps::kBlock);
    Context& context = *by_id_.find(turns_.begin()->second)->second;
    if (context.end() <= now) return &context;
    turns_.erase(turns_.begin());
    context.turn = context.end();
    turns_.emplace(context.turn, context.id);
  }
  return nullptr;
}

Context* ContextTable::next_to_look_at() {
  if (by_id_.empty()) return nullptr;
  auto next = by_id_.upper_bound(looked_at_);
  if (next == by_id_.end()) next = by_id_.begin();
  looked_at_ = next->first;
  return next->second;
}

void ContextTable::kept(Context& context, std::ptrdiff_t more_blocks) {
  Owner& owner = owner_of(context);
  ContextTotals& totals = owner.totals;
  const bool kept_some = context.kept_count > 0;
  context.kept_count += static_cast<std::size_t>(more_blocks);
  if (!kept_some && context.kept_count > 0) owner.keeping[context.priority].insert(context.id);
  if (kept_some && context.kept_count == 0) owner.keeping[context.priority].erase(context.id);
  totals.kept_blocks += static_cast<std::size_t>(more_blocks);
  totals.kept_bytes += static_cast<std::uint64_t>(more_blocks) * context.record->block_bytes();
  KV_ASSERT(context.kept_count <= context.hashes.size());
}

void ContextTable::lost(Context& context, std::size_t blocks) {
  context.lost_count += blocks;
  owner_of(context).totals.lost_blocks += blocks;
}

void ContextTable::yielded(Context& context, std::size_t blocks) {
  context.yielded_count += blocks;
  owner_of(context).totals.yielded_blocks += blocks;
}

void ContextTable::wrote(Context& context, std::size_t blocks) {
  context.written_tokens += blocks * context.record->block_size();
  owner_of(context).totals.written_tokens += blocks * context.record->block_size();
}

void ContextTable::read(Context& context, std::size_t blocks) {
  context.read_tokens += blocks * context.record->block_size();
  owner_of(context).totals.read_tokens += blocks * context.record->block_size();
}

void ContextTable::stored(Context& context, TimePoint now) {
  if (now <= context.looked) return;
  const double seconds = std::chrono::duration<double>(now - context.looked).count();
  const double more = seconds * static_cast<double>(context.kept_count * context.record->block_size());
  context.stored_token_seconds += more;
  owner_of(context).totals.stored_token_seconds += more;
  context.looked = now;
}

void ContextTable::used(Context& context, TimePoint when) {
  if (!context.used || *context.used < when) context.used = when;
  ++use_count_;
}

Context* ContextTable::next_behind(ContextId after) const {
  const auto next = by_id_.upper_bound(after);
  return next == by_id_.end() ? nullptr : next->second;
}

/// Names of owners come from a policy, which may be replaced many times while the node runs.
void ContextTable::forget_owners() {
  if (owners_.size() <= limits_.owners_remembered_max) return;
  for (auto it = owners_.begin(); it != owners_.end() && owners_.size() > limits_.owners_remembered_max;) {
    if (it->second.totals.count > 0) {
      ++it;
      continue;
    }
    add_counters(other_, it->second.totals);
    has_other_ = true;
    it = owners_.erase(it);
  }
}

std::vector<ContextTotals> ContextTable::totals() const {
  std::vector<ContextTotals> totals;
  for (const auto& [name, owner] : owners_) totals.push_back(owner.totals);
  if (has_other_) {
    totals.push_back(other_);
    totals.back().owner = "(other)";
  }
  return totals;
}

}  // namespace kv
