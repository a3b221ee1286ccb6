#include "store/desks/context_desk.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "store/contexts/context_ends.h"

namespace kv {
namespace {

bool is_life(const ContextLife& life) { return life.ttl > Duration::zero() && life.ttl <= kContextTtlMax; }

/// Cuts the hashes of an order into chains. Empty: its counts do not cut them.
std::optional<std::vector<Context::Chain>> cut_chains(std::size_t hash_count, std::span<const std::uint32_t> counts) {
  std::vector<Context::Chain> chains;
  if (counts.empty()) {
    chains.push_back({.first = 0, .count = hash_count, .kept = {}});
    return chains;
  }
  if (counts.size() > kContextChainsMax) return std::nullopt;
  std::size_t first = 0;
  for (const std::uint32_t count : counts) {
    if (count == 0 || count > hash_count - first) return std::nullopt;
    chains.push_back({.first = first, .count = count, .kept = {}});
    first += count;
  }
  if (first != hash_count) return std::nullopt;
  return chains;
}

}  // namespace

Result<ContextDesk::View, Failure> ContextDesk::create(Order order, TimePoint now) {
  Shelf::Call call(shelf_);
  end_due(now, call.steps);
  const SpaceTable::Space* const space = spaces_.find(order.space);
  if (space == nullptr) return Failure(Errc::kNoNamespace);
  spaces_.use(*space);
  if (space->record->is_set()) return Failure(Errc::kUnsupported, "a set's blocks stand alone, contexts are of chains");
  const std::size_t hash_count = order.hashes.size();
  if (hash_count > shelf_.config.chain_blocks_max || hash_count == 0) {
    return Failure(hash_count == 0 ? Errc::kBadRequest : Errc::kTooLarge,
                   "hashes: " + std::to_string(hash_count) + ", allowed are 1 to " +
                       std::to_string(shelf_.config.chain_blocks_max));
  }
  auto chains = cut_chains(hash_count, order.chain_counts);
  if (!chains) {
    return Failure(Errc::kBadRequest, "chain_counts: " + std::to_string(order.chain_counts.size()) +
                                          " that do not cut " + std::to_string(hash_count) +
                                          " hashes into chains of at least one; at most " +
                                          std::to_string(kContextChainsMax) + " are allowed");
  }
  if (order.name.empty() || !is_life(order.life) || order.priority > kContextPriorityMax)
    return Failure(Errc::kBadRequest,
                   "a context has a name, a time to live of 1 ns to ten years, and a priority of 0..9");
  if (!order.place.is_of(hash_count)) {
    return Failure(Errc::kBadRequest, "positions: they do not place " + std::to_string(hash_count) +
                                          " blocks, ascending, among " + std::to_string(order.place.prefix_count));
  }
  Context context;
  context.owner = std::move(order.owner);
  context.name = std::move(order.name);
  context.tags = std::move(order.tags);
  context.record = space->record;
  context.space_name = space->name;
  context.space = space->id;
  context.hashes = std::move(order.hashes);
  context.chains = *std::move(chains);
  context.life = order.life;
  context.priority = order.priority;
  context.place = std::move(order.place);
  Context* const replaced = table_.find(context.owner, context.name);
  std::string reached;
  if (const Errc why = table_.refuses(context, replaced, &reached); why != Errc{}) return Failure(why, reached);
  Steps unbounded(~std::size_t{0});  // bounded by the named blocks
  if (replaced != nullptr) {
    end(*replaced, ContextTable::Gone::kReplaced, now);
    // At once, or blocks that both name would count twice against the bounds. Under one lock, without evictions.
    blocks_.let_go(unbounded);
  }
  Context& added = table_.add(std::move(context), now);
  // The same holds for blocks that others give up. The search for such blocks is bounded.
  Steps room_steps(Shelf::kStepsPerCall + hash_count * Steps::kRemoval);
  blocks_.keep_more(added, unbounded, room_steps, now);
  if (added.why == Errc::kOverQuota)
    static_cast<void>(shelf_.tenants->may_retain(space->owner, space->record->block_bytes()));  // counts the refusal
  return view_of(added);
}

Result<ContextDesk::View> ContextDesk::extend(std::string_view owner, std::string_view name, ContextLife life,
                                              TimePoint now, std::optional<std::uint8_t> priority) {
  Shelf::Call call(shelf_);
  end_due(now, call.steps);
  if (!is_life(life) || priority.value_or(0) > kContextPriorityMax) return Errc::kBadRequest;
  Context* const context = live(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  table_.extend(*context, life, now);
  if (priority && *priority != context->priority) table_.set_priority(*context, *priority);
  return view_of(*context);
}

Result<ContextDesk::View> ContextDesk::remove(std::string_view owner, std::string_view name, TimePoint now) {
  Shelf::Call call(shelf_);
  end_due(now, call.steps);
  Context* const context = live(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  const View last = view_of(*context);
  end(*context, ContextTable::Gone::kDeleted, now);
  blocks_.let_go(call.steps);
  return last;
}

Result<ContextDesk::View> ContextDesk::find(std::string_view owner, std::string_view name, TimePoint now) {
  Context* const context = live(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  return look_in_tiers(*context);
}

Result<std::pair<ContextDesk::View, ContextDesk::Content>> ContextDesk::tell(std::string_view owner,
                                                                             std::string_view name, TimePoint now) {
  Context* const context = live(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  Content content{.id = context->id, .hashes = context->hashes, .place = context->place, .chain_counts = {}};
  for (const Context::Chain& chain : context->chains)
    content.chain_counts.push_back(static_cast<std::uint32_t>(chain.count));
  return std::pair(view_of(*context), std::move(content));
}

std::vector<ContextDesk::View> ContextDesk::list(std::string_view owner, std::string_view after, std::size_t count_max,
                                                 TimePoint now) {
  std::vector<View> views;
  table_.visit(owner, after, [&](Context& context) {
    if (views.size() >= count_max) return false;
    if (context.end() <= now) return true;
    blocks_.look_for_drops(context);
    table_.stored(context, now);
    views.push_back(view_of(context));
    return true;
  });
  return views;
}

bool ContextDesk::remove_all(std::string_view owner, TimePoint now) {
  Shelf::Call call(shelf_);
  while (call.steps.are_left()) {
    Context* first = nullptr;
    table_.visit(owner, "", [&](Context& context) {
      first = &context;
      return false;
    });
    if (first == nullptr) return false;
    call.steps.take(Steps::kBlock * (1 + first->chains.size()));
    end(*first, ContextTable::Gone::kDeleted, now);
  }
  return true;
}

Result<ContextDesk::View> ContextDesk::warm(std::string_view owner, std::string_view name, bool is_wanted,
                                            TimePoint now) {
  Context* const context = live(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  set_warming(*context, is_wanted);
  return look_in_tiers(*context);
}

std::optional<ContextDesk::WarmWork> ContextDesk::next_to_warm(std::uint64_t bytes_max, TimePoint now) {
  Shelf::Call call(shelf_);
  for (std::size_t left = to_warm_.size(); left > 0 && call.steps.are_left(); --left) {
    auto next = to_warm_.upper_bound(warmed_last_);
    if (next == to_warm_.end()) next = to_warm_.begin();
    warmed_last_ = *next;
    Context* const context = table_.find(*next);
    if (context == nullptr || context->end() <= now) {
      to_warm_.erase(next);
      continue;
    }
    call.steps.take(Steps::kBlock * (1 + context->chains.size()));
    blocks_.look_for_drops(*context);
    table_.stored(*context, now);
    blocks_.keep_more(*context, call.steps, now);
    Warmable found = look_for_warm(*context, bytes_max, call.steps, now);
    if (found.work) return std::move(found.work);
    if (!found.may_come) set_warming(*context, false);
  }
  return std::nullopt;
}

/// Requires a disk tier, and that keep_more() was called.
ContextDesk::Warmable ContextDesk::look_for_warm(Context& context, std::uint64_t bytes_max, Steps& steps,
                                                 TimePoint now) {
  Warmable found;
  found.may_come = disk_.is_loading();  // the disk's blocks are not all known yet
  const SpaceTable::Space* const space = spaces_.find(context.space_name);
  if (space == nullptr) return found;
  const std::size_t block_bytes = space->record->block_bytes();
  const std::size_t count_max = std::max<std::size_t>(1, static_cast<std::size_t>(bytes_max / block_bytes));
  for (const Context::Chain& chain : context.chains) {
    const std::size_t kept = chain.kept.size();
    if (kept == chain.count) continue;
    const auto hashes = context.hashes.view().subspan(chain.first, chain.count);
    if (shelf_.pool.index().match(space->tree, hashes).block_count > kept) {
      // The block is in memory but not kept: a bound is reached, or keep_more() has more to do.
      found.may_come = found.may_come || (context.why != Errc::kBusy && context.why != Errc::kOverQuota);
      continue;
    }
    const PrefixIndex::Prefix on_disk = shelf_.tier->index().match(space->tree, hashes);
    if (on_disk.block_count <= kept) continue;
    const std::size_t count =
        blocks_.room_for(context, *space, std::min(count_max, on_disk.block_count - kept), steps, now);
    if (count == 0) {
      context.why = shelf_.is_over_retained(block_bytes) ? Errc::kBusy : Errc::kOverQuota;
      continue;
    }
    std::vector<BlockId> blocks(on_disk.block_count);
    shelf_.tier->index().blocks_of(on_disk, blocks);
    found.work = WarmWork{};  // Clang finds no emplace() for a nested class with initializers
    found.work->context = context.id;
    found.work->space = space->id;
    found.work->space_name = space->name;
    found.work->hashes = context.hashes;
    found.work->first = chain.first;
    found.work->count = kept + count;
    for (std::size_t i = kept; i < kept + count; ++i)
      found.work->pinned.on_disk.push_back(disk_.pin(*space, blocks[i], hashes[i], static_cast<std::uint32_t>(i)));
    return found;
  }
  return found;
}

bool ContextDesk::is_warming(ContextId context) const {
  const Context* const found = table_.find(context);
  return found != nullptr && found->is_warming;
}

bool ContextDesk::keep(ContextId id, TimePoint now) {
  Shelf::Call call(shelf_);
  Context* const context = table_.find(id);
  if (context == nullptr) return false;
  blocks_.look_for_drops(*context);  // the last kept block may have gone
  blocks_.keep_more(*context, call.steps, now);
  return !call.steps.are_left() && context->kept_count < context->hashes.size();
}

std::vector<ContextDesk::News> ContextDesk::tend(TimePoint now) {
  Shelf::Call call(shelf_);
  end_due(now, call.steps);
  blocks_.let_go(call.steps);
  std::vector<News> news;
  for (std::size_t left = table_.count(); left > 0 && call.steps.are_left(); --left) {
    Context& context = *table_.next_to_look_at();
    if (!look_at(context, call.steps, now)) continue;
    news.push_back({context.owner, context.name, context.hashes.size(), context.kept_count, context.lost_count,
                    context.yielded_count, context.why});
  }
  return news;
}

bool ContextDesk::copy(ContextId& after, std::vector<KeptContext>& kept, TimePoint now) {
  Shelf::Call call(shelf_);
  while (call.steps.are_left()) {
    Context* const next = table_.next_behind(after);
    if (next == nullptr) return false;
    Context& context = *next;
    after = context.id;
    call.steps.take(Steps::kRemoval + Steps::kBlock * (context.tags.size() + context.chains.size()));
    if (context.end() <= now) continue;
    blocks_.look_for_drops(context);
    table_.stored(context, now);
    KeptContext& copy = kept.emplace_back();
    static_cast<ContextFacts&>(copy) = context;
    for (const Context::Chain& chain : context.chains)
      copy.chains.push_back({static_cast<std::uint32_t>(chain.count), static_cast<std::uint32_t>(chain.written)});
  }
  return true;
}

ContextDesk::Restored ContextDesk::restore(KeptContext kept, TimePoint now) {
  Shelf::Call call(shelf_);
  if (table_.find(kept.owner, kept.name) != nullptr) return Restored::kRefused;
  if (kept.end() <= now) {
    table_.ended_before(kept.owner);
    return Restored::kEnded;
  }
  Context context;
  std::size_t hash_count = 0;
  for (const KeptContext::Chain& chain : kept.chains) {
    if (chain.count == 0 || chain.count > kept.hashes.size() - hash_count) return Restored::kRefused;
    context.chains.push_back({.first = hash_count, .count = chain.count, .kept = {}, .written = chain.written});
    hash_count += chain.count;
  }
  if (hash_count == 0 || hash_count != kept.hashes.size() || hash_count > shelf_.config.chain_blocks_max ||
      kept.chains.size() > kContextChainsMax || kept.record->is_set() || !is_life(kept.life) ||
      kept.priority > kContextPriorityMax || !kept.place.is_of(hash_count))
    return Restored::kRefused;
  context.space_name = kept.record->id();
  static_cast<ContextFacts&>(context) = std::move(kept);
  context.why = Errc::kNotFound;
  if (!table_.has_room(context)) return Restored::kRefused;
  Context& added = table_.add_again(std::move(context), now);
  blocks_.keep_more(added, call.steps, now);  // the node may have served for a while already
  set_warming(added, true);
  return Restored::kBack;
}

void ContextDesk::use(const FoundChain& found, std::span<const BlockHash> hashes, bool is_read, TimePoint now) {
  const ContextEnds* const ends = found.space->context_ends.get();
  if (ends == nullptr || ends->empty()) return;
  ends->visit(hashes.first(found.prefix.block_count), [&](Context& context, std::size_t chain) {
    if (context.end() <= now) return;  // it is over, but not ended yet
    table_.used(context, now);
    if (is_read) table_.read(context, context.chains[chain].kept.size());
  });
}

void ContextDesk::close() {
  to_warm_.clear();
  table_.for_each([](Context& context) { context.is_warming = false; });
  blocks_.close();
}

Context* ContextDesk::live(std::string_view owner, std::string_view name, TimePoint now) {
  Context* const context = table_.find(owner, name);
  if (context == nullptr || context->end() <= now) return nullptr;
  blocks_.look_for_drops(*context);
  table_.stored(*context, now);
  return context;
}

/// Updates the context. Returns whether a shortfall is to be reported.
bool ContextDesk::look_at(Context& context, Steps& steps, TimePoint now) {
  steps.take(Steps::kBlock * (1 + context.chains.size()));
  blocks_.look_for_drops(context);
  table_.stored(context, now);  // later growth was not kept before
  blocks_.keep_more(context, steps, now);
  const bool is_news = context.kept_count < context.told_count;
  context.told_count = context.kept_count;
  return is_news && !blocks_.are_closed();
}

/// Takes the context out of the tables.
void ContextDesk::end(Context& context, ContextTable::Gone how, TimePoint now) {
  set_warming(context, false);
  blocks_.look_for_drops(context);
  table_.stored(context, now);
  blocks_.keep_nothing(context);
  table_.take(context, how);
}

void ContextDesk::end_due(TimePoint now, Steps& steps) {
  while (Context* const context = table_.next_ended(now, steps)) {
    steps.take(Steps::kBlock * (1 + context->chains.size()));
    end(*context, ContextTable::Gone::kExpired, now);
  }
}

void ContextDesk::set_warming(Context& context, bool is_warming) {
  context.is_warming = is_warming && shelf_.tier && !blocks_.are_closed();
  if (context.is_warming) {
    to_warm_.insert(context.id);
  } else {
    to_warm_.erase(context.id);
  }
}

ContextDesk::View ContextDesk::view_of(const Context& context) {
  return {.name = context.name,
          .tags = context.tags,
          .record = context.record,
          .wanted_count = context.hashes.size(),
          .kept_count = context.kept_count,
          .why = context.why,
          .lost_count = context.lost_count,
          .yielded_count = context.yielded_count,
          .life = context.life,
          .priority = context.priority,
          .created = context.created,
          .end = context.end(),
          .used = context.used,
          .written_tokens = context.written_tokens,
          .read_tokens = context.read_tokens,
          .stored_token_seconds = context.stored_token_seconds,
          .is_warming = context.is_warming};
}

ContextDesk::View ContextDesk::look_in_tiers(const Context& context) const {
  View view = view_of(context);
  view.memory_count = view.disk_count = 0;
  const SpaceTable::Space* const space = spaces_.find(context.space_name);
  if (space == nullptr) return view;
  for (const Context::Chain& chain : context.chains) {
    const auto hashes = context.hashes.view().subspan(chain.first, chain.count);
    const std::size_t memory = shelf_.pool.index().match(space->tree, hashes).block_count;
    *view.memory_count += memory;
    if (!shelf_.tier || memory == chain.count) continue;
    *view.disk_count += std::max(shelf_.tier->index().match(space->tree, hashes).block_count, memory) - memory;
  }
  return view;
}

}  // namespace kv
