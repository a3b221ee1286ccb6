#include "gpu/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "gpu/named_layouts.h"
#include "gpu/verified.h"

namespace kv {
namespace {

constexpr int kBlockCountMax = 1 << 16;  ///< Between two device memories: as many as help.

std::size_t to_size(std::int64_t value) { return static_cast<std::size_t>(value); }

void copy_rows(const Copy2d& copy) {
  for (std::size_t i = 0; i < copy.height; ++i) {
    std::memcpy(copy.to + i * copy.to_pitch, copy.from + i * copy.from_pitch, copy.width_bytes);
  }
}

/// Division of a store block: [group][layer][layer_bytes].
struct Cut {
  std::int64_t block_bytes = 0;
  std::int64_t layer_bytes = 0;  ///< Of one group.
  std::int64_t groups = 0;
};

/// nullopt if `layout` is not the store's.
std::optional<Cut> cut_of(const Layout& layout) {
  Cut cut{.block_bytes = dense_block_bytes(layout), .layer_bytes = layout.components.front().layer_stride_bytes};
  if (cut.block_bytes == 0 || cut.layer_bytes < 1) return std::nullopt;
  const std::int64_t group_bytes = cut.layer_bytes * layout.layer_count;
  cut.groups = cut.block_bytes / group_bytes;
  const bool is_cut = std::ranges::all_of(layout.components, [&](const Component& each) {
    const Digit& group = each.head.high;
    return each.layer_stride_bytes == cut.layer_bytes && group.extent == cut.groups &&
           (cut.groups == 1 || group.stride_bytes == group_bytes) && each.offset_bytes < cut.layer_bytes;
  });
  return is_cut && cut.groups * group_bytes == cut.block_bytes ? std::optional(cut) : std::nullopt;
}

}  // namespace

/// A buffer and its last use.
struct Staging::Buffer {
  std::byte* memory = nullptr;
  Mark last;
  std::vector<Copy2d> leaving = {};  ///< Of a page-locked buffer: copies from it to the blocks after `last`.
};

/// Layers [layer, layer + layers) of blocks [block, block + blocks): the content of one buffer.
struct Staging::Chunk {
  std::int64_t layer, layers, block, blocks;
};

/// A call's arguments, and the layouts of its chunks.
class Staging::Call {
 public:
  Call(const StagedBlocks& given, Cut cut) : given_(given), cut_(cut) {}

  const StagedBlocks& given() const { return given_; }
  std::int64_t layer_bytes() const { return cut_.layer_bytes * cut_.groups; }
  std::size_t chunk_bytes(const Chunk& chunk) const { return to_size(chunk.blocks * chunk.layers * layer_bytes()); }
  std::int64_t row_count(const Chunk& chunk) const { return chunk.blocks * given_.blocks.layout.block_tokens; }
  Rows rows(const Chunk& chunk) const { return given_.rows.after(chunk.block * given_.blocks.layout.block_tokens); }
  BoundLayout pages(const Chunk& chunk) const { return slice_layers(given_.pages, chunk.layer, chunk.layers); }
  Operation operation(const Chunk& chunk) const {
    Operation operation = given_.operation;
    if (operation.rotation.deltas) operation.rotation.deltas += chunk.block * given_.blocks.layout.block_tokens;
    return operation;
  }

