// gpu/staging.h: blocks between host memory and a device's pages. A block enters as host memory that a get has filled,
// and leaves layer by layer in the engine's pages, layer 0 first. A store goes the other way.
//
// Blocks in a cache are many small pieces; a copy for each costs up to eight times the bytes' own time. So they cross
// the bus in large copies, into a ring of buffers on the device, and one kernel a buffer puts them where they belong:
//
//     blocks (host)  --copy lane-->  slot 0, 1, 2, 0 ...  --kernel lane-->  pages
//
//     copy lane      c0 -> slot 0   c1 -> slot 1   c2 -> slot 2   [k0 passed] c3 -> slot 0 ...
//     kernel lane    [c0 passed] k0 [c1 passed] k1 ...
//
// Small totals skip the rings: a kernel reads page-locked memory itself, which saves two waits. How small is measured
// at start. Blocks in memory that is not page-locked pass through a ring of page-locked buffers first. Only there does
// a call wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/staging_device.h"

namespace kv {

struct StagingConfig {
  std::size_t slot_bytes = 16 << 20;            ///< Of one buffer; at least one layer of one block.
  int slot_count = 3;                           ///< Of each ring; at least 2, or copies and kernels take turns.
  int direct_block_count_max = 64;              ///< A kernel on the bus has it with few blocks; more slow others down.
  std::optional<std::size_t> direct_bytes_max;  ///< Totals up to this go without staging. None: measured.
};

/// One direction's blocks and pages. Borrows all of it until the call's last mark is passed.
struct StagedBlocks {
  BoundLayout pages;                  ///< On the device.
  Rows rows;                          ///< Of the tokens, in `pages`; ids on the device or page-locked.
  BoundLayout blocks;                 ///< layouts::store_block, on the host.
  std::int64_t block_count = 0;       ///< Of them, the first so many.
  bool is_page_locked = false;        ///< The blocks' memory is, and the device can reach it.
  Operation operation = Operation();  ///< Its frequencies and deltas as `rows`.
  TimePoint deadline = TimePoint::max();
};

/// Layers before layer_end are where they belong once `mark` is passed.
struct StagedLayers {
  std::int64_t layer_end = 0;
  Mark mark;
};

/// The rings, and who may use which buffer when.
///   1. A buffer is filled only once what read it before has passed, and read only once what fills it has.
///   2. Layers are enqueued in order, so that the marks of a call are passed in order.
///   3. Memory: slot_count * slot_bytes on the device, and as much page-locked if anything ever needed it.
/// Thread safety: none. Time: the device's.
class Staging {
 public:
  /// Errors: kBadRequest for a configuration that is not allowed, kOutOfMemory, the device's own.
  static Result<std::unique_ptr<Staging>> create(StagingDevice& device, StagingConfig config = {});
  ~Staging();  ///< Waits for both lanes: they may still use the rings.
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues layers [first, first + count) of the blocks to their pages, and appends to `marks` as they go; the last
  /// mark is of all. A get that lands layer by layer calls it for each. Waits only for page-locked buffers, and only if
  /// the blocks are not page-locked. Errors, before anything is enqueued: kMismatch (layouts), kBadRequest (layers,
  /// counts, rows in blocks that a store block cuts), kTooLarge (a layer of a block is larger than a buffer); later:
  /// timed_out, the device's own. Then the layers of `marks` are right, the rest of the pages is unspecified, and what
  /// is borrowed stays so until drain(); blocks that are not page-locked are the caller's at once.
  Result<void> load(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                    std::vector<StagedLayers>& marks);

  /// Pages to blocks. Page-locked blocks hold a layer once its mark is passed; others once the call returns, which then
  /// waits for all. The bytes of a row with a negative slot are zero, or what they were before. Errors as load().
  Result<void> store(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                     std::vector<StagedLayers>& marks);

  Result<void> wait(Mark mark, TimePoint deadline) const { return device_.wait(mark, deadline); }
  /// Waits for everything enqueued: after an error, before what was borrowed is used again.
  Result<void> drain(TimePoint deadline);

  std::size_t direct_bytes_max() const { return direct_bytes_max_; }

 private:
  struct Slot;
  struct Chunk;
  class Call;

  Staging(StagingDevice& device, const StagingConfig& config);
  Result<void> run(const StagedBlocks& blocks, bool is_load, std::int64_t first_layer, std::int64_t layer_count,
                   std::vector<StagedLayers>& marks);
  Result<void> run_direct(const Call& call, const Chunk& all, bool is_load);
  Result<void> run_staged(const Call& call, const Chunk& all, bool is_load, std::vector<StagedLayers>& marks);
  Result<void> load_chunk(const Call& call, const Chunk& chunk);
  Result<void> store_chunk(const Call& call, const Chunk& chunk);
  Result<Slot*> next_host_slot(TimePoint deadline);
  Result<void> empty(Slot& slot, TimePoint deadline);
  Result<void> order(Lane lane, Mark after);
  Result<void> use(Slot& slot, Lane lane);
  Result<void> calibrate();
  Result<Duration> time(const StagedBlocks& blocks, std::size_t direct_bytes_max);

  StagingDevice& device_;
  StagingConfig config_;
  std::size_t direct_bytes_max_ = 0;
  std::vector<Slot> device_slots_, host_slots_;
  std::size_t next_slot_ = 0, next_host_slot_ = 0;
};

}  // namespace kv
