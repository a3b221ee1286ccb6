// store/desks/context_desk.h: prefixes kept in memory by name, for a time.
#pragma once

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "store/contexts/context_file.h"
#include "store/contexts/context_table.h"
#include "store/desks/context_blocks.h"
#include "store/desks/disk_desk.h"

namespace kv {

/// Named prefixes of chains that an owner keeps in memory for a time. Kept blocks count as retained: within
/// retained_fraction_max and the tenant's limit, once for all contexts and requests that keep them; the last keeper
/// releases them. A drop ends the keeping for all. When the bounds have no room for a block, the same owner's contexts
/// of lower priority give up blocks for it, lowest priority first, and among equals the latest first; each from its
/// chains' ends, and only blocks without another keeper. They keep the blocks again when there is room.
///   1. A context whose time is over is not found, and is ended by a later call.
///   2. Each shortfall is reported once (tend).
///   3. `to_warm_` has all contexts that are warming.
class ContextDesk {
 public:
  ContextDesk(Shelf& shelf, SpaceDesk& spaces, DiskDesk& disk)
      : shelf_(shelf), spaces_(spaces), disk_(disk), table_(shelf.config.contexts), blocks_(shelf, spaces, table_) {}

  // -- orders
  struct Order {
    std::string owner, name;
    std::vector<std::string> tags = {};
    SpaceId space{};
    std::vector<BlockHash> hashes;                 ///< One chain, unless chain_counts cuts it.
    std::vector<std::uint32_t> chain_counts = {};  ///< Lengths of several chains; hashes.size() in all.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;  ///< At most kContextPriorityMax.
    ContextPlace place = {};
  };
  struct View {
    std::string name;
    std::vector<std::string> tags;
    std::shared_ptr<const NamespaceRecord> record;
    std::size_t wanted_count = 0, kept_count = 0;  ///< Blocks.
    /// Why fewer are kept than wanted: kNotFound, not in memory so far; kBusy, retained_fraction_max; kOverQuota, the
    /// tenant's limit. 0: all are kept.
    Errc why{};
    std::uint64_t lost_count = 0;     ///< Kept blocks that were dropped.
    std::uint64_t yielded_count = 0;  ///< Kept blocks given up for contexts of higher priority.
    ContextLife life;
    std::uint8_t priority = kContextPriorityDefault;
    TimePoint created{}, end{};
    std::optional<TimePoint> used;
    std::uint64_t written_tokens = 0, read_tokens = 0;
    double stored_token_seconds = 0;
    bool is_warming = false;
    /// Only from find() and warm(): leading blocks in memory, kept or not, and the next on disk.
    std::optional<std::size_t> memory_count = {}, disk_count = {};
  };
  /// Keeps the leading blocks of each chain that are in memory; tend() adds blocks that come later. Replaces a context
  /// of the same name, which ends in the same step. Errors: kNoNamespace, kUnsupported (a set), kTooLarge
  /// (chain_blocks_max), kBadRequest (an empty name or list, counts that do not cut them or are more than
  /// kContextChainsMax, a life that is not 1 ns to kContextTtlMax), kOverQuota and kBusy (StoreConfig::contexts).
  /// Unchanged after an error, whose text names the given value and the exceeded bound.
  Result<View, Failure> create(Order order, TimePoint now);
  /// Sets another life, from now on, and, if given, another priority. Errors: kNotFound, kBadRequest.
  Result<View> extend(std::string_view owner, std::string_view name, ContextLife life, TimePoint now,
                      std::optional<std::uint8_t> priority);
  /// Returns the context's last state; its blocks are released over later calls. Errors: kNotFound.
  Result<View> remove(std::string_view owner, std::string_view name, TimePoint now);
  Result<View> find(std::string_view owner, std::string_view name, TimePoint now);
  struct Content {
    ContextId id{};  ///< A later context of the same name has another id.
    HashList hashes;
    ContextPlace place;
    std::vector<std::uint32_t> chain_counts;
  };
  Result<std::pair<View, Content>> tell(std::string_view owner, std::string_view name, TimePoint now);
  /// The owner's next contexts by name, behind `after` ("": from the first on).
  std::vector<View> list(std::string_view owner, std::string_view after, std::size_t count_max, TimePoint now);
  /// Ends all of the owner's contexts, some in each call; false: none are left.
  bool remove_all(std::string_view owner, TimePoint now);

