// gpu/cuda/permute.cu: permute() on an NVIDIA device. What enters is a DevicePlan (gpu/device/device_plan.h) whose addresses,
// ids, frequencies and deltas are device memory; it travels as the kernel's parameter, so that a call allocates
// nothing.
//   grid   x = shares of the rows, at most the caller's cap; y = (component, layer); z = the head of a tile, or the
//          slice of long rows
//   copies are bound by HBM: two bytes of traffic for each byte moved
// Two kernels: permute_kernel, once for each body that works thread by thread, so that copies pay no registers for
// casts; transpose_kernel for what goes through a tile. A call launches those that its components need: mostly one.
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/module_abi.h"
#include "gpu/cuda/on_device.h"
#include "gpu/cuda/own_status.h"
#include "gpu/device/device_body.h"

namespace kv {
namespace {

constexpr int kThreads = 256;

/// Component and layer of this block, among the components that `body` moves.
struct Share {
  int part = 0;
  std::int64_t layer = 0;
};
__device__ Share share_of(const DevicePlan& plan, DeviceBody body) {
  const int layer_count = static_cast<int>(plan.layer_count);
  int before = static_cast<int>(blockIdx.y) / layer_count;
  int part = 0;
  while (plan.parts[part].body != body || before-- > 0) ++part;
  return {part, static_cast<int>(blockIdx.y) % layer_count};
}

__device__ device::Worker this_worker() {
  return {static_cast<int>(threadIdx.x), kThreads, static_cast<std::int64_t>(blockIdx.x),
          static_cast<std::int64_t>(gridDim.x), static_cast<int>(blockIdx.z), static_cast<int>(gridDim.z)};
}

template <DeviceBody body, class Plan>
__global__ void __launch_bounds__(kThreads) permute_kernel(const __grid_constant__ Plan plan) {
  const Share share = share_of(plan, body);
  device::move_rows<body>(plan, plan.parts[share.part], share.layer, this_worker());
}

template <class T, bool kIsSimple, class Plan>
__device__ void transpose_tiles(const Plan& plan, const Part& part, std::int64_t layer, void* memory) {
  T* elements = static_cast<T*>(memory);
  device::Tile tile;
  for (tile.head = blockIdx.z; tile.head < part.heads; tile.head += gridDim.z) {
    for (tile.row = std::int64_t{blockIdx.x} * device::kTileTokens; tile.row < plan.row_count;
         tile.row += std::int64_t{gridDim.x} * device::kTileTokens) {
      for (tile.feature = 0; tile.feature < part.values; tile.feature += device::kTileFeatures) {
        device::move_tile<T, false, kIsSimple>(plan, part, layer, tile, elements, this_worker());
        __syncthreads();
        device::move_tile<T, true, kIsSimple>(plan, part, layer, tile, elements, this_worker());
        __syncthreads();
      }
    }
  }
}

template <DeviceBody body, class Plan>
__global__ void __launch_bounds__(kThreads) transpose_kernel(const __grid_constant__ Plan plan) {
  __shared__ std::uint32_t tile[device::kTileElements];
  constexpr bool kIsSimple = body == DeviceBody::kSimpleTranspose;
  const Share share = share_of(plan, body);
  const Part& part = plan.parts[share.part].part;
  switch (element_bytes(part.to.element)) {
    case 1: return transpose_tiles<std::uint8_t, kIsSimple>(plan, part, share.layer, tile);
    case 2: return transpose_tiles<std::uint16_t, kIsSimple>(plan, part, share.layer, tile);
    default: return transpose_tiles<std::uint32_t, kIsSimple>(plan, part, share.layer, tile);
  }
}

__global__ void __launch_bounds__(kThreads)
    keep_kernel(const __grid_constant__ DevicePlan plan, const KeepRow* rows, std::int64_t row_count) {
  const int layer_count = static_cast<int>(plan.layer_count);
  const int part = static_cast<int>(blockIdx.y) / layer_count;
  device::keep_rows(plan, plan.parts[part].part, static_cast<int>(blockIdx.y) % layer_count, rows, row_count,
                    this_worker());
}

/// A block of threads a stripe. (gpu/device/device_checksum.h draws the steps.)
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const __grid_constant__ DeviceChecksum job, std::int64_t stripe_count) {
  __shared__ device::StripeScratch scratch;
  for (std::int64_t index = blockIdx.x; index < stripe_count; index += gridDim.x) {
    const device::Stripe stripe = device::stripe_of(job, index);
    device::checksum_begin(stripe, scratch, this_worker());
    __syncthreads();
    device::checksum_add(stripe, scratch, this_worker());
    __syncthreads();
    device::checksum_fold(stripe, scratch, this_worker());
    __syncthreads();
    if (threadIdx.x == 0) device::checksum_end(job, index, stripe, scratch);
    __syncthreads();  // the scratch is the next stripe's
  }
}

}  // namespace
}  // namespace kv

