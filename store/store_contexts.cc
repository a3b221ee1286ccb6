// store/store_contexts.cc: prefixes kept by name: their kept blocks, and their ends.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "store/context_ends.h"
#include "store/store_impl.h"

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

/// Reduces a chain to its first kept_count kept blocks.
void Store::Impl::was_dropped(Context& context, std::size_t chain, std::size_t kept_count) {
  Context::Chain& of = context.chains[chain];
  const std::size_t before = of.kept.size();
  KV_ASSERT(kept_count < before);
  const Space* const space = spaces.find(context.space);
  if (space != nullptr) space->context_ends->remove(context.hashes[of.first + before - 1], context, chain);
  if (kept_count > 0) {
    KV_ASSERT(space != nullptr);  // it has blocks, so it was not forgotten
    space->context_ends->add(context.hashes[of.first + kept_count - 1], context, chain);
  }
  // Blocks that the drop has cut off and not yet freed are still retained, for this context too.
  unkept.emplace_back(of.kept.begin() + static_cast<std::ptrdiff_t>(kept_count), of.kept.end());
  of.kept.resize(kept_count);
  of.written = std::min(of.written, kept_count);  // a block that comes again is written again
  context.why = Errc::kNotFound;
  contexts.lost(context, before - kept_count);
  contexts.kept(context, -static_cast<std::ptrdiff_t>(before - kept_count));
}

/// Its kept blocks wait in `unkept`.
void Store::Impl::keep_nothing(Context& context) {
  const Space* const space = spaces.find(context.space);
  for (std::size_t i = 0; i < context.chains.size(); ++i) {
    Context::Chain& chain = context.chains[i];
    if (chain.kept.empty()) continue;
    if (space != nullptr) space->context_ends->remove(context.hashes[chain.first + chain.kept.size() - 1], context, i);
    contexts.kept(context, -static_cast<std::ptrdiff_t>(chain.kept.size()));
    unkept.push_back(std::exchange(chain.kept, {}));
  }
}

/// A drop takes a block and all below it, and frees them from below: so in each chain all blocks from one place on are
/// gone.
void Store::Impl::look_for_drops(Context& context) {
  const auto is_here = [&](const Context::Kept& kept) {
    return pool.is_kept(kept.block, kept.retention) && pool.index().is_attached(kept.block);
  };
  for (std::size_t i = 0; i < context.chains.size(); ++i) {
    const auto& kept = context.chains[i].kept;
    if (kept.empty() || is_here(kept.back())) continue;
    const auto end = std::ranges::partition_point(kept, is_here);
    was_dropped(context, i, static_cast<std::size_t>(end - kept.begin()));
  }
}

Context* Store::Impl::live_context(std::string_view owner, std::string_view name, TimePoint now) {
  Context* const context = contexts.find(owner, name);
  if (context == nullptr || context->end() <= now) return nullptr;
  look_for_drops(*context);
  contexts.stored(*context, now);
  return context;
}

/// Takes the end block from `from`, which gives way to `context`, and from all other contexts that end in the same
/// block. False: that would not release the block, since it has another keeper, which keeps all before it as well.
bool Store::Impl::take_end(const Context& context, Context& from, std::size_t chain, std::vector<Given>& given) {
  const Context::Kept end = from.chains[chain].kept.back();
  const BlockPool::Retention& retention = pool.retained().find(end.block)->second;
  const Space& space = *spaces.find(from.space);
  const BlockHash hash = pool.index().hash(end.block);
  std::vector<Given> all;
  space.context_ends->visit({&hash, 1}, [&](Context& each, std::size_t i) {
    const bool gives_way = each.owner == context.owner && each.priority < context.priority;
    const Context::Kept& last = each.chains[i].kept.back();  // for a dropped block the retention differs
    if (gives_way && last.block == end.block && last.retention == end.retention) all.push_back({&each, i, end.block});
  });
  if (retention.is_on_request || all.size() != retention.context_count) return false;
  for (const Given& each : all) {
    Context::Chain& of = each.context->chains[each.chain];
    const Context::Kept last = of.kept.back();
    of.kept.pop_back();
    space.context_ends->remove(hash, *each.context, each.chain);
    if (!of.kept.empty())
      space.context_ends->add(each.context->hashes[of.first + of.kept.size() - 1], *each.context, each.chain);
    contexts.kept(*each.context, -1);
    pool.end_keep(last.block, last.retention);
    given.push_back(each);
  }
  return true;
}