  // -- warming: from disk to memory
  /// Starts or stops bringing the context's blocks from disk to memory (next_to_warm). Has no effect without a disk
  /// tier. Errors: kNotFound.
  Result<View> warm(std::string_view owner, std::string_view name, bool is_wanted, TimePoint now);
  /// Blocks of a context to read, offer as admitted, and commit. Then keep(), end_put() and unpin().
  struct WarmWork {
    ContextId context{};
    SpaceId space{};
    NamespaceId space_name;
    HashList hashes;
    std::size_t first = 0, count = 0;  ///< In `hashes`: the chain, up to the last block of this work.
    PinnedPrefix pinned;               ///< Blocks of that chain, all on disk.
    std::span<const BlockHash> chain() const { return hashes.view().subspan(first, count); }
  };
  /// About `bytes_max` of blocks that the next context in turn lacks, as far as the bounds on kept bytes have room:
  /// evictions for these blocks thus serve kept blocks only. Empty: idle now.
  std::optional<WarmWork> next_to_warm(std::uint64_t bytes_max, TimePoint now);
  bool is_warming(ContextId context) const;
  std::size_t warming_count() const { return to_warm_.size(); }
  /// Keeps the context's blocks that have come. True: more are left, call again.
  bool keep(ContextId context, TimePoint now);

  // -- upkeep
  /// A context that keeps fewer blocks than promised.
  struct News {
    std::string owner, name;
    std::size_t wanted_count, kept_count;
    std::uint64_t lost_count, yielded_count;
    Errc why;
  };
  /// Ends contexts whose time is over, releases their blocks, and checks some of the others for dropped blocks and for
  /// more blocks to keep. Call this periodically.
  std::vector<News> tend(TimePoint now);
  /// The first two count changes: `orders` counts orders and ends; `uses` counts uses, which may postpone an end.
  struct Changes {
    std::uint64_t orders = 0, uses = 0;
    std::size_t count = 0;
  };
  Changes changes() const { return {table_.order_count(), table_.use_count(), table_.count()}; }
  /// For context_file.h: appends some contexts behind `after` and moves `after` on; false: it was the end. Changes
  /// between the calls may be missed, or come in their old state.
  bool copy(ContextId& after, std::vector<KeptContext>& kept, TimePoint now);
  /// kEnded: its time is over, and it counts as expired. kRefused: its name is taken, or create() would refuse.
  enum class Restored : std::uint8_t { kBack, kEnded, kRefused };
  Restored restore(KeptContext kept, TimePoint now);
  /// Stored seconds up to the last visit of each context.
  std::vector<ContextTotals> totals() const { return table_.totals(); }

  // -- for other desks
  /// Postpones the ends of contexts whose kept blocks a request names. `is_read`: it received the blocks.
  void use(const FoundChain& found, std::span<const BlockHash> hashes, bool is_read, TimePoint now);
  void close();  ///< For shutdown: keeps nothing from now on.
  std::size_t used_bytes() const { return table_.used_bytes(); }
  std::string check() const;

 private:
  struct Warmable {
    std::optional<WarmWork> work;
    bool may_come = false;  ///< Later, but soon.
  };

  /// The context of that name, looked at for drops and with its figures up to now; null: there is none, or it has
  /// ended.
  Context* live(std::string_view owner, std::string_view name, TimePoint now);
  bool look_at(Context& context, Steps& steps, TimePoint now);
  void end(Context& context, ContextTable::Gone how, TimePoint now);
  void end_due(TimePoint now, Steps& steps);
  void set_warming(Context& context, bool is_warming);
  Warmable look_for_warm(Context& context, std::uint64_t bytes_max, Steps& steps, TimePoint now);
  static View view_of(const Context& context);
  View look_in_tiers(const Context& context) const;

  Shelf& shelf_;
  SpaceDesk& spaces_;
  DiskDesk& disk_;
  ContextTable table_;
  ContextBlocks blocks_;
  std::set<ContextId> to_warm_;  ///< Some have ended, or are complete.
  ContextId warmed_last_{};
};

}  // namespace kv