extern "C" int kv_cuda_checksum(const kv::DeviceChecksum* job, const void* pages, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t stripe_count = job->block_count * kv::device::stripes_of(*job);
  if (stripe_count == 0) return cudaSuccess;
  const kv::OnDevice on_device(kv::device_of(pages));
  if (on_device.status != cudaSuccess) return on_device.status;
  if (!job->sums) {
    const auto bytes = static_cast<std::size_t>(job->block_count) * sizeof *job->verdicts;
    const cudaError_t cleared = cudaMemsetAsync(job->verdicts, 0, bytes, on);
    if (cleared != cudaSuccess) return kv::own_status(cleared);
  }
  constexpr std::int64_t kBlocksMax = 1 << 20;
  const auto blocks = static_cast<unsigned>(stripe_count < kBlocksMax ? stripe_count : kBlocksMax);
  return kv::launch_kernel(kv::checksum_kernel, dim3(blocks), kv::kThreads, stream, *job, stripe_count);
}

namespace kv {
namespace {

constexpr std::int64_t kGridDepthMax = 65535;  // blocks in z; what is more they take in turn

/// What a block's threads take of one row, each one piece at a time.
std::int64_t items_of(const DevicePart& device) {
  const Part& part = device.part;
  switch (device.body) {
    case DeviceBody::kCast: return part.heads * ((part.values + 7) / 8);
    case DeviceBody::kQuantise:
      return part.heads * (part.values / part.values_per_scale) * quantise_lanes(part.values_per_scale);
    default: return part.heads * part.to.feature.extent() * element_bytes(part.to.element) / device.vec_bytes;
  }
}

/// Rows that a block of threads takes: where a row has fewer pieces than the block has threads, several side by side,
/// and four times that, so that what a thread does once for all rows counts little. A copy has all four under way.
std::int64_t rows_at_once(const DevicePart& device) {
  const std::int64_t items = items_of(device);
  return 4 * (items < kThreads ? kThreads / items : 1);
}

/// Blocks of threads that share the rows of each (row, component, layer): whole blocks of a cache are few long rows, and
/// a device needs some blocks for each of its processors. Not more than that, since each costs its start.
std::int64_t slices_of(std::int64_t pieces, std::int64_t width, std::int64_t height, std::int64_t block_count_max) {
  constexpr std::int64_t kBlocksEnough = 2048;  // of 148 processors 13 each
  std::int64_t slices = (pieces + kThreads - 1) / kThreads;
  if (slices > block_count_max / width) slices = block_count_max / width;
  if (slices > kBlocksEnough / (width * height)) slices = kBlocksEnough / (width * height);
  return slices < 1 ? 1 : slices;
}

/// Calls visit(kernel, body, rows that a block takes, if the body does not say itself).
template <class Plan, class Visit>
void for_each_kernel(Visit visit) {
  visit(permute_kernel<DeviceBody::kWideCopy, Plan>, DeviceBody::kWideCopy, 1);
  visit(permute_kernel<DeviceBody::kCopy, Plan>, DeviceBody::kCopy, 1);
  visit(permute_kernel<DeviceBody::kCast, Plan>, DeviceBody::kCast, 1);
  visit(permute_kernel<DeviceBody::kRotate, Plan>, DeviceBody::kRotate, 1);
  visit(permute_kernel<DeviceBody::kQuantise, Plan>, DeviceBody::kQuantise, 1);
  visit(transpose_kernel<DeviceBody::kSimpleTranspose, Plan>, DeviceBody::kSimpleTranspose, device::kTileTokens);
  visit(transpose_kernel<DeviceBody::kTranspose, Plan>, DeviceBody::kTranspose, device::kTileTokens);
}

/// One launch for each kind of body that the plan's components need.
template <class Plan>
cudaError_t launch_bodies(const Plan& plan, void* stream, int block_count_max) {
  cudaError_t status = cudaSuccess;
  const auto launch = [&](auto kernel, DeviceBody body, std::int64_t rows_each) {
    const bool is_transpose = body == DeviceBody::kTranspose || body == DeviceBody::kSimpleTranspose;
    const bool is_copy = body == DeviceBody::kWideCopy || body == DeviceBody::kCopy;
    int parts = 0;
    std::int64_t pieces = 1;  // of the longest row
    std::int64_t heads = 1;   // a transposition has a tile for each; the others take them as they take vectors
    for (int i = 0; i < plan.part_count; ++i) {
      if (plan.parts[i].body != body) continue;
      if (!is_transpose && body != DeviceBody::kRotate) {  // the component with the widest rows decides
        const std::int64_t rows = rows_at_once(plan.parts[i]);
        if (is_copy && items_of(plan.parts[i]) > pieces) pieces = items_of(plan.parts[i]);
        if (parts == 0 || rows < rows_each) rows_each = rows;
      }
      ++parts;
      if (is_transpose && plan.parts[i].part.heads > heads) heads = plan.parts[i].part.heads;
    }
    if (parts == 0 || status != cudaSuccess) return;
    const std::int64_t wanted = (plan.row_count + rows_each - 1) / rows_each;
    const std::int64_t width = wanted < block_count_max ? wanted : block_count_max;
    const std::int64_t height = parts * plan.layer_count;
    const std::int64_t depth = is_transpose ? heads : slices_of(pieces, width, height, block_count_max);
    const dim3 grid(static_cast<unsigned>(width), static_cast<unsigned>(height),
                    static_cast<unsigned>(depth < kGridDepthMax ? depth : kGridDepthMax));
    status = launch_kernel(kernel, grid, kThreads, stream, plan);
  };
  for_each_kernel<Plan>(launch);
  return status;
}

}  // namespace
}  // namespace kv

