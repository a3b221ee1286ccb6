// store/contexts/context_table.h: the contexts, their owners, and the order of their ends.
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
#include "store/contexts/context.h"

namespace kv {

struct ContextLimits {
  std::size_t count_max = 16384, blocks_max = 1 << 20;             ///< In the node, over all owners.
  std::size_t owner_count_max = 1024, owner_blocks_max = 1 << 18;  ///< Shared blocks count for each context.
  std::size_t owner_text_bytes_max = 1 << 20;                      ///< Names and tags.
  std::size_t owners_remembered_max = 1024;  ///< Owners without contexts; further ones are summed.
};

/// One owner's current contexts, and counters since the node started.
struct ContextTotals {
  std::string owner;
  std::size_t count = 0, text_bytes = 0, wanted_blocks = 0, kept_blocks = 0;
  std::uint64_t kept_bytes = 0;  ///< Shared blocks count for each context.
  std::uint64_t created = 0, expired = 0, deleted = 0, refused = 0;
  std::uint64_t lost_blocks = 0, yielded_blocks = 0, written_tokens = 0, read_tokens = 0;
  double stored_token_seconds = 0;
};

/// Contexts by owner and name. The table counts blocks but does not see them.
///   1. A name is found by its owner alone, and everything is counted for the owner.
///   2. No owner exceeds owner_count_max, owner_blocks_max and owner_text_bytes_max, and all together do not exceed
///      count_max and blocks_max. At a limit add() fails; contexts never end for others.
///   3. next_ended() names exactly the contexts whose end() has come. A use leaves the entry in place: a context with a
///      postponed end is examined again when its old turn comes.
///   4. next_below() names exactly the contexts that keep blocks.
///   5. The totals of an owner are sums over its present and past contexts.
/// Thread safety: the Store's lock. Time: steady clock, injected. Cost: O(log contexts).
class ContextTable {
 public:
  explicit ContextTable(ContextLimits limits = {}) : limits_(limits) {}

  /// Whether there is room for it, in place of `replaced` (may be nullptr): 0, kOverQuota (its owner's limits) or kBusy
  /// (the node's). Counts a refusal. `*reached` (may be nullptr): the reached limit, in words.
  Errc refuses(const Context& context, const Context* replaced, std::string* reached = nullptr);
  /// Requires: not refused, and a new name. Fills in id, created, begun and looked.
  Context& add(Context context, TimePoint now);
  /// As add(), for a context from before the node's restart: created and begun stay, and it does not count as created.
  Context& add_again(Context context, TimePoint now);
  bool has_room(const Context& context) const;  ///< As refuses(), without counting.
  void ended_before(const std::string& owner);  ///< One of the owner's contexts ended before it could be added again.
  Context* find(std::string_view owner, std::string_view name) const;
  Context* find(ContextId id) const;
  /// The owner's next contexts by name behind `after` ("": from the first on), until `visit` returns false.
  void visit(std::string_view owner, std::string_view after, const std::function<bool(Context&)>& visit) const;
  void for_each(const std::function<void(Context&)>& visit) const;  ///< In order of creation.
  /// Sets another life, from now on.
  void extend(Context& context, ContextLife life, TimePoint now);
  void set_priority(Context& context, std::uint8_t priority);
  /// The owner's contexts that keep blocks, in the order in which they give them up: the lowest priority first, among
  /// equals the latest. Returns the next one behind `*after` (nullptr: the first) below that priority, or nullptr.
  struct Turn {
    std::uint8_t priority;
    ContextId id;
  };
  Context* next_below(std::string_view owner, std::uint8_t priority, const Turn* after) const;
  /// Takes it out, and counts it as expired, deleted or replaced.
  enum class Gone : std::uint8_t { kExpired, kDeleted, kReplaced };
  std::unique_ptr<Context> take(Context& context, Gone how);
  /// A context whose end has come; nullptr without one, or without steps.
  Context* next_ended(TimePoint now, Steps& steps);
  /// Each context in turn, or nullptr.
  Context* next_to_look_at();

  // Changes of a context's blocks, for the totals.
  void kept(Context& context, std::ptrdiff_t more_blocks);  ///< A negative number means fewer.
  void lost(Context& context, std::size_t blocks);
  void yielded(Context& context, std::size_t blocks);
  void wrote(Context& context, std::size_t blocks);
  void read(Context& context, std::size_t blocks);
  void stored(Context& context, TimePoint now);  ///< Adds the time since the last call for the blocks kept now.
  void used(Context& context, TimePoint when);

  /// Count the table's changes: orders and ends; and uses, which may postpone an end.
  std::uint64_t order_count() const { return order_count_; }
  std::uint64_t use_count() const { return use_count_; }
  /// The next context by number behind `after`, or nullptr.
  Context* next_behind(ContextId after) const;

  std::size_t count() const { return by_id_.size(); }
  std::vector<ContextTotals> totals() const;  ///< By owner, then "(other)": the sum of forgotten ones.
  std::size_t used_bytes() const { return used_bytes_; }
  std::string check() const;  ///< For tests; empty, or the broken invariant.

 private:
  struct Owner {
    std::map<std::string, std::unique_ptr<Context>, std::less<>> contexts;
    ContextTotals totals;
    std::map<std::uint8_t, std::set<ContextId, std::greater<>>> keeping;  ///< By priority; contexts that keep blocks.
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
  std::set<std::pair<TimePoint, ContextId>> turns_;
  std::size_t block_count_ = 0, used_bytes_ = 0;
  std::uint64_t id_last_ = 0, order_count_ = 0, use_count_ = 0;
  ContextId looked_at_{};
  ContextTotals other_;
  bool has_other_ = false;
};

}  // namespace kv
