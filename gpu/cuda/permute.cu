// gpu/cuda/permute.cu: permute() on an NVIDIA device. Its input is a DevicePlan (gpu/device/device_plan.h) whose
// addresses, ids, frequencies and deltas are device memory. The plan travels as the kernel's parameter, so that a call
// does not allocate, and a graph that captures it keeps a copy.
//   grid   x = shares of the rows; y = shares of the (component, layer) pairs; z = shares of a long row's pieces, or of
//          a transposition's columns. x * y * z is at most the caller's cap: blocks take the remaining shares in turn
//   copies are bound by HBM: two bytes of traffic for each byte moved
// One kernel, compiled once per body, so that copies pay no registers for casts. A call launches those that its
// components need: mostly one. A plan of few components and layers has its own type of 2 KiB; a full plan takes 14.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "gpu/cuda/module_abi.h"
#include "gpu/cuda/on_device.h"
#include "gpu/cuda/own_status.h"
#include "gpu/device/device_body.h"

namespace kv {
namespace {

constexpr int kThreads = 256;

/// The Block of gpu/device/device_body.h.
struct CudaBlock {
  std::int64_t index = blockIdx.x, count = gridDim.x;
  std::int64_t share = blockIdx.y, share_count = gridDim.y;
  int slice = static_cast<int>(blockIdx.z), slice_count = static_cast<int>(gridDim.z);

  __device__ device::Worker worker() const {
    return {static_cast<int>(threadIdx.x), kThreads, index, count, slice, slice_count};
  }
  template <class Step>
  __device__ void together(Step step) const {
    step(worker());
    __syncthreads();
  }
  template <class Step>
  __device__ void alone(Step step) const {
    step(worker());
  }
};

template <DeviceBody body, class Plan>
__global__ void __launch_bounds__(kThreads) permute_kernel(const __grid_constant__ Plan plan) {
  __shared__ typename device::ScratchOf<body>::Type scratch;
  device::run_block<body>(plan, scratch, CudaBlock{});
}

template <class Plan>
__global__ void __launch_bounds__(kThreads)
    keep_kernel(const __grid_constant__ Plan plan, const KeepRow* rows, std::int64_t row_count) {
  __shared__ device::KeepScratch scratch;
  device::run_keep_block(plan, rows, row_count, scratch, CudaBlock{});
}

__device__ device::Worker this_worker() { return CudaBlock{}.worker(); }

/// A block of threads per stripe. (gpu/device/device_checksum.h draws the steps.)
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

constexpr std::int64_t ceiling(std::int64_t count, std::int64_t each) { return (count + each - 1) / each; }

dim3 dim3_of(const GridShares& grid) {
  return dim3(static_cast<unsigned>(grid.rows), static_cast<unsigned>(grid.pairs), static_cast<unsigned>(grid.pieces));
}

/// Pieces of a row, each taken by one thread.
std::int64_t items_of(const DevicePart& device) {
  const Part& part = device.part;
  switch (device.body) {
    case DeviceBody::kCast: return part.heads * device::cast_pieces(device);
    case DeviceBody::kQuantise: return part.heads * quantise_pieces(device);
    default: return part.heads * part.to.feature.extent() * element_bytes(part.to.element) / device.vec_bytes;
  }
}

/// The shares of a launch's blocks, from the component with the longest rows.
template <DeviceBody body, class Plan>
GridShares shares_of(const Plan& plan) {
  GridShares shares;
  shares.pairs = plan.part_count * plan.layer_count;
  for (int i = 0; i < plan.part_count; ++i) {
    const DevicePart& device = plan.parts[i];
    std::int64_t rows_each = 0, pieces = 1;
    if constexpr (body == DeviceBody::kTranspose) {
      rows_each = 64 / element_bytes(device.part.to.element);
      pieces = ceiling(device.part.heads * device.part.values, device::kTileColumns);
    } else if constexpr (body == DeviceBody::kRotate) {
      rows_each = device::turn_rows_at_once(plan.operation.rotation);
    } else {
      // Where a row has fewer pieces than the block has threads, several rows side by side; four times that, to spread
      // a thread's set-up cost. A copy has all four in flight.
      const std::int64_t items = items_of(device);
      rows_each = 4 * (items < kThreads ? kThreads / items : 1);
      if (body == DeviceBody::kWideCopy || body == DeviceBody::kCopy) pieces = ceiling(items, kThreads);
    }
    const std::int64_t rows = ceiling(plan.row_count, rows_each);
    if (rows > shares.rows) shares.rows = rows;
    if (pieces > shares.pieces) shares.pieces = pieces;
  }
  // In large calls a block takes twice as many, since its start costs as much as a row.
  if (shares.rows * shares.pairs > 4 * kBlocksEnough) shares.rows = ceiling(shares.rows, 2);
  return shares;
}

template <DeviceBody body, class Plan>
cudaError_t launch_plan(const Plan& plan, void* stream, int block_count_max) {
  const GridShares grid = bounded_grid(shares_of<body>(plan), body == DeviceBody::kRotate, block_count_max);
  return launch_kernel(permute_kernel<body, Plan>, dim3_of(grid), kThreads, stream, plan);
}

template <DeviceBody body>
cudaError_t launch_body(const DevicePlan& plan, void* stream, int block_count_max) {
  bool is_needed = false;
  for (int i = 0; i < plan.part_count; ++i) is_needed = is_needed || plan.parts[i].body == body;
  if (!is_needed) return cudaSuccess;
  if (plan.verdicts) return launch_plan<body>(plan_of_body<VerifiedDevicePlan>(plan, body), stream, block_count_max);
  if (fits<SmallDevicePlan>(plan, body))
    return launch_plan<body>(plan_of_body<SmallDevicePlan>(plan, body), stream, block_count_max);
  return launch_plan<body>(plan_of_body<DevicePlan>(plan, body), stream, block_count_max);
}

/// Calls visit(std::integral_constant) of each body.
template <class Visit>
void for_each_body(Visit visit) {
  visit(std::integral_constant<DeviceBody, DeviceBody::kWideCopy>());
  visit(std::integral_constant<DeviceBody, DeviceBody::kCopy>());
  visit(std::integral_constant<DeviceBody, DeviceBody::kCast>());
  visit(std::integral_constant<DeviceBody, DeviceBody::kRotate>());
  visit(std::integral_constant<DeviceBody, DeviceBody::kQuantise>());
  visit(std::integral_constant<DeviceBody, DeviceBody::kTranspose>());
}

template <class Plan>
cudaError_t launch_keep(const Plan& plan, const KeepRow* rows, std::int64_t row_count, void* stream,
                        int block_count_max) {
  const GridShares shares{ceiling(row_count, device::kKeepRows), plan.part_count * plan.layer_count, 1};
  return launch_kernel(keep_kernel<Plan>, dim3_of(bounded_grid(shares, true, block_count_max)), kThreads, stream, plan,
                       rows, row_count);
}

}  // namespace
}  // namespace kv