  /// The chunk's blocks in place: the same layout, with the chunk's first block as its first.
  BoundLayout blocks_in_place(const Chunk& chunk) const {
    BoundLayout blocks = slice_layers(given_.blocks, chunk.layer, chunk.layers);
    for (std::byte*& base : blocks.bases) base += chunk.block * cut_.block_bytes;
    return blocks;
  }
  /// The chunk in a buffer: blocks of these layers alone.
  BoundLayout blocks_in(std::byte* buffer, const Chunk& chunk) const {
    Layout layout = given_.blocks.layout;
    layout.layer_count = chunk.layers;
    layout.block_count = chunk.blocks;
    for (Component& each : layout.components) {
      each.block_stride_bytes = chunk.layers * layer_bytes();
      if (cut_.groups > 1) each.head.high.stride_bytes = chunk.layers * cut_.layer_bytes;
    }
    // A cut of a sound layout is sound: only whole layers were removed.
    void* const memory = buffer;
    return bind_layout(std::move(layout), {&memory, 1}).value();
  }
  /// The copies between the blocks and a buffer: one for each head group.
  std::vector<Copy2d> copies(std::byte* buffer, const Chunk& chunk, bool is_load) const {
    std::vector<Copy2d> copies;
    const std::int64_t width = chunk.layers * cut_.layer_bytes;
    const std::size_t block_pitch = to_size(cut_.block_bytes), buffer_pitch = to_size(width * cut_.groups);
    for (std::int64_t group = 0; group < cut_.groups; ++group) {
      std::byte* const block = given_.blocks.bases.front() + chunk.block * cut_.block_bytes +
                               (group * given_.blocks.layout.layer_count + chunk.layer) * cut_.layer_bytes;
      std::byte* const inside = buffer + group * width;
      copies.push_back(is_load
                           ? Copy2d{inside, buffer_pitch, block, block_pitch, to_size(width), to_size(chunk.blocks)}
                           : Copy2d{block, block_pitch, inside, buffer_pitch, to_size(width), to_size(chunk.blocks)});
    }
    return copies;
  }

