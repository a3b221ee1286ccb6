// gpu/cuda/module_abi.h: what libkvstore_cuda.so exports. Only it links the CUDA runtime; everybody else loads it on
// demand (gpu/cuda_module.h), so that no program needs CUDA to start. Errors are cudaError_t values, 0 is success.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/compress.h"
#include "gpu/device_plan.h"

#pragma GCC visibility push(default)
extern "C" {
int kv_cuda_abi_version();  ///< kDeviceAbiVersion, as it was when the module was built.
/// Enqueues the plan on `stream` (a cudaStream_t) and returns what the launch said. Never waits, never allocates.
int kv_cuda_permute(const kv::DevicePlan* plan, void* stream, int block_count_max);
/// The same for the rows of a compressed cache; `rows` is the device's or page-locked.
int kv_cuda_scatter_kept(const kv::DevicePlan* plan, const kv::KeepRow* rows, std::int64_t row_count, void* stream,
                         int block_count_max);
int kv_cuda_device_count();
void* kv_cuda_allocate(std::size_t bytes);  ///< Null: no memory.
int kv_cuda_free(void* memory);
int kv_cuda_copy(void* to, const void* from, std::size_t bytes);  ///< Between any two memories; waits.
int kv_cuda_synchronise(void* stream);
}
#pragma GCC visibility pop
