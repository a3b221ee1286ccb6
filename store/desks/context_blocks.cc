#include "store/desks/context_blocks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "store/contexts/context_ends.h"

namespace kv {

void ContextBlocks::keep_more(Context& context, Steps& steps, Steps& room_steps, TimePoint now) {
  if (are_closed_ || context.kept_count == context.hashes.size()) {
    context.why = context.kept_count == context.hashes.size() ? Errc{} : Errc::kDraining;
    return;
  }
  // A namespace without blocks may have been forgotten and opened again.
  Space* const found = context.kept_count > 0 ? spaces_.find(context.space) : spaces_.find(context.space_name);
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
          shelf_.pool.index().find_child(space.tree, parent, context.hashes[chain.first + chain.kept.size()]);
      if (block == kNoBlock) {
        why = Errc::kNotFound;
        break;
      }
      if (!shelf_.pool.is_retained(block) && !has_room(space, block_bytes) &&
          !make_room(context, space, room_steps, now)) {
        const bool is_own = shelf_.tenants && !shelf_.tenants->could_retain(space.owner, block_bytes);
        why = is_own ? Errc::kOverQuota : Errc::kBusy;
        break;
      }
      chain.kept.push_back({block, shelf_.pool.keep(block)});
    }
    const std::size_t more = chain.kept.size() - before;
    if (more == 0) continue;
    if (space.context_ends == nullptr) space.context_ends = std::make_shared<ContextEnds>();
    if (before > 0) space.context_ends->remove(context.hashes[chain.first + before - 1], context, i);
    space.context_ends->add(context.hashes[chain.first + chain.kept.size() - 1], context, i);
    contexts_.kept(context, static_cast<std::ptrdiff_t>(more));
    if (chain.kept.size() > chain.written) {  // false after a restart, for blocks that come back
      contexts_.wrote(context, chain.kept.size() - chain.written);
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

void ContextBlocks::keep_nothing(Context& context) {
  const Space* const space = spaces_.find(context.space);
  for (std::size_t i = 0; i < context.chains.size(); ++i) {
    Context::Chain& chain = context.chains[i];
    if (chain.kept.empty()) continue;
    if (space != nullptr) space->context_ends->remove(context.hashes[chain.first + chain.kept.size() - 1], context, i);
    contexts_.kept(context, -static_cast<std::ptrdiff_t>(chain.kept.size()));
    unkept_.push_back(std::exchange(chain.kept, {}));
  }
}

void ContextBlocks::look_for_drops(Context& context) {
  const auto is_here = [&](const Context::Kept& kept) {
    return shelf_.pool.is_kept(kept.block, kept.retention) && shelf_.pool.index().is_attached(kept.block);
  };
  for (std::size_t i = 0; i < context.chains.size(); ++i) {
    const auto& kept = context.chains[i].kept;
    if (kept.empty() || is_here(kept.back())) continue;
    const auto end = std::ranges::partition_point(kept, is_here);
    was_dropped(context, i, static_cast<std::size_t>(end - kept.begin()));
  }
}

/// Reduces a chain to its first kept_count kept blocks.
void ContextBlocks::was_dropped(Context& context, std::size_t chain, std::size_t kept_count) {
  Context::Chain& of = context.chains[chain];
  const std::size_t before = of.kept.size();
  KV_ASSERT(kept_count < before);
  const Space* const space = spaces_.find(context.space);
  if (space != nullptr) space->context_ends->remove(context.hashes[of.first + before - 1], context, chain);
  if (kept_count > 0) {
    KV_ASSERT(space != nullptr);  // it has blocks, so it was not forgotten
    space->context_ends->add(context.hashes[of.first + kept_count - 1], context, chain);
  }
  // Blocks that the drop has cut off and not yet freed are still retained, for this context too.
  unkept_.emplace_back(of.kept.begin() + static_cast<std::ptrdiff_t>(kept_count), of.kept.end());
  of.kept.resize(kept_count);
  of.written = std::min(of.written, kept_count);  // a block that comes again is written again
  context.why = Errc::kNotFound;
  contexts_.lost(context, before - kept_count);
  contexts_.kept(context, -static_cast<std::ptrdiff_t>(before - kept_count));
}

void ContextBlocks::let_go(Steps& steps) {
  while (!unkept_.empty() && steps.are_left()) {
    std::vector<Context::Kept>& kept = unkept_.front();
    for (; !kept.empty() && steps.are_left(); kept.pop_back()) {
      steps.take(Steps::kRemoval);
      shelf_.pool.end_keep(kept.back().block, kept.back().retention);
    }
    if (kept.empty()) unkept_.pop_front();
  }
}

void ContextBlocks::close() {
  are_closed_ = true;
  contexts_.for_each([&](Context& context) { keep_nothing(context); });
  Steps all(~std::size_t{0});
  let_go(all);
}

std::size_t ContextBlocks::room_for(const Context& context, const Space& space, std::size_t count, Steps& steps,
                                    TimePoint now) {
  const std::size_t block_bytes = space.record->block_bytes();
  std::vector<Given> given;
  if (!has_room(space, count * block_bytes)) given = take_for(context, space, count * block_bytes, steps, now);
  while (count > 0 && !has_room(space, count * block_bytes)) --count;
  give_back(given);
  return count;
}

/// Makes room for one more block. False: contexts of lower priority have too little to give; all is unchanged.
bool ContextBlocks::make_room(const Context& context, const Space& space, Steps& steps, TimePoint now) {
  const std::size_t bytes = space.record->block_bytes();
  const Errc why = shelf_.is_over_retained(bytes) ? Errc::kBusy : Errc::kOverQuota;
  std::vector<Given> given = take_for(context, space, bytes, steps, now);
  if (!has_room(space, bytes)) {
    give_back(given);
    return false;
  }
  for (const Given& each : given) {
    each.context->why = why;
    contexts_.yielded(*each.context, 1);
  }
  return true;
}

/// Has the owner's contexts of lower priority give up blocks until there is room for this many bytes, or all is given,
/// or the steps are used up. A block that several of them keep can go once the last of them has come to its end there:
/// so they are asked again as long as one gives a block.
std::vector<ContextBlocks::Given> ContextBlocks::take_for(const Context& context, const Space& space, std::size_t bytes,
                                                          Steps& steps, TimePoint now) {
  std::vector<Given> given;
  let_go(steps);  // blocks being released make room by themselves
  if (!unkept_.empty()) return given;
  for (std::size_t before = ~std::size_t{0}; given.size() != before;) {
    before = given.size();
    std::optional<ContextTable::Turn> turn;
    while (Context* const next = contexts_.next_below(context.owner, context.priority, turn ? &*turn : nullptr)) {
      turn = {next->priority, next->id};
      look_for_drops(*next);
      contexts_.stored(*next, now);
      steps.take(Steps::kBlock);
      for (std::size_t i = 0; i < next->chains.size(); ++i) {
        steps.take(Steps::kBlock);
        while (!next->chains[i].kept.empty()) {
          if (has_room(space, bytes) || !steps.are_left()) return given;
          // Blocks of another tenant help only where the node's bound is in the way.
          const bool helps = !shelf_.tenants || shelf_.tenants->could_retain(space.owner, bytes) ||
                             spaces_.find(next->space)->owner == space.owner;
          steps.take(Steps::kRemoval);
          if (!helps || !take_end(context, *next, i, given)) break;
        }
      }
    }
  }
  return given;
}

/// Takes the end block from `from`, which gives way to `context`, and from all other contexts that end in the same
/// block. False: that would not release the block, since it has another keeper, which keeps all before it as well.
bool ContextBlocks::take_end(const Context& context, Context& from, std::size_t chain, std::vector<Given>& given) {
  const Context::Kept end = from.chains[chain].kept.back();
  const BlockPool::Retention& retention = shelf_.pool.retained().find(end.block)->second;
  const Space& space = *spaces_.find(from.space);
  const BlockHash hash = shelf_.pool.index().hash(end.block);
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
    contexts_.kept(*each.context, -1);
    shelf_.pool.end_keep(last.block, last.retention);
    given.push_back(each);
  }
  return true;
}

void ContextBlocks::give_back(std::vector<Given>& given) {
  for (; !given.empty(); given.pop_back()) {
    const Given& last = given.back();
    Context& context = *last.context;
    Context::Chain& of = context.chains[last.chain];
    ContextEnds& ends = *spaces_.find(context.space)->context_ends;
    if (!of.kept.empty()) ends.remove(context.hashes[of.first + of.kept.size() - 1], context, last.chain);
    of.kept.push_back({last.block, shelf_.pool.keep(last.block)});
    ends.add(context.hashes[of.first + of.kept.size() - 1], context, last.chain);
    contexts_.kept(context, 1);
  }
}

}  // namespace kv
