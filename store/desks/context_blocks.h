// store/desks/context_blocks.h: the blocks that contexts keep in memory.
#pragma once

#include <deque>

#include "store/contexts/context_table.h"
#include "store/desks/space_desk.h"

namespace kv {

/// Keeps the blocks of a ContextDesk's contexts, as far as memory has them and the bounds allow. Where the bounds have
/// no room for a block, the same owner's contexts of lower priority give up blocks for it.
///   1. A context keeps leading blocks of its chains: Context::Chain::kept, until look_for_drops() at the latest.
///   2. Space::context_ends has the last kept block of each chain, and nothing else.
///   3. Contexts give up only blocks without another keeper, and only if that makes enough room.
///   4. A block that nobody keeps any more is released by let_go(), over several calls.
class ContextBlocks {
 public:
  using Space = SpaceTable::Space;

  ContextBlocks(Shelf& shelf, SpaceDesk& spaces, ContextTable& contexts)
      : shelf_(shelf), spaces_(spaces), contexts_(contexts) {}

  /// Keeps further blocks, and sets Context::why. `room_steps`: for other contexts' blocks.
  void keep_more(Context& context, Steps& steps, TimePoint now) { keep_more(context, steps, steps, now); }
  void keep_more(Context& context, Steps& steps, Steps& room_steps, TimePoint now);
  void keep_nothing(Context& context);
  /// A drop takes a block and all below it, and frees them from below: so in each chain all blocks from one place on
  /// are gone.
  void look_for_drops(Context& context);
  /// For how many of `count` more blocks there is room, with those that contexts of lower priority would give up.
  std::size_t room_for(const Context& context, const Space& space, std::size_t count, Steps& steps, TimePoint now);
  void let_go(Steps& steps);
  void close();  ///< Keeps nothing from now on.
  bool are_closed() const { return are_closed_; }
  std::string check() const;

 private:
  /// A chain's end block that a context has given up. It stays in memory until the end of the call.
  struct Given {
    Context* context;
    std::size_t chain;
    BlockId block;
  };
  bool has_room(const Space& space, std::size_t bytes) const {
    return !shelf_.is_over_retained(bytes) && (!shelf_.tenants || shelf_.tenants->could_retain(space.owner, bytes));
  }
  void was_dropped(Context& context, std::size_t chain, std::size_t kept_count);
  std::vector<Given> take_for(const Context& context, const Space& space, std::size_t bytes, Steps& steps,
                              TimePoint now);
  bool take_end(const Context& context, Context& from, std::size_t chain, std::vector<Given>& given);
  void give_back(std::vector<Given>& given);
  bool make_room(const Context& context, const Space& space, Steps& steps, TimePoint now);

  Shelf& shelf_;
  SpaceDesk& spaces_;
  ContextTable& contexts_;
  std::deque<std::vector<Context::Kept>> unkept_;  ///< Blocks of ended contexts, to be released from the last on.
  bool are_closed_ = false;
};

}  // namespace kv