void Store::Impl::give_back(std::vector<Given>& given) {
  for (; !given.empty(); given.pop_back()) {
    const Given& last = given.back();
    Context& context = *last.context;
    Context::Chain& of = context.chains[last.chain];
    ContextEnds& ends = *spaces.find(context.space)->context_ends;
    if (!of.kept.empty()) ends.remove(context.hashes[of.first + of.kept.size() - 1], context, last.chain);
    of.kept.push_back({last.block, pool.keep(last.block)});
    ends.add(context.hashes[of.first + of.kept.size() - 1], context, last.chain);
    contexts.kept(context, 1);
  }
}

/// Has the owner's contexts of lower priority give up blocks until there is room for this many bytes, or all is given,
/// or the steps are used up. A block that several of them keep can go once the last of them has come to its end there:
/// so they are asked again as long as one gives a block.
std::vector<Store::Impl::Given> Store::Impl::take_for(const Context& context, const Space& space, std::size_t bytes,
                                                      Steps& steps, TimePoint now) {
  std::vector<Given> given;
  let_go(steps);  // blocks being released make room by themselves
  if (!unkept.empty()) return given;
  for (std::size_t before = ~std::size_t{0}; given.size() != before;) {
    before = given.size();
    std::optional<ContextTable::Turn> turn;
    while (Context* const next = contexts.next_below(context.owner, context.priority, turn ? &*turn : nullptr)) {
      turn = {next->priority, next->id};
      look_for_drops(*next);
      contexts.stored(*next, now);
      steps.take(Steps::kBlock);
      for (std::size_t i = 0; i < next->chains.size(); ++i) {
        steps.take(Steps::kBlock);
        while (!next->chains[i].kept.empty()) {
          if (has_room_to_keep(space, bytes) || !steps.are_left()) return given;
          // Blocks of another tenant help only where the node's bound is in the way.
          const bool helps =
              !tenants || tenants->could_retain(space.owner, bytes) || spaces.find(next->space)->owner == space.owner;
          steps.take(Steps::kRemoval);
          if (!helps || !take_end(context, *next, i, given)) break;
        }
      }
    }
  }
  return given;
}

/// Makes room for one more block. False: contexts of lower priority have too little to give; all is unchanged.
bool Store::Impl::make_room(const Context& context, const Space& space, Steps& steps, TimePoint now) {
  const std::size_t bytes = space.record->block_bytes();
  const Errc why = is_over_retained(bytes) ? Errc::kBusy : Errc::kOverQuota;
  std::vector<Given> given = take_for(context, space, bytes, steps, now);
  if (!has_room_to_keep(space, bytes)) {
    give_back(given);
    return false;
  }
  for (const Given& each : given) {
    each.context->why = why;
    contexts.yielded(*each.context, 1);
  }
  return true;
}