extern "C" int kv_cuda_warm_up() {
  cudaError_t status = cudaSuccess;
  const auto ask = [&](auto kernel) {
    cudaFuncAttributes attributes = {};  // loads the kernel
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernel);
  };
  kv::for_each_body([&](auto body) {
    ask(kv::permute_kernel<body.value, kv::SmallDevicePlan>);
    ask(kv::permute_kernel<body.value, kv::DevicePlan>);
    ask(kv::permute_kernel<body.value, kv::VerifiedDevicePlan>);
  });
  ask(kv::keep_kernel<kv::SmallDevicePlan>);
  ask(kv::keep_kernel<kv::DevicePlan>);
  ask(kv::checksum_kernel);
  return kv::own_status(status);
}

extern "C" int kv_cuda_permute(const kv::DevicePlan* plan, void* stream, int block_count_max) {
  if (plan->row_count == 0) return cudaSuccess;
  const kv::OnDevice on_device(kv::device_of(*plan));
  if (on_device.status != cudaSuccess) return on_device.status;
  cudaError_t status = cudaSuccess;
  kv::for_each_body([&](auto body) {
    if (status == cudaSuccess) status = kv::launch_body<body.value>(*plan, stream, block_count_max);
  });
  return status;
}

extern "C" int kv_cuda_scatter_kept(const kv::DevicePlan* plan, const kv::KeepRow* rows, std::int64_t row_count,
                                    void* stream, int block_count_max) {
  if (row_count == 0) return cudaSuccess;
  const kv::OnDevice on_device(kv::device_of(*plan));
  if (on_device.status != cudaSuccess) return on_device.status;
  const auto body = plan->parts[0].body;  // all parts have the same
  if (kv::fits<kv::SmallDevicePlan>(*plan, body)) {
    return kv::launch_keep(kv::plan_of_body<kv::SmallDevicePlan>(*plan, body), rows, row_count, stream,
                           block_count_max);
  }
  return kv::launch_keep(*plan, rows, row_count, stream, block_count_max);
}