extern "C" int kv_cuda_warm_up() {
  cudaError_t status = cudaSuccess;
  const auto ask = [&](auto kernel, auto...) {
    cudaFuncAttributes attributes = {};  // asking for them loads the kernel
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernel);
  };
  kv::for_each_kernel<kv::DevicePlan>(ask);
  kv::for_each_kernel<kv::VerifiedDevicePlan>(ask);
  ask(kv::keep_kernel);
  ask(kv::checksum_kernel);
  return kv::own_status(status);
}

extern "C" int kv_cuda_permute(const kv::DevicePlan* plan, void* stream, int block_count_max) {
  if (plan->row_count == 0) return cudaSuccess;
  const kv::OnDevice on_device(kv::device_of(*plan));
  if (on_device.status != cudaSuccess) return on_device.status;
  if (plan->verdicts) return kv::launch_bodies(kv::VerifiedDevicePlan{*plan}, stream, block_count_max);
  return kv::launch_bodies(*plan, stream, block_count_max);
}

extern "C" int kv_cuda_scatter_kept(const kv::DevicePlan* plan, const kv::KeepRow* rows, std::int64_t row_count,
                                    void* stream, int block_count_max) {
  if (row_count == 0) return cudaSuccess;
  const kv::OnDevice on_device(kv::device_of(*plan));
  if (on_device.status != cudaSuccess) return on_device.status;
  const dim3 grid(static_cast<unsigned>(row_count < block_count_max ? row_count : block_count_max),
                  static_cast<unsigned>(plan->part_count * plan->layer_count));
  return kv::launch_kernel(kv::keep_kernel, grid, kv::kThreads, stream, *plan, rows, row_count);
}