/// Keeps further blocks, as far as memory has them and the bounds allow. `room_steps`: for other contexts' blocks.
void Store::Impl::keep_more(Context& context, Steps& steps, Steps& room_steps, TimePoint now) {
  if (are_contexts_closed || context.kept_count == context.hashes.size()) {
    context.why = context.kept_count == context.hashes.size() ? Errc{} : Errc::kDraining;
    return;
  }
  // A namespace without blocks may have been forgotten and opened again.
  Space* const found = context.kept_count > 0 ? spaces.find(context.space) : spaces.find(context.space_name);
  if (found == nullptr) {
    context.why = Errc::kNotFound;
    return;
  }
  Space& space = *found;
  context.space = space.id;
  const std::size_t block_bytes = space.record->block_bytes();
  Errc why{};
  for (std::size_t i = 0; i < context.chains.size() && why != Errc::kBusy && why != Errc::kOverQuota; ++i) {
    Context::Chain& chain = context.chains[i];
    const std::size_t before = chain.kept.size();
    while (chain.kept.size() < chain.count) {
      if (!steps.are_left()) break;
      steps.take(Steps::kBlock);
      const BlockId parent = chain.kept.empty() ? kNoBlock : chain.kept.back().block;
      const BlockId block =
          pool.index().find_child(space.tree, parent, context.hashes[chain.first + chain.kept.size()]);
      if (block == kNoBlock) {
        why = Errc::kNotFound;
        break;
      }
      if (!pool.is_retained(block) && !has_room_to_keep(space, block_bytes) &&
          !make_room(context, space, room_steps, now)) {
        const bool is_own = tenants && !tenants->could_retain(space.owner, block_bytes);
        why = is_own ? Errc::kOverQuota : Errc::kBusy;
        break;
      }
      chain.kept.push_back({block, pool.keep(block)});
    }
    const std::size_t more = chain.kept.size() - before;
    if (more == 0) continue;
    if (space.context_ends == nullptr) space.context_ends = std::make_shared<ContextEnds>();
    if (before > 0) space.context_ends->remove(context.hashes[chain.first + before - 1], context, i);
    space.context_ends->add(context.hashes[chain.first + chain.kept.size() - 1], context, i);
    contexts.kept(context, static_cast<std::ptrdiff_t>(more));
    if (chain.kept.size() > chain.written) {  // false after a restart, for blocks that come back
      contexts.wrote(context, chain.kept.size() - chain.written);
      chain.written = chain.kept.size();
    }
  }
  const bool is_whole = context.kept_count == context.hashes.size();
  if (why != Errc{} || is_whole) {
    context.why = why;
  } else if (context.why == Errc{}) {  // out of steps; a drop, most likely
    context.why = Errc::kNotFound;
  }
}

/// Updates the context. Returns whether a shortfall is to be reported.
bool Store::Impl::look_at(Context& context, Steps& steps, TimePoint now) {
  steps.take(Steps::kBlock * (1 + context.chains.size()));
  look_for_drops(context);
  contexts.stored(context, now);  // later growth was not kept before
  keep_more(context, steps, now);
  const bool is_news = context.kept_count < context.told_count;
  context.told_count = context.kept_count;
  return is_news && !are_contexts_closed;
}

/// Takes the context out of the tables.
std::unique_ptr<Context> Store::Impl::end_context(Context& context, ContextTable::Gone how, TimePoint now) {
  set_warming(context, false);
  look_for_drops(context);
  contexts.stored(context, now);
  keep_nothing(context);
  return contexts.take(context, how);
}

void Store::Impl::let_go(Steps& steps) {
  while (!unkept.empty() && steps.are_left()) {
    std::vector<Context::Kept>& kept = unkept.front();
    for (; !kept.empty() && steps.are_left(); kept.pop_back()) {
      steps.take(Steps::kRemoval);
      pool.end_keep(kept.back().block, kept.back().retention);
    }
    if (kept.empty()) unkept.pop_front();
  }
}

void Store::Impl::end_contexts(TimePoint now, Steps& steps) {
  while (Context* const context = contexts.next_ended(now, steps)) {
    steps.take(Steps::kBlock * (1 + context->chains.size()));
    end_context(*context, ContextTable::Gone::kExpired, now);
  }
}

void Store::Impl::end_all_keeps() {
  are_contexts_closed = true;
  to_warm.clear();
  contexts.for_each([&](Context& context) {
    context.is_warming = false;
    keep_nothing(context);
  });
  Steps all(~std::size_t{0});
  let_go(all);
}

void Store::Impl::use_contexts(const Found& found, std::span<const BlockHash> hashes, bool is_read, TimePoint now) {
  const ContextEnds* const ends = found.space->context_ends.get();
  if (ends == nullptr || ends->empty()) return;
  ends->visit(hashes.first(found.prefix.block_count), [&](Context& context, std::size_t chain) {
    if (context.end() <= now) return;  // it is over, but not ended yet
    contexts.used(context, now);
    if (is_read) contexts.read(context, context.chains[chain].kept.size());
  });
}

