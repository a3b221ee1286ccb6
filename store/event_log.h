// store/event_log.h: what came and went lately, by number, for those who keep a list of what is here: routers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "index/prefix_index.h"

namespace kv {

enum class BlockTier : std::uint8_t { kMemory, kDisk };

/// Some of what the log says, or (Store::list_blocks) of what is here.
struct EventPage {
  struct Event {
    bool is_stored = false;  ///< Else removed. From this tier: the other one may have the block as well.
    BlockTier tier{};
    std::uint32_t space = 0;      ///< Which of `spaces`.
    BlockHash hash, parent = {};  ///< All zero: a first block, or a set's. Of what was stored,
    std::uint32_t position = 0;   ///< and its place in the prefix; of a set its length.
  };
  /// What the log has of one owner's namespaces.
  struct Lane {
    std::shared_ptr<const NamespaceRecord> record;  ///< Of one of these. nullptr: of several owners.
    std::uint64_t oldest = 0;                       ///< It has nothing before this number.
  };
  /// The log has nothing before this number of what an asker may see.
  template <class MaySee>
  std::uint64_t oldest(const MaySee& may_see) const {
    std::uint64_t number = 0;
    for (const Lane& lane : lanes) {
      if (lane.record == nullptr || may_see(*lane.record)) number = std::max(number, lane.oldest);
    }
    return number;
  }
  std::vector<std::shared_ptr<const NamespaceRecord>> spaces;  ///< Each once.
  std::vector<Event> events;
  std::vector<Lane> lanes;  ///< Of all owners of whom something was forgotten.
  std::uint64_t next = 0;   ///< What comes behind these events begins here.
  bool is_unknown = false;  ///< There is no such number here: look at what is here, then go on from `next`.

  /// The index of a record in `spaces`, where it is added if need be.
  std::uint32_t index_of(const std::shared_ptr<const NamespaceRecord>& record);

 private:
  std::unordered_map<const NamespaceRecord*, std::uint32_t> known_;
};

/// The last changes of what a match can find, in memory and on disk; `count_max` in all. Changes have numbers, one
/// after the other from 0 on. What was forgotten is told as a gap, never left out in silence:
///   1. read(n) tells of all changes from n on, in their order, but for those of owners whose lane begins behind n.
///   2. Whoever lists all blocks, in any number of calls, and then applies all changes since the first of these calls,
///      ends with what is here: a change names one block, and the last one of a block counts.
///   3. A namespace's record is kept as long as some change in the log is of it.
///   4. At most kClosedMax of these records are of namespaces that were forgotten. Before there are more, the lane with
///      most of them is emptied.
///   5. Each owner has a lane. While the log is full, a lane that has its share of it, or more, forgets for itself, and
///      one that has less for the longest one: nobody's changes are forgotten for others below an even share.
/// Thread safety: none, the Store's lock covers it. Memory: some 100 bytes a change. Cost: some ten ns.
class EventLog {
 public:
  static constexpr std::size_t kClosedMax = 1024;
  static constexpr std::size_t kLanesMax = 256;  ///< Further owners have one together.

  explicit EventLog(std::size_t count_max);  ///< At least 1.
  ~EventLog();

  void open(TreeId tree, std::shared_ptr<const NamespaceRecord> record);
  void close(TreeId tree);

  void stored(BlockTier tier, TreeId tree, const BlockHash& hash, const BlockHash* parent, std::uint32_t position) {
    Entry& entry = append(tree, tier, /*is_stored=*/true, hash);
    entry.parent = parent == nullptr ? BlockHash{} : *parent;
    entry.position = position;
  }
  void removed(BlockTier tier, TreeId tree, const BlockHash& hash) { append(tree, tier, /*is_stored=*/false, hash); }
  /// More has changed in the tree than can be told: whoever has not looked at everything since has a gap.
  void lose(TreeId tree);

  /// Appends what was from number `from` on, `count_max` changes at most, and sets the page's other members.
  void read(std::uint64_t from, std::size_t count_max, EventPage& page) const;
  std::uint64_t next() const { return next_; }
  std::size_t count() const { return count_; }
  std::size_t record_count() const { return spaces_.size() - free_.size(); }

 private:
  struct Entry {
    std::uint64_t number = 0;
    BlockHash hash, parent;
    std::uint32_t position = 0;
    std::uint32_t space = 0;
    BlockTier tier{};
    bool is_stored = false;
  };
  struct Lane;
  struct Space {
    std::shared_ptr<const NamespaceRecord> record;
    Lane* lane = nullptr;
    std::size_t event_count = 0;
    bool is_open = false;
  };

  Lane& lane_of(const std::shared_ptr<const NamespaceRecord>& record);
  Entry& append(TreeId tree, BlockTier tier, bool is_stored, const BlockHash& hash);
  void forget_oldest(Lane& lane);
  void empty(Lane& lane);
  void release(std::uint32_t space);

  const std::size_t count_max_;
  std::size_t count_ = 0;
  std::uint64_t next_ = 0;
  std::map<std::string, std::unique_ptr<Lane>> lanes_;  ///< By owner; those with changes, or open namespaces.
  std::vector<Space> spaces_;
  std::vector<std::uint32_t> free_;     ///< Of spaces_.
  std::vector<std::uint32_t> of_tree_;  ///< By TreeId.
  std::size_t closed_count_ = 0;
};

}  // namespace kv
