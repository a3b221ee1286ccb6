// gpu/cuda/permute.cu: permute() on an NVIDIA device. What enters is a DevicePlan (gpu/device_plan.h) whose addresses,
// ids, frequencies and deltas are device memory; it travels as the kernel's parameter, so that a call allocates
// nothing.
//   grid   x = shares of the rows, at most the caller's cap; y = (component, layer); z = the head of a tile
//   copies are bound by HBM: two bytes of traffic for each byte moved
// Two kernels: permute_kernel, once for each body that works thread by thread, so that copies pay no registers for
// casts; transpose_kernel for what goes through a tile. A call launches those that its components need: mostly one.
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/module_abi.h"
#include "gpu/device_body.h"

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
          static_cast<std::int64_t>(gridDim.x)};
}

template <DeviceBody body>
__global__ void __launch_bounds__(kThreads) permute_kernel(const __grid_constant__ DevicePlan plan) {
  const Share share = share_of(plan, body);
  device::move_rows<body>(plan, plan.parts[share.part], share.layer, this_worker());
}

template <class T, bool kIsSimple>
__device__ void transpose_tiles(const DevicePlan& plan, const Part& part, std::int64_t layer, void* memory) {
  T* elements = static_cast<T*>(memory);
  device::Tile tile{.head = blockIdx.z};
  if (tile.head >= part.heads) return;
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

template <DeviceBody body>
__global__ void __launch_bounds__(kThreads) transpose_kernel(const __grid_constant__ DevicePlan plan) {
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

}  // namespace
}  // namespace kv

extern "C" int kv_cuda_permute(const kv::DevicePlan* plan, void* stream, int block_count_max) {
  using kv::DeviceBody;
  if (plan->row_count == 0) return cudaSuccess;
  const auto launch = [&](auto kernel, DeviceBody body, std::int64_t rows_each) {
    const bool is_transpose = body == DeviceBody::kTranspose || body == DeviceBody::kSimpleTranspose;
    int parts = 0;
    std::int64_t heads = 1;  // a transposition has a tile for each; the others take them as they take vectors
    for (int i = 0; i < plan->part_count; ++i) {
      if (plan->parts[i].body != body) continue;
      ++parts;
      if (is_transpose && plan->parts[i].part.heads > heads) heads = plan->parts[i].part.heads;
    }
    if (parts == 0) return;
    const std::int64_t wanted = (plan->row_count + rows_each - 1) / rows_each;
    const dim3 grid(static_cast<unsigned>(wanted < block_count_max ? wanted : block_count_max),
                    static_cast<unsigned>(parts * plan->layer_count), static_cast<unsigned>(heads));
    kernel<<<grid, kv::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*plan);
  };
  launch(kv::permute_kernel<DeviceBody::kWideCopy>, DeviceBody::kWideCopy, 4);
  launch(kv::permute_kernel<DeviceBody::kCopy>, DeviceBody::kCopy, 4);
  launch(kv::permute_kernel<DeviceBody::kCast>, DeviceBody::kCast, 1);
  launch(kv::permute_kernel<DeviceBody::kRotate>, DeviceBody::kRotate, 1);
  launch(kv::permute_kernel<DeviceBody::kQuantise>, DeviceBody::kQuantise, 1);
  launch(kv::transpose_kernel<DeviceBody::kSimpleTranspose>, DeviceBody::kSimpleTranspose, kv::device::kTileTokens);
  launch(kv::transpose_kernel<DeviceBody::kTranspose>, DeviceBody::kTranspose, kv::device::kTileTokens);
  return cudaGetLastError();
}

extern "C" int kv_cuda_scatter_kept(const kv::DevicePlan* plan, const kv::KeepRow* rows, std::int64_t row_count,
                                    void* stream, int block_count_max) {
  if (row_count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(row_count < block_count_max ? row_count : block_count_max),
                  static_cast<unsigned>(plan->part_count * plan->layer_count));
  kv::keep_kernel<<<grid, kv::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*plan, rows, row_count);
  return cudaGetLastError();
}

extern "C" int kv_cuda_abi_version() { return kv::kDeviceAbiVersion; }
extern "C" int kv_cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
extern "C" void* kv_cuda_allocate(std::size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
extern "C" int kv_cuda_free(void* memory) { return cudaFree(memory); }
extern "C" int kv_cuda_copy(void* to, const void* from, std::size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
extern "C" int kv_cuda_synchronise(void* stream) { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); }