Store::ContextView Store::Impl::view_of(const Context& context) const {
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

Store::ContextView Store::Impl::look_in_tiers(const Context& context) const {
  ContextView view = view_of(context);
  view.memory_count = view.disk_count = 0;
  const Space* const space = spaces.find(context.space_name);
  if (space == nullptr) return view;
  for (const Context::Chain& chain : context.chains) {
    const auto hashes = context.hashes.view().subspan(chain.first, chain.count);
    const std::size_t memory = pool.index().match(space->tree, hashes).block_count;
    *view.memory_count += memory;
    if (!tier || memory == chain.count) continue;
    *view.disk_count += std::max(tier->index().match(space->tree, hashes).block_count, memory) - memory;
  }
  return view;
}

void Store::Impl::set_warming(Context& context, bool is_warming) {
  context.is_warming = is_warming && tier && !are_contexts_closed;
  if (context.is_warming) {
    to_warm.insert(context.id);
  } else {
    to_warm.erase(context.id);
  }
}

/// Requires a disk tier, and that keep_more() was called.
Store::Impl::Warmable Store::Impl::look_for_warm(Context& context, std::uint64_t bytes_max, Steps& steps,
                                                 TimePoint now) {
  Warmable found;
  found.may_come = loader != nullptr;  // the disk's blocks are not all known yet
  const Space* const space = spaces.find(context.space_name);
  if (space == nullptr) return found;
  const std::size_t block_bytes = space->record->block_bytes();
  const std::size_t count_max = std::max<std::size_t>(1, static_cast<std::size_t>(bytes_max / block_bytes));
  for (const Context::Chain& chain : context.chains) {
    const std::size_t kept = chain.kept.size();
    if (kept == chain.count) continue;
    const auto hashes = context.hashes.view().subspan(chain.first, chain.count);
    if (pool.index().match(space->tree, hashes).block_count > kept) {
      // The block is in memory but not kept: a bound is reached, or keep_more() has more to do.
      found.may_come = found.may_come || (context.why != Errc::kBusy && context.why != Errc::kOverQuota);
      continue;
    }
    const PrefixIndex::Prefix on_disk = tier->index().match(space->tree, hashes);
    if (on_disk.block_count <= kept) continue;
    std::size_t end = kept + std::min(count_max, on_disk.block_count - kept);
    // Room includes blocks that contexts of lower priority would give up, once the warm blocks have come.
    std::vector<Given> given;
    if (!has_room_to_keep(*space, (end - kept) * block_bytes))
      given = take_for(context, *space, (end - kept) * block_bytes, steps, now);
    while (end > kept && !has_room_to_keep(*space, (end - kept) * block_bytes)) --end;
    give_back(given);
    if (end == kept) {
      context.why = is_over_retained(block_bytes) ? Errc::kBusy : Errc::kOverQuota;
      continue;
    }
    std::vector<BlockId> blocks(on_disk.block_count);
    tier->index().blocks_of(on_disk, blocks);
    found.work.emplace();
    found.work->context = context.id;
    found.work->space = space->id;
    found.work->space_name = space->name;
    found.work->hashes = context.hashes;
    found.work->first = chain.first;
    found.work->count = end;
    for (std::size_t i = kept; i < end; ++i)
      found.work->pinned.spilled.push_back(pin_on_disk(*space, blocks[i], hashes[i], static_cast<std::uint32_t>(i)));
    return found;
  }
  return found;
}

Result<Store::ContextView, Failure> Store::create_context(ContextOrder order, TimePoint now) {
  Impl& impl = *impl_;
  Impl::Call call(impl);
  impl.end_contexts(now, call.steps);
  const Space* const space = impl.spaces.find(order.space);
  if (space == nullptr) return Failure(Errc::kNoNamespace);
  impl.spaces.use(*space);
  if (space->record->is_set()) return Failure(Errc::kUnsupported, "a set's blocks stand alone, contexts are of chains");
  const std::size_t hash_count = order.hashes.size();
  if (hash_count > impl.config.chain_blocks_max || hash_count == 0) {
    return Failure(
        hash_count == 0 ? Errc::kBadRequest : Errc::kTooLarge,
        "hashes: " + std::to_string(hash_count) + ", allowed are 1 to " + std::to_string(impl.config.chain_blocks_max));
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
  Context* const replaced = impl.contexts.find(context.owner, context.name);
  std::string reached;
  if (const Errc why = impl.contexts.refuses(context, replaced, &reached); why != Errc{}) return Failure(why, reached);
  Steps unbounded(~std::size_t{0});  // bounded by the named blocks
  if (replaced != nullptr) {
    impl.end_context(*replaced, ContextTable::Gone::kReplaced, now);
    // At once, or blocks that both name would count twice against the bounds. Under one lock, without evictions.
    impl.let_go(unbounded);
  }
  Context& added = impl.contexts.add(std::move(context), now);
  // The same holds for blocks that others give up. The search for such blocks is bounded.
  Steps room_steps(kStepsPerCall + hash_count * Steps::kRemoval);
  impl.keep_more(added, unbounded, room_steps, now);
  if (added.why == Errc::kOverQuota)
    static_cast<void>(impl.tenants->may_retain(space->owner, space->record->block_bytes()));  // counts the refusal
  return impl.view_of(added);
}

Result<Store::ContextView> Store::extend_context(std::string_view owner, std::string_view name, ContextLife life,
                                                 TimePoint now, std::optional<std::uint8_t> priority) {
  Impl::Call call(*impl_);
  impl_->end_contexts(now, call.steps);
  if (!is_life(life) || priority.value_or(0) > kContextPriorityMax) return Errc::kBadRequest;
  Context* const context = impl_->live_context(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  impl_->contexts.extend(*context, life, now);
  if (priority && *priority != context->priority) impl_->contexts.set_priority(*context, *priority);
  return impl_->view_of(*context);
}

Result<Store::ContextView> Store::delete_context(std::string_view owner, std::string_view name, TimePoint now) {
  Impl::Call call(*impl_);
  impl_->end_contexts(now, call.steps);
  Context* const context = impl_->live_context(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  const ContextView last = impl_->view_of(*context);
  impl_->end_context(*context, ContextTable::Gone::kDeleted, now);
  impl_->let_go(call.steps);
  return last;
}

Result<Store::ContextView> Store::find_context(std::string_view owner, std::string_view name, TimePoint now) {
  Context* const context = impl_->live_context(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  return impl_->look_in_tiers(*context);
}

Result<std::pair<Store::ContextView, Store::ContextContent>> Store::tell_context(std::string_view owner,
                                                                                 std::string_view name, TimePoint now) {
  Context* const context = impl_->live_context(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  ContextContent content{.id = context->id, .hashes = context->hashes, .place = context->place, .chain_counts = {}};
  for (const Context::Chain& chain : context->chains)
    content.chain_counts.push_back(static_cast<std::uint32_t>(chain.count));
  return std::pair(impl_->view_of(*context), std::move(content));
}

Result<Store::ContextView> Store::warm_context(std::string_view owner, std::string_view name, bool is_wanted,
                                               TimePoint now) {
  Context* const context = impl_->live_context(owner, name, now);
  if (context == nullptr) return Errc::kNotFound;
  impl_->set_warming(*context, is_wanted);
  return impl_->look_in_tiers(*context);
}

std::optional<Store::WarmWork> Store::next_to_warm(std::uint64_t bytes_max, TimePoint now) {
  Impl& impl = *impl_;
  Impl::Call call(impl);
  for (std::size_t left = impl.to_warm.size(); left > 0 && call.steps.are_left(); --left) {
    auto next = impl.to_warm.upper_bound(impl.warmed_last);
    if (next == impl.to_warm.end()) next = impl.to_warm.begin();
    impl.warmed_last = *next;
    Context* const context = impl.contexts.find(*next);
    if (context == nullptr || context->end() <= now) {
      impl.to_warm.erase(next);
      continue;
    }
    call.steps.take(Steps::kBlock * (1 + context->chains.size()));
    impl.look_for_drops(*context);
    impl.contexts.stored(*context, now);
    impl.keep_more(*context, call.steps, now);
    Impl::Warmable found = impl.look_for_warm(*context, bytes_max, call.steps, now);
    if (found.work) return std::move(found.work);
    if (!found.may_come) impl.set_warming(*context, false);
  }
  return std::nullopt;
}

bool Store::is_warming(ContextId context) const {
  const Context* const found = impl_->contexts.find(context);
  return found != nullptr && found->is_warming;
}

std::size_t Store::warming_count() const { return impl_->to_warm.size(); }

bool Store::keep_context(ContextId id, TimePoint now) {
  Impl::Call call(*impl_);
  Context* const context = impl_->contexts.find(id);
  if (context == nullptr) return false;
  impl_->look_for_drops(*context);  // the last kept block may have gone
  impl_->keep_more(*context, call.steps, now);
  return !call.steps.are_left() && context->kept_count < context->hashes.size();
}

std::vector<Store::ContextView> Store::list_contexts(std::string_view owner, std::string_view after,
                                                     std::size_t count_max, TimePoint now) {
  std::vector<ContextView> views;
  impl_->contexts.visit(owner, after, [&](Context& context) {
    if (views.size() >= count_max) return false;
    if (context.end() <= now) return true;
    impl_->look_for_drops(context);
    impl_->contexts.stored(context, now);
    views.push_back(impl_->view_of(context));
    return true;
  });
  return views;
}

bool Store::delete_contexts(std::string_view owner, TimePoint now) {
  Impl::Call call(*impl_);
  while (call.steps.are_left()) {
    Context* first = nullptr;
    impl_->contexts.visit(owner, "", [&](Context& context) {
      first = &context;
      return false;
    });
    if (first == nullptr) return false;
    call.steps.take(Steps::kBlock * (1 + first->chains.size()));
    impl_->end_context(*first, ContextTable::Gone::kDeleted, now);
  }
  return true;
}

std::vector<Store::ContextNews> Store::tend_contexts(TimePoint now) {
  Impl::Call call(*impl_);
  impl_->end_contexts(now, call.steps);
  impl_->let_go(call.steps);
  std::vector<ContextNews> news;
  for (std::size_t left = impl_->contexts.count(); left > 0 && call.steps.are_left(); --left) {
    Context& context = *impl_->contexts.next_to_look_at();
    if (!impl_->look_at(context, call.steps, now)) continue;
    news.push_back({context.owner, context.name, context.hashes.size(), context.kept_count, context.lost_count,
                    context.yielded_count, context.why});
  }
  return news;
}

Store::ContextChanges Store::context_changes() const {
  return {impl_->contexts.order_count(), impl_->contexts.use_count(), impl_->contexts.count()};
}

bool Store::copy_contexts(ContextId& after, std::vector<KeptContext>& kept, TimePoint now) {
  Impl::Call call(*impl_);
  while (call.steps.are_left()) {
    Context* const next = impl_->contexts.next_behind(after);
    if (next == nullptr) return false;
    Context& context = *next;
    after = context.id;
    call.steps.take(Steps::kRemoval + Steps::kBlock * (context.tags.size() + context.chains.size()));
    if (context.end() <= now) continue;
    impl_->look_for_drops(context);
    impl_->contexts.stored(context, now);
    KeptContext& copy = kept.emplace_back();
    static_cast<ContextFacts&>(copy) = context;
    for (const Context::Chain& chain : context.chains)
      copy.chains.push_back({static_cast<std::uint32_t>(chain.count), static_cast<std::uint32_t>(chain.written)});
  }
  return true;
}

Store::Restored Store::restore_context(KeptContext kept, TimePoint now) {
  Impl::Call call(*impl_);
  ContextTable& contexts = impl_->contexts;
  if (contexts.find(kept.owner, kept.name) != nullptr) return Restored::kRefused;
  if (kept.end() <= now) {
    contexts.ended_before(kept.owner);
    return Restored::kEnded;
  }
  Context context;
  std::size_t hash_count = 0;
  for (const KeptContext::Chain& chain : kept.chains) {
    if (chain.count == 0 || chain.count > kept.hashes.size() - hash_count) return Restored::kRefused;
    context.chains.push_back({.first = hash_count, .count = chain.count, .kept = {}, .written = chain.written});
    hash_count += chain.count;
  }
  if (hash_count == 0 || hash_count != kept.hashes.size() || hash_count > impl_->config.chain_blocks_max ||
      kept.chains.size() > kContextChainsMax || kept.record->is_set() || !is_life(kept.life) ||
      kept.priority > kContextPriorityMax || !kept.place.is_of(hash_count))
    return Restored::kRefused;
  context.space_name = kept.record->id();
  static_cast<ContextFacts&>(context) = std::move(kept);
  context.why = Errc::kNotFound;
  if (!contexts.has_room(context)) return Restored::kRefused;
  Context& added = contexts.add_again(std::move(context), now);
  impl_->keep_more(added, call.steps, now);  // the node may have served for a while already
  impl_->set_warming(added, true);
  return Restored::kBack;
}

std::vector<ContextTotals> Store::context_totals() const { return impl_->contexts.totals(); }

}  // namespace kv
