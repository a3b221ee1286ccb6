// gpu/staging.h: blocks between host memory and a device's pages. A block enters as host memory filled by a get, and
// leaves layer by layer in the engine's pages, layer 0 first. A store goes the other way.
//
// Blocks in a cache are many small pieces; one copy per piece takes up to eight times as long as the bytes alone. So
// they cross the bus in large copies, into a ring of buffers on the device, and one kernel per buffer distributes them:
//
//     blocks (host)  --copy line-->  buffer 0, 1, 2, 0 ...  --kernel line-->  pages
//
//     copy line      c0 -> buffer 0   c1 -> buffer 1   c2 -> buffer 2   [k0 passed] c3 -> buffer 0 ...
//     kernel line    [c0 passed] k0 [c1 passed] k1 ...
//
// Small totals skip the rings: a kernel reads page-locked memory itself, which saves two waits. The threshold is
// measured at start. Other memory passes through a ring of page-locked buffers first, the only place of a wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/staging_device.h"

namespace kv {

struct StagingConfig {
  std::size_t buffer_bytes = 16 << 20;          ///< Of one buffer; at least one layer of one block.
  int buffer_count = 3;                         ///< Of each ring; at least 2, or copies and kernels alternate.
  int direct_block_count_max = 64;              ///< A few blocks saturate the bus; more slow other kernels down.
  std::optional<std::size_t> direct_bytes_max;  ///< Totals up to this skip staging. nullopt: measured.
};

/// One direction's blocks and pages. Borrowed until the call's last mark is passed.
struct StagedBlocks {
  BoundLayout pages;                  ///< On the device.
  Rows rows;                          ///< Of the tokens, in `pages`; ids on the device or page-locked.
  BoundLayout blocks;                 ///< layouts::store_block, on the host.
  std::int64_t block_count = 0;       ///< Uses the first block_count blocks.
  bool is_page_locked = false;        ///< The blocks' memory is page-locked and reachable by the device.
  Operation operation = Operation();  ///< Its frequencies and deltas lie as `rows`' ids.
  TimePoint deadline = TimePoint::max();
};

/// Layers before layer_end have arrived once `mark` is passed.
struct StagedLayers {
  std::int64_t layer_end = 0;
  Mark mark;
};

/// The rings, and the order in which buffers are reused.
///   1. A buffer is filled only once its last reader has passed, and read only once its filling has.
///   2. Layers are enqueued in order, so that the marks of a call are passed in order.
///   3. Memory: buffer_count * buffer_bytes on the device, and as much page-locked after the first call that needs it.
/// Thread safety: none. Time: the device's.
class Staging {
 public:
  /// Errors: kBadRequest for an invalid configuration, kOutOfMemory, the device's own.
  static Result<std::unique_ptr<Staging>> create(StagingDevice& device, StagingConfig config = {});
  ~Staging();  ///< Waits for both lines: they may still use the rings.
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues layers [first, first + count) of the blocks to their pages, and appends a mark for each step to `marks`;
  /// the last one covers all. A get that lands layer by layer calls it for each. Waits only for page-locked buffers,
  /// and only if the blocks are not page-locked. Errors, before anything is enqueued: kMismatch (layouts), kBadRequest
  /// (layers, counts, rows whose blocks straddle a store block), kTooLarge (a layer of a block is larger than a
  /// buffer); later: timed_out, the device's own. Then the layers of `marks` are right, the rest of the pages is
  /// unspecified, and borrowed memory stays borrowed until drain(); other blocks are the caller's at once.
  Result<void> load(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                    std::vector<StagedLayers>& marks);

  /// Pages to blocks. Page-locked blocks hold a layer once its mark is passed; others once the call returns, which then
  /// waits for all. The bytes of a row with a negative slot are zero or unchanged. Errors as load().
  Result<void> store(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                     std::vector<StagedLayers>& marks);

  Result<void> wait(Mark mark, TimePoint deadline) const { return device_.wait(mark, deadline); }
  /// Waits for all enqueued work: after an error, before borrowed memory is used again.
  Result<void> drain(TimePoint deadline);

  std::size_t direct_bytes_max() const { return direct_bytes_max_; }

 private:
  struct Buffer;
  struct Chunk;
  class Call;

  Staging(StagingDevice& device, const StagingConfig& config);
  Result<void> run(const StagedBlocks& blocks, bool is_load, std::int64_t first_layer, std::int64_t layer_count,
                   std::vector<StagedLayers>& marks);
  Result<void> run_direct(const Call& call, const Chunk& all, bool is_load);
  Result<void> run_staged(const Call& call, const Chunk& all, bool is_load, std::vector<StagedLayers>& marks);
  Result<void> load_chunk(const Call& call, const Chunk& chunk);
  Result<void> store_chunk(const Call& call, const Chunk& chunk);
  Result<void> copy_all(Buffer& buffer, std::span<const Copy2d> copies);
  Result<Buffer*> next_host_buffer(TimePoint deadline);
  Result<void> empty(Buffer& buffer, TimePoint deadline);
  Result<void> order(Line line, Mark after);
  Result<void> use(Buffer& buffer, Line line);
  Result<void> calibrate();
  Result<Duration> time(const StagedBlocks& blocks, std::size_t direct_bytes_max);

  StagingDevice& device_;
  StagingConfig config_;
  std::size_t direct_bytes_max_ = 0;
  std::vector<Buffer> device_buffers_, host_buffers_;
  std::size_t next_buffer_ = 0, next_host_buffer_ = 0;
};

}  // namespace kv
