// client/c/gpu_c_staging.cc: kvstore_gpu.h's staging between host memory and a device's pages. Exceptions stop here.
#include <algorithm>
#include <memory>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "client/types/numa_place.h"
#include "gpu/device/cuda_staging.h"
#include "gpu/permute.h"
#include "gpu/staging.h"

struct kvs_staging {
  std::unique_ptr<kv::CudaStagingDevice> device;
  std::unique_ptr<kv::Staging> staging;  // after its device, for which its destructor waits
};

namespace kv {
namespace {

using namespace c_api;

/// 0 is unlimited here, unlike in kvstore.h: devices do not disappear like nodes. At most a day: the sum must not
/// overflow.
TimePoint deadline_of(const StagingDevice& device, std::uint64_t microseconds) {
  constexpr std::uint64_t kMax = 24ULL * 3600 * 1'000'000;
  if (microseconds == 0) return TimePoint::max();
  return device.now() + std::chrono::microseconds(std::min(microseconds, kMax));
}

Mark read_mark(kvs_mark from) {
  if (from.line > static_cast<std::uint32_t>(Line::kKernel)) refuse_value("mark: line", from.line, "0 or 1");
  return {static_cast<Line>(from.line), from.number};
}

struct StagedCall {
  StagedBlocks blocks;
  std::int64_t first_layer = 0, layer_count = 0;
};
StagedCall read_staged(const CudaStagingDevice& device, const kvs_staged_blocks& from, bool is_load,
                       std::size_t capacity) {
  if (from.pages == nullptr || from.blocks == nullptr) refuse(KVS_BAD_REQUEST, "blocks: pages or blocks is NULL");
  const Layout& pages = from.pages->bound.layout;
  const Layout& blocks = from.blocks->bound.layout;
  if (from.block_count < 0 || from.block_count > blocks.block_count) {
    refuse_value("blocks: block_count", from.block_count, "from 0 to " + std::to_string(blocks.block_count));
  }
  if (from.first_layer < 0 || from.first_layer > blocks.layer_count) {
    refuse_value("blocks: first_layer", from.first_layer, "from 0 to " + std::to_string(blocks.layer_count));
  }
  const std::int64_t rest = blocks.layer_count - from.first_layer;
  if (from.layer_count < 0 || from.layer_count > rest) {
    refuse_value("blocks: layer_count", from.layer_count, "from 0 to " + std::to_string(rest));
  }
  StagedCall call;
  call.first_layer = from.first_layer;
  call.layer_count = from.layer_count == 0 ? rest : from.layer_count;
  KV_ASSERT(call.first_layer >= 0 && call.first_layer + call.layer_count <= blocks.layer_count);
  // At most one mark per layer. Checked before enqueuing: without its mark the caller cannot tell when pages are ready.
  if (capacity < static_cast<std::size_t>(call.layer_count)) {
    refuse_value("capacity", static_cast<std::int64_t>(capacity),
                 "at least " + std::to_string(call.layer_count) + ", the number of layers");
  }
  const std::int64_t row_count = from.block_count * blocks.block_tokens;
  StagedBlocks& to = call.blocks;
  to.rows = read_rows(from.rows, pages, row_count);
  // Scales are made on the written side: the pages of a load, the blocks of a store.
  to.operation = read_operation(from.operation, row_count, is_load ? pages : blocks);
  to.pages = from.pages->bound;
  to.blocks = from.blocks->bound;
  to.block_count = from.block_count;
  to.is_page_locked = from.is_page_locked != 0;
  to.deadline = deadline_of(device, from.deadline_us);
  return call;
}

[[noreturn]] void refuse_staged(error_code error, const StagedBlocks& given, bool is_load) {
  const Layout& to = is_load ? given.pages.layout : given.blocks.layout;
  const Layout& from = is_load ? given.blocks.layout : given.pages.layout;
  if (error == Errc::kMismatch && !explain_mismatch(to, from, given.operation)) {
    refuse(KVS_MISMATCH, given.blocks.layout.name + ": is not the layout of store blocks");
  }
  if (error == Errc::kBadRequest) refuse(KVS_BAD_REQUEST, "rows: block_tokens: blocks of ids that a store block cuts");
  if (error == Errc::kTooLarge) refuse(KVS_TOO_LARGE, "buffer_bytes: less than a layer of one block");
  refuse_permute(error, to, from, given.operation);
}

NumaChoice read_numa(const CudaModule& module, const char* given, int ordinal) {
  if (given != nullptr) {
    auto place = find_numa_place(given);
    if (!place) refuse(KVS_BAD_REQUEST, "options: numa_nodes: " + place.error().text);
    return std::move(place->choice);
  }
  // By default, the buffers of a device that is not found lie anywhere.
  if (const auto address = module.pci_address(ordinal)) {
    if (auto place = find_numa_place("pci:" + *address)) return std::move(place->choice);
  }
  return {};
}

void run_staged(kvs_staging* staging, const kvs_staged_blocks* given, bool is_load, kvs_staged_layers* layers,
                std::size_t capacity, std::size_t* count) {
  if (staging == nullptr || count == nullptr || (layers == nullptr && capacity > 0)) {
    refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  }
  *count = 0;
  const auto from = read_struct(given);
  const StagedCall call = read_staged(*staging->device, from, is_load, capacity);
  if (from.is_after_stream != 0) {
    // Loads write pages that the stream's kernels may still read; stores read pages that they may still write. Both
    // lines, since few bytes use the kernel alone.
    for (const Line line : {Line::kCopy, Line::kKernel}) {
      demand(staging->device->wait_for_stream(line, from.stream));
    }
  }
  // Filled on failure too: the layers of these marks are right and usable.
  std::vector<StagedLayers> marks;
  const auto done = is_load ? staging->staging->load(call.blocks, call.first_layer, call.layer_count, marks)
                            : staging->staging->store(call.blocks, call.first_layer, call.layer_count, marks);
  KV_ASSERT(marks.size() <= capacity);
  for (const StagedLayers& each : marks) {
    KV_ASSERT(each.layer_end > call.first_layer && each.layer_end <= call.first_layer + call.layer_count);
    layers[(*count)++] = {each.layer_end, {each.mark.number, static_cast<std::uint32_t>(each.mark.line)}};
  }
  if (!done) refuse_staged(done.error(), call.blocks, is_load);
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_staging_create(const kvs_staging_options* given, kvs_staging** staging) {
  return gpu_call([&] {
    if (staging == nullptr) refuse(KVS_BAD_REQUEST, "staging is NULL");
    *staging = nullptr;
    kvs_staging_options from = KVS_STAGING_OPTIONS_INIT;
    if (given != nullptr) from = read_struct(given);
    if (from.buffer_count != 0 && (from.buffer_count < 2 || from.buffer_count > 64)) {
      refuse_value("options: buffer_count", from.buffer_count, "0, or from 2 to 64");
    }
    if (from.direct_block_count_max < 0) {
      refuse_value("options: direct_block_count_max", from.direct_block_count_max, "0 or more");
    }
    const Run run = Run::on_cuda();
    const int ordinal = read_device_number(*run.cuda, "options: device_number", from.device_number);
    StagingConfig config;
    if (from.buffer_bytes != 0) config.buffer_bytes = from.buffer_bytes;
    if (from.buffer_count != 0) config.buffer_count = from.buffer_count;
    if (from.direct_block_count_max != 0) config.direct_block_count_max = from.direct_block_count_max;
    // By default, create() measures the best value on the device, which takes a moment.
    if (from.direct_bytes_max != 0) config.direct_bytes_max = from.direct_bytes_max;
    NumaChoice numa = read_numa(*run.cuda, from.numa_nodes, ordinal);
    auto made = std::make_unique<kvs_staging>();
    auto device = CudaStagingDevice::create(run.cuda, ordinal, std::move(numa));
    if (!device) refuse_cuda(device.error());
    made->device = *std::move(device);
    auto created = Staging::create(*made->device, config);
    // With the numbers, since the remedy is fewer or smaller buffers.
    if (!created && created.error() == Errc::kOutOfMemory) {
      refuse(KVS_OUT_OF_MEMORY, "options: " + std::to_string(config.buffer_count) + " buffers of " +
                                    std::to_string(config.buffer_bytes) + " bytes: the device has no room");
    }
    if (!created) refuse_cuda(created.error());
    made->staging = *std::move(created);
    *staging = made.release();
  });
}

void kvs_staging_free(kvs_staging* staging) { delete staging; }

int kvs_staging_load(kvs_staging* staging, const kvs_staged_blocks* blocks, kvs_staged_layers* layers, size_t capacity,
                     size_t* count) {
  return gpu_call([&] { return run_staged(staging, blocks, true, layers, capacity, count); });
}
int kvs_staging_store(kvs_staging* staging, const kvs_staged_blocks* blocks, kvs_staged_layers* layers, size_t capacity,
                      size_t* count) {
  return gpu_call([&] { return run_staged(staging, blocks, false, layers, capacity, count); });
}

int kvs_staging_wait(kvs_staging* staging, kvs_mark given, uint64_t deadline_us) {
  return gpu_call([&] {
    if (staging == nullptr) refuse(KVS_BAD_REQUEST, "staging is NULL");
    demand(staging->staging->wait(read_mark(given), deadline_of(*staging->device, deadline_us)));
  });
}

int kvs_staging_wait_on_stream(kvs_staging* staging, void* stream, kvs_mark given) {
  return gpu_call([&] {
    if (staging == nullptr) refuse(KVS_BAD_REQUEST, "staging is NULL");
    demand(staging->device->wait_on_stream(stream, read_mark(given)));
  });
}

int kvs_staging_drain(kvs_staging* staging, uint64_t deadline_us) {
  return gpu_call([&] {
    if (staging == nullptr) refuse(KVS_BAD_REQUEST, "staging is NULL");
    demand(staging->staging->drain(deadline_of(*staging->device, deadline_us)));
  });
}
