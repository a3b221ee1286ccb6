// store/tables/event_log.h: recent changes, by number, for routers, which mirror the node's contents.
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

/// Some changes of the log, or (Store::list_blocks) some of the present blocks.
struct EventPage {
  struct Event {
    bool is_stored = false;  ///< Else removed. Concerns this tier only: the other one may have the block as well.
    BlockTier tier{};
    std::uint32_t space = 0;
    BlockHash hash, parent = {};  ///< `parent`: only if stored; all zero for a first block and in sets.
    std::uint32_t position = 0;   ///< Only if stored: its place in the prefix; for a set its length.
  };
  /// The log's range for one owner's namespaces.
  struct Track {
    std::shared_ptr<const NamespaceRecord> record;  ///< One of these. nullptr: several owners.
    std::uint64_t oldest = 0;                       ///< Changes before this number are forgotten.
  };
  /// The number below which an asker's log is incomplete.
  template <class MaySee>
  std::uint64_t oldest(const MaySee& may_see) const {
    std::uint64_t number = 0;
    for (const Track& track : tracks) {
      if (track.record == nullptr || may_see(*track.record)) number = std::max(number, track.oldest);
    }
    return number;
  }
  std::vector<std::shared_ptr<const NamespaceRecord>> spaces;
  std::vector<Event> events;
  std::vector<Track> tracks;  ///< For all owners with forgotten changes.
  std::uint64_t next = 0;     ///< The number behind these events.
  bool is_unknown = false;    ///< The number is not in this log: list the present blocks, then go on from `next`.

  /// The index of a record in `spaces`; adds it if absent.
  std::uint32_t index_of(const std::shared_ptr<const NamespaceRecord>& record);

 private:
  std::unordered_map<const NamespaceRecord*, std::uint32_t> known_;
};

/// The last changes of a match's results, in memory and on disk; `count_max` in all. Changes are numbered consecutively
/// from 0. Forgotten changes are reported as a gap:
///   1. read(n) gives all changes from n on, in order, except for owners whose track begins behind n.
///   2. A reader that lists all blocks, in any number of calls, and then applies all changes since the first of these
///      calls, ends with the node's contents: a change names one block, and the last one of a block counts.
///   3. A namespace's record is kept as long as the log has a change in that namespace.
///   4. At most kClosedMax of these records belong to forgotten namespaces. Before there are more, the track with most
///      of them is emptied.
///   5. Each owner has a track. In a full log, a track at or above its even share forgets its own oldest change, and a
///      track below its share that of the longest track: below an even share, an owner keeps all changes.
/// Thread safety: the Store's lock. Memory: some 100 bytes a change. Cost: some ten ns.
class EventLog {
 public:
  static constexpr std::size_t kClosedMax = 1024;
  static constexpr std::size_t kTracksMax = 256;  ///< Further owners share one.

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
  /// Records a gap instead of the tree's many changes: readers must list the blocks again.
  void lose(TreeId tree);

  /// Appends the changes from number `from` on, `count_max` at most, and sets the page's other members.
  void read(std::uint64_t from, std::size_t count_max, EventPage& page) const;
  std::uint64_t next() const { return next_; }
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
  struct Track;
  struct Space {
    std::shared_ptr<const NamespaceRecord> record;
    Track* track = nullptr;
    std::size_t event_count = 0;
    bool is_open = false;
  };

  Track& track_of(const std::shared_ptr<const NamespaceRecord>& record);
  Entry& append(TreeId tree, BlockTier tier, bool is_stored, const BlockHash& hash);
  void forget_oldest(Track& track);
  void empty(Track& track);
  void release(std::uint32_t space);

  const std::size_t count_max_;
  std::size_t count_ = 0;
  std::uint64_t next_ = 0;
  std::map<std::string, std::unique_ptr<Track>> tracks_;  ///< By owner; those with changes, or open namespaces.
  std::vector<Space> spaces_;
  std::vector<std::uint32_t> free_;  ///< In spaces_.
  std::vector<std::uint32_t> of_tree_;
  std::size_t closed_count_ = 0;
};

}  // namespace kv