 private:
  const StagedBlocks& given_;
  Cut cut_;
};

Staging::Staging(StagingDevice& device, const StagingConfig& config) : device_(device), config_(config) {}

Result<std::unique_ptr<Staging>> Staging::create(StagingDevice& device, StagingConfig config) {
  if (config.buffer_count < 2 || config.buffer_count > 64 || config.buffer_bytes == 0 ||
      config.direct_block_count_max < 1) {
    return Errc::kBadRequest;
  }
  // All device memory is allocated here, so that later calls cannot run out. Page-locked memory is slow to get and many
  // callers need none: next_host_buffer() allocates it at the first call with other memory.
  std::unique_ptr<Staging> staging(new Staging(device, config));
  for (int i = 0; i < config.buffer_count; ++i) {
    Buffer buffer{.memory = device.allocate(StagingMemory::kDevice, config.buffer_bytes), .last = {}};
    if (!buffer.memory) return Errc::kOutOfMemory;
    staging->device_buffers_.push_back(std::move(buffer));
  }
  if (config.direct_bytes_max) {
    staging->direct_bytes_max_ = *config.direct_bytes_max;
  } else if (const auto measured = staging->calibrate(); !measured) {
    return measured.error();
  }
  return staging;
}

Staging::~Staging() {
  static_cast<void>(drain(TimePoint::max()));  // a failed device no longer touches the memory
  for (const Buffer& buffer : device_buffers_) device_.free(StagingMemory::kDevice, buffer.memory);
  for (const Buffer& buffer : host_buffers_) device_.free(StagingMemory::kPageLocked, buffer.memory);
}

Result<void> Staging::drain(TimePoint deadline) {
  for (const Line line : {Line::kCopy, Line::kKernel}) {  // a mark is behind all work of its line
    const auto mark = device_.mark(line);
    if (!mark) return mark.error();
    const auto done = device_.wait(*mark, deadline);
    if (!done) return done.error();
  }
  for (Buffer& buffer : host_buffers_) buffer.leaving.clear();  // of a failed call: its blocks are unspecified
  return {};
}

Result<void> Staging::load(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                           std::vector<StagedLayers>& marks) {
  return run(blocks, true, first_layer, layer_count, marks);
}
Result<void> Staging::store(const StagedBlocks& blocks, std::int64_t first_layer, std::int64_t layer_count,
                            std::vector<StagedLayers>& marks) {
  return run(blocks, false, first_layer, layer_count, marks);
}

Result<void> Staging::run(const StagedBlocks& given, bool is_load, std::int64_t first_layer, std::int64_t layer_count,
                          std::vector<StagedLayers>& marks) {
  const Layout& blocks = given.blocks.layout;
  const Layout& pages = given.pages.layout;
  const auto cut = cut_of(blocks);
  if (!cut || explain_mismatch(is_load ? pages : blocks, is_load ? blocks : pages, given.operation)) {
    return Errc::kMismatch;
  }
  const bool is_within = first_layer >= 0 && layer_count >= 0 && first_layer <= blocks.layer_count &&
                         layer_count <= blocks.layer_count - first_layer && given.block_count >= 0 &&
                         given.block_count <= blocks.block_count;
  if (!is_within || !is_cut_evenly(given.rows, blocks.block_tokens)) return Errc::kBadRequest;
  if (given.block_count == 0 || layer_count == 0) return {};
  KV_ASSERT(given.blocks.bases.size() == to_size(blocks.layer_count) * blocks.components.size());
  KV_ASSERT(given.pages.bases.size() == to_size(pages.layer_count) * pages.components.size());
  const Call call(given, *cut);
  const Chunk all{first_layer, layer_count, 0, given.block_count};

  if (given.is_page_locked && call.chunk_bytes(all) <= direct_bytes_max_) {
    const auto moved = run_direct(call, all, is_load);
    if (!moved) return moved.error();
    const auto mark = device_.mark(Line::kKernel);
    if (!mark) return mark.error();
    marks.push_back({first_layer + layer_count, *mark});
    return {};
  }
  const auto moved = run_staged(call, all, is_load, marks);
  for (Buffer& buffer : host_buffers_) buffer.leaving.clear();  // a failed call leaves copies to its blocks: drop them
  return moved;
}

Result<void> Staging::run_direct(const Call& call, const Chunk& all, bool is_load) {
  KV_ASSERT(call.given().is_page_locked);  // the kernel accesses it directly
  const BoundLayout blocks = call.blocks_in_place(all), pages = call.pages(all);
  const int most = config_.direct_block_count_max;
  const Operation& operation = call.given().operation;
  if (is_load) {
    return device_.permute(pages, call.given().rows, blocks, Rows::range(), call.row_count(all), operation, most);
  }
  return device_.permute(blocks, Rows::range(), pages, call.given().rows, call.row_count(all), operation, most);
}

Result<void> Staging::run_staged(const Call& call, const Chunk& all, bool is_load, std::vector<StagedLayers>& marks) {
  const auto buffer_bytes = static_cast<std::int64_t>(config_.buffer_bytes);
  if (call.layer_bytes() > buffer_bytes) return Errc::kTooLarge;
  const TimePoint deadline = call.given().deadline;
  // All blocks of as many layers as fit; or one layer of as many blocks as fit.
  const std::int64_t blocks_each = std::min(all.blocks, buffer_bytes / call.layer_bytes());
  const std::int64_t layers_each = blocks_each < all.blocks ? 1 : buffer_bytes / (blocks_each * call.layer_bytes());
  const std::int64_t layer_end = all.layer + all.layers;
  KV_ASSERT(blocks_each >= 1 && layers_each >= 1 && blocks_each * layers_each * call.layer_bytes() <= buffer_bytes);
  // Layers in order: the engine begins with the first while the others are still in flight.
  for (std::int64_t layer = all.layer; layer < layer_end;) {
    const std::int64_t layers = std::min(layers_each, layer_end - layer);
    for (std::int64_t block = 0; block < all.blocks; block += blocks_each) {
      if (device_.now() >= deadline) return error_code(asio::error::timed_out);
      const Chunk chunk{layer, layers, block, std::min(blocks_each, all.blocks - block)};
      const auto moved = is_load ? load_chunk(call, chunk) : store_chunk(call, chunk);
      if (!moved) return moved.error();
    }
    layer += layers;
    const auto mark = device_.mark(is_load ? Line::kKernel : Line::kCopy);
    if (!mark) return mark.error();
    marks.push_back({layer, *mark});
  }
  for (std::size_t i = 0; i < host_buffers_.size() && !is_load; ++i) {
    const auto emptied = empty(host_buffers_[i], deadline);
    if (!emptied) return emptied.error();
  }
  return {};
}

/// Host to buffer on the copy line, buffer to pages on the kernel line. Each waits for the other's last use.
Result<void> Staging::load_chunk(const Call& call, const Chunk& chunk) {
  KV_ASSERT(call.chunk_bytes(chunk) <= config_.buffer_bytes);
  Buffer& buffer = device_buffers_[next_buffer_++ % device_buffers_.size()];
  std::vector<Copy2d> copies = call.copies(buffer.memory, chunk, true);
  Buffer* host = nullptr;
  if (!call.given().is_page_locked) {
    const auto next = next_host_buffer(call.given().deadline);
    if (!next) return next.error();
    host = *next;
    // The driver would copy memory that is not page-locked on the calling thread, and block it. This copy is on the
    // calling thread too, but while the device works on the buffer before.
    for (const Copy2d& copy : call.copies(host->memory, chunk, true)) copy_rows(copy);
    const std::size_t bytes = call.chunk_bytes(chunk);
    copies = {{buffer.memory, bytes, host->memory, bytes, bytes, 1}};
  }
  if (const auto copied = copy_all(buffer, copies); !copied) return copied.error();
  if (host) host->last = buffer.last;
  if (const auto ready = order(Line::kKernel, buffer.last); !ready) return ready.error();
  const auto moved = device_.permute(call.pages(chunk), call.rows(chunk), call.blocks_in(buffer.memory, chunk),
                                     Rows::range(), call.row_count(chunk), call.operation(chunk), kBlockCountMax);
  if (!moved) return moved.error();
  return use(buffer, Line::kKernel);
}

/// Pages to buffer on the kernel line, buffer to host on the copy line. Bytes for memory that is not page-locked stay
/// in a page-locked buffer until its next use or the call's end: see empty().
Result<void> Staging::store_chunk(const Call& call, const Chunk& chunk) {
  KV_ASSERT(call.chunk_bytes(chunk) <= config_.buffer_bytes);
  Buffer& buffer = device_buffers_[next_buffer_++ % device_buffers_.size()];
  if (const auto ready = order(Line::kKernel, buffer.last); !ready) return ready.error();
  // A skipped row must not expose the buffer's old bytes.
  if (const auto cleared = device_.clear(buffer.memory, call.chunk_bytes(chunk)); !cleared) return cleared.error();
  const auto moved = device_.permute(call.blocks_in(buffer.memory, chunk), Rows::range(), call.pages(chunk),
                                     call.rows(chunk), call.row_count(chunk), call.operation(chunk), kBlockCountMax);
  if (!moved) return moved.error();
  const auto gathered = use(buffer, Line::kKernel);
  if (!gathered) return gathered.error();
  std::vector<Copy2d> copies = call.copies(buffer.memory, chunk, false);
  Buffer* host = nullptr;
  if (!call.given().is_page_locked) {
    const auto next = next_host_buffer(call.given().deadline);
    if (!next) return next.error();
    host = *next;
    const std::size_t bytes = call.chunk_bytes(chunk);
    copies = {{host->memory, bytes, buffer.memory, bytes, bytes, 1}};
  }
  if (const auto copied = copy_all(buffer, copies); !copied) return copied.error();
  if (host) {
    host->last = buffer.last;
    host->leaving = call.copies(host->memory, chunk, false);
  }
  return {};
}

/// On the copy line, after the buffer's last use.
Result<void> Staging::copy_all(Buffer& buffer, std::span<const Copy2d> copies) {
  if (const auto ready = order(Line::kCopy, buffer.last); !ready) return ready.error();
  for (const Copy2d& copy : copies) {
    const auto copied = device_.copy(copy);
    if (!copied) return copied.error();
  }
  return use(buffer, Line::kCopy);
}

Result<Staging::Buffer*> Staging::next_host_buffer(TimePoint deadline) {
  while (host_buffers_.size() < device_buffers_.size()) {
    Buffer buffer{.memory = device_.allocate(StagingMemory::kPageLocked, config_.buffer_bytes), .last = {}};
    if (!buffer.memory) return Errc::kOutOfMemory;
    host_buffers_.push_back(std::move(buffer));
  }
  Buffer& buffer = host_buffers_[next_host_buffer_++ % host_buffers_.size()];
  const auto emptied = empty(buffer, deadline);
  if (!emptied) return emptied.error();
  KV_ASSERT(buffer.leaving.empty() && buffer.last.number == 0);  // idle in both directions
  return &buffer;
}

/// Waits for the buffer's last use, and copies a store's bytes to their blocks. The only wait of a call.
Result<void> Staging::empty(Buffer& buffer, TimePoint deadline) {
  if (buffer.last.number != 0) {
    const auto passed = device_.wait(buffer.last, deadline);
    if (!passed) return passed.error();
  }
  for (const Copy2d& copy : buffer.leaving) copy_rows(copy);
  buffer.leaving.clear();
  buffer.last = {};
  return {};
}

/// Later work on `line` runs after `after`.
Result<void> Staging::order(Line line, Mark after) {
  if (after.number == 0 || after.line == line) return {};
  return device_.wait_on_line(line, after);
}

/// The buffer's last use is all work on `line` so far.
Result<void> Staging::use(Buffer& buffer, Line line) {
  const auto mark = device_.mark(line);
  if (!mark) return mark.error();
  KV_ASSERT(mark->line == line && mark->number != 0);  // 0 would mean an unused buffer
  buffer.last = *mark;
  return {};
}

/// Finds the total from which staging is faster, in steps of two, with blocks of 16 rows of 1 KiB.
Result<void> Staging::calibrate() {
  constexpr std::int64_t kRowBytes = 1024, kTokens = 16, kRounds = 4;
  const auto block_count = static_cast<std::int64_t>(config_.buffer_bytes) / (kTokens * kRowBytes);
  if (block_count == 0) return {};
  const Tensor rows{"btf", {block_count, kTokens, kRowBytes}, {}, Element::kByte, {Role::kKey}};
  const Layout pages = make_layout("rows", {&rows, 1}).value();
  const std::size_t bytes = to_size(block_count * kTokens * kRowBytes);
  void* const device = device_.allocate(StagingMemory::kDevice, bytes);
  void* const host = device_.allocate(StagingMemory::kPageLocked, bytes);
  Result<void> result;
  if (device && host) {
    StagedBlocks blocks{.pages = bind_layout(pages, {&device, 1}).value(),
                        .rows = Rows::range(),
                        .blocks = bind_layout(layouts::store_block(pages, 1, block_count).value(), {&host, 1}).value(),
                        .is_page_locked = true};
    for (blocks.block_count = 1; result && blocks.block_count <= block_count; blocks.block_count *= 2) {
      const std::size_t total = to_size(blocks.block_count * kTokens * kRowBytes);
      Duration best[2] = {Duration::max(), Duration::max()};      // staged, direct
      for (std::int64_t i = 0; result && i < 2 * kRounds; ++i) {  // in turns: a disturbance hits both
        const auto took = time(blocks, i % 2 == 0 ? 0 : total);
        if (took && i > 1) best[i % 2] = std::min(best[i % 2], *took);  // the first of each warms up
        if (!took) result = took.error();
      }
      if (!result || best[1] > best[0]) break;
      direct_bytes_max_ = total;
    }
    const auto drained = drain(TimePoint::max());
    if (result && !drained) result = drained.error();
  } else {
    result = Errc::kOutOfMemory;
  }
  device_.free(StagingMemory::kDevice, static_cast<std::byte*>(device));
  device_.free(StagingMemory::kPageLocked, static_cast<std::byte*>(host));
  return result;
}

/// One load, start to end, under another threshold.
Result<Duration> Staging::time(const StagedBlocks& blocks, std::size_t direct_bytes_max) {
  const std::size_t kept = std::exchange(direct_bytes_max_, direct_bytes_max);
  const TimePoint start = device_.now();
  std::vector<StagedLayers> marks;
  const auto loaded = load(blocks, 0, 1, marks);
  direct_bytes_max_ = kept;
  if (!loaded) return loaded.error();
  KV_ASSERT(!marks.empty());
  const auto passed = device_.wait(marks.back().mark, TimePoint::max());
  if (!passed) return passed.error();
  return device_.now() - start;
}

}  // namespace kv
