// gpu/cuda/module_abi.h: exports of libkvstore_cuda.so, the only user of the CUDA runtime. Loaded on demand
// (gpu/device/cuda_module.h). Errors are cudaError_t values, 0 is success. The folder's files, in reading order:
//
//   module_abi.h   the exported functions
//   on_device.h    makes the device of a call current, and the thread's own device current again
//   own_status.h   pairs an error with its call
//   permute.cu     the kernels of permute() and of checksums
//   transfer.cu    memory, streams, events and copies
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/compress.h"
#include "gpu/device/device_checksum.h"
#include "gpu/device/device_plan.h"

#pragma GCC visibility push(default)
extern "C" {
int kv_cuda_abi_version();  ///< kDeviceAbiVersion at the module's build.
/// Enqueues the plan on `stream` (a cudaStream_t) and returns the launch's status. Never waits, never allocates. Runs
/// on the pages' device, whatever the thread's current one; a stream of another device is refused.
int kv_cuda_permute(const kv::DevicePlan* plan, void* stream, int block_count_max);
/// Loads the thread's device's kernels. At first launch that takes milliseconds, and fails in some captures.
int kv_cuda_warm_up();
/// kv_cuda_permute() for the rows of a compressed cache; `rows` is device memory or page-locked.
int kv_cuda_scatter_kept(const kv::DevicePlan* plan, const kv::KeepRow* rows, std::int64_t row_count, void* stream,
                         int block_count_max);
/// Enqueues checksums of blocks, on the device of the pages. A comparison writes all verdicts.
int kv_cuda_checksum(const kv::DeviceChecksum* job, const void* pages, void* stream);
/// Enqueues copies to[i] <- from[i] of bytes[i], in one call where the driver can; reads the arrays at once.
int kv_cuda_copy_batch(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                       void* stream);
int kv_cuda_copy_2d(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width_bytes,
                    std::size_t height, void* stream);
int kv_cuda_clear(void* memory, std::size_t bytes, void* stream);
int kv_cuda_device_count();
int kv_cuda_use_device(int device, int* before);  ///< Makes it the thread's and returns the previous one; -1: only
                                                  ///< returns.
/// PCI address as zero-terminated text, such as "0000:3B:00.0". cudaErrorNotSupported: unknown to the driver.
int kv_cuda_pci_address(int device, char* text, int text_bytes);
/// Kind of memory: 0 host, 1 host and page-locked, 2 device. `device`: its number, -1 for host memory.
int kv_cuda_memory_of(const void* memory, int* kind, int* device);
void* kv_cuda_allocate(std::size_t bytes);  ///< Null: out of memory.
int kv_cuda_free(void* memory);
int kv_cuda_copy(void* to, const void* from, std::size_t bytes);  ///< Between any two memories; waits.
int kv_cuda_synchronise(void* stream);
void* kv_cuda_allocate_page_locked(std::size_t bytes);  ///< Host memory that kernels reach. Null: out of memory.
int kv_cuda_free_page_locked(void* memory);
int kv_cuda_lock_pages(void* memory, std::size_t bytes);  ///< For the caller's own memory, until it is unlocked.
int kv_cuda_unlock_pages(void* memory);
/// A dma-buf of device memory that RDMA devices can register: the caller closes `fd`, and `memory` begins `offset`
/// bytes after its start. From then on the driver's copies to or from `memory` are complete when they return, where the
/// driver supports that. cudaErrorNotSupported: not on this system; cudaErrorInvalidValue: not device memory.
int kv_cuda_export_dmabuf(void* memory, std::size_t bytes, int* fd, std::uint64_t* offset);
int kv_cuda_create_stream(void** stream);  ///< Independent of other streams, the default one included.
int kv_cuda_destroy_stream(void* stream);
int kv_cuda_create_event(void** event);
int kv_cuda_destroy_event(void* event);
int kv_cuda_record(void* event, void* stream);
int kv_cuda_wait_on_stream(void* stream, void* event);
int kv_cuda_is_passed(void* event, int* is_passed);
int kv_cuda_wait(void* event);
}
#pragma GCC visibility pop
