// store/context_table.h: which contexts there are, whose they are, and which ends next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "index/steps.h"
#include "store/context.h"

namespace kv {

struct ContextLimits {
  std::size_t count_max = 16384, blocks_max = 1 << 20;             ///< In the node, of all owners.
  std::size_t owner_count_max = 1024, owner_blocks_max = 1 << 18;  ///< Blocks as named, shared ones for each context.
  std::size_t owner_text_bytes_max = 1 << 20;                      ///< Names and tags.
  std::size_t owners_remembered_max = 1024;  ///< Whose counters are kept when they have no context; others are summed.
};

/// What one owner has now, and counters since the node started.
struct ContextTotals {
  std::string owner;
  std::size_t count = 0, text_bytes = 0, wanted_blocks = 0, kept_blocks = 0;
  std::uint64_t kept_bytes = 0;  ///< Shared blocks for each context.
  std::uint64_t created = 0, expired = 0, deleted = 0, refused = 0;
  std::uint64_t lost_blocks = 0, yielded_blocks = 0, written_tokens = 0, read_tokens = 0;
  double stored_token_seconds = 0;
};

/// Contexts by owner and name. Knows nothing of the blocks but how many there are.
///   1. A name is found by its owner alone, and all that is counted is counted for the owner.
///   2. No owner has more than owner_count_max, owner_blocks_max and owner_text_bytes_max, and all together no more
///   than
///      count_max and blocks_max. At a limit add() fails; no context ever ends for another.
///   3. next_ended() names each context whose end() has come, and no other. A use moves no entry: one whose end was put
///      off is looked at again when its old turn comes.
///   4. next_below() names each context that keeps something, and no other.
///   5. The totals of an owner are sums over its contexts, and what those that are gone had come to.
/// Thread safety: none, the Store's lock covers it. Time: steady clock, injected. Cost: O(log contexts).
class ContextTable {
 public:
  explicit ContextTable(ContextLimits limits = {}) : limits_(limits) {}

  /// Whether there is room for it, in place of `replaced` (may be nullptr): no error, kOverQuota (its owner's limits)
  /// or kBusy (the node's). A refusal is counted.
  /// `*reached` (may be nullptr): which limit, in words.
  Errc refuses(const Context& context, const Context* replaced, std::string* reached = nullptr);
  /// Requires: no refusal, and no such name. Fills in id, created, begun and looked.
  Context& add(Context context, TimePoint now);
  /// As add(), of what is older than this life of the node: created and begun stay, and it does not count as created.
  Context& add_again(Context context, TimePoint now);
  bool has_room(const Context& context) const;  ///< As refuses(), and nothing is counted.
  void ended_before(const std::string& owner);  ///< One of the owner's had ended when it would have been added again.
  Context* find(std::string_view owner, std::string_view name) const;
  Context* find(ContextId id) const;
  /// The owner's next ones by name behind `after` ("": from the first on), until `visit` returns false.
  void visit(std::string_view owner, std::string_view after, const std::function<bool(Context&)>& visit) const;
  void for_each(const std::function<void(Context&)>& visit) const;  ///< In order of creation.
  /// Another life, from now on.
  void extend(Context& context, ContextLife life, TimePoint now);
  void set_priority(Context& context, std::uint8_t priority);
  /// Of the owner's contexts that keep something, in the order in which they give it up: the lowest priority first, of
  /// equals the latest. The next one behind `*after` (nullptr: the first) below that priority; nullptr: none.
  struct Turn {
    std::uint8_t priority;
    ContextId id;
  };
  Context* next_below(std::string_view owner, std::uint8_t priority, const Turn* after) const;
  /// Takes it out. `is_expired`: else it counts as deleted, or replaced.
  enum class Gone : std::uint8_t { kExpired, kDeleted, kReplaced };
  std::unique_ptr<Context> take(Context& context, Gone how);
  /// One whose end has come; nullptr: there is none, or no steps are left.
  Context* next_ended(TimePoint now, Steps& steps);
  /// Each in turn; nullptr: there is none.
  Context* next_to_look_at();

  // What happens to its blocks; for the totals.
  void kept(Context& context, std::ptrdiff_t more_blocks);  ///< Of which some are fewer.
  void lost(Context& context, std::size_t blocks);
  void yielded(Context& context, std::size_t blocks);
  void wrote(Context& context, std::size_t blocks);
  void read(Context& context, std::size_t blocks);
  void stored(Context& context, TimePoint now);  ///< What is kept now was kept since the last call.
  void used(Context& context, TimePoint when);

  /// Grow with each of the table's changes: by what was ordered, and ends; and by uses, which may put off an end.
  std::uint64_t order_count() const { return order_count_; }
  std::uint64_t use_count() const { return use_count_; }
  /// The next one by number behind `after`; nullptr: there is none.
  Context* next_behind(ContextId after) const;

  std::size_t count() const { return by_id_.size(); }
  std::size_t block_count() const { return block_count_; }
  std::vector<ContextTotals> totals() const;  ///< By owner; the last one, if "(other)", of those no longer told apart.
  std::size_t used_bytes() const { return used_bytes_; }
  std::string check() const;  ///< For tests; empty, or what is broken.

 private:
  struct Owner {
    std::map<std::string, std::unique_ptr<Context>, std::less<>> contexts;
    ContextTotals totals;
    std::map<std::uint8_t, std::set<ContextId, std::greater<>>> keeping;  ///< By priority. Those that keep something.
  };
  Owner& owner_of(const Context& context) { return owners_.find(context.owner)->second; }
  Owner& make_owner(const std::string& name);
  Context& insert(Context context, TimePoint now);
  Errc lacks_room(const Context& context, const Context* replaced, std::string* reached) const;
  void forget_owners();
  static std::size_t bytes_of(const Context& context);

  const ContextLimits limits_;
  std::map<std::string, Owner, std::less<>> owners_;
  std::map<ContextId, Context*> by_id_;
  std::set<std::pair<TimePoint, ContextId>> turns_;  ///< Context::turn.
  std::size_t block_count_ = 0, used_bytes_ = 0;
  std::uint64_t id_last_ = 0, order_count_ = 0, use_count_ = 0;
  ContextId looked_at_{};
  ContextTotals other_;
  bool has_other_ = false;
};

}  // namespace kv
