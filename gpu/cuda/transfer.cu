// gpu/cuda/transfer.cu: memory, streams, events and copies for the host's side of the module. No kernels.
#include <cuda.h>  // types of the driver's functions: those are found at run time, nothing links the driver
#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include "gpu/cuda/module_abi.h"
#include "gpu/cuda/on_device.h"
#include "gpu/cuda/own_status.h"

namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

#if CUDART_VERSION >= 12080
/// One driver call for all copies. cudaErrorNotSupported: older driver, legacy default stream, or capture.
cudaError_t copy_in_one_call(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                             cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return cudaErrorNotSupported;
  // A batch in a capture would spoil it: a graph gets a node for each copy.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &capture);
  if (asked != cudaSuccess) return asked;
  if (capture != cudaStreamCaptureStatusNone) return cudaErrorNotSupported;
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder =
      cudaMemcpySrcAccessOrderStream;  // "any" may read before the stream's kernels have written
  // One set of attributes for all copies.
  std::size_t first = 0;
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first, 1, stream);
#else
  std::size_t failed = 0;
  return cudaMemcpyBatchAsync(const_cast<void**>(to), const_cast<void**>(from), const_cast<std::size_t*>(bytes), count,
                              &attributes, &first, 1, &failed, stream);
#endif
}
#endif

template <class Function>
cudaError_t find_in_driver(const char* name, unsigned int version, Function** function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t asked = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
  static_cast<void>(version);
  const cudaError_t asked = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (asked != cudaSuccess) return asked;
  if (result != cudaDriverEntryPointSuccess || found == nullptr) return cudaErrorNotSupported;
  *function = reinterpret_cast<Function*>(found);
  return cudaSuccess;
}

/// CUresult and cudaError_t share the values of the errors they both name.
cudaError_t as_error(CUresult result) { return static_cast<cudaError_t>(result); }

cudaError_t export_dmabuf(void* memory, std::size_t bytes, int* fd, std::uint64_t* offset) {
  cudaPointerAttributes attributes = {};
  const cudaError_t asked = cudaPointerGetAttributes(&attributes, memory);
  if (asked != cudaSuccess) return asked;
  if (attributes.type != cudaMemoryTypeDevice) return cudaErrorInvalidValue;
  const kv::OnDevice on_device(attributes.device);
  if (on_device.status != cudaSuccess) return on_device.status;

  decltype(cuPointerSetAttribute)* set = nullptr;
  cudaError_t found = find_in_driver("cuPointerSetAttribute", 6000, &set);
  if (found != cudaSuccess) return found;
  decltype(cuMemGetHandleForAddressRange)* get = nullptr;
  found = find_in_driver("cuMemGetHandleForAddressRange", 11070, &get);
  if (found != cudaSuccess) return found;

  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  // Memory of cuMemMap refuses it. Then checksums detect bytes that a copy has not brought yet.
  unsigned int is_synchronous = 1;
  static_cast<void>(set(&is_synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  // Whole pages of the host's size; allocations usually are, else the driver refuses.
  const auto page = static_cast<CUdeviceptr>(sysconf(_SC_PAGESIZE));
  const CUdeviceptr first = address / page * page, end = (address + bytes + page - 1) / page * page;
  int exported = -1;
  const CUresult got = get(&exported, first, end - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (got != CUDA_SUCCESS) return as_error(got);
  *fd = fcntl(exported, F_DUPFD_CLOEXEC, 3);  // above the standard streams' numbers, which a program may have closed
  close(exported);
  *offset = address - first;
  return *fd >= 0 ? cudaSuccess : cudaErrorOperatingSystem;
}

cudaError_t pci_address(int device, char* text, int text_bytes) {
  decltype(cuDeviceGet)* get = nullptr;
  cudaError_t found = find_in_driver("cuDeviceGet", 2000, &get);
  if (found != cudaSuccess) return found;
  decltype(cuDeviceGetPCIBusId)* address = nullptr;
  found = find_in_driver("cuDeviceGetPCIBusId", 4010, &address);
  if (found != cudaSuccess) return found;
  CUdevice handle = 0;
  const CUresult got = get(&handle, device);
  return as_error(got != CUDA_SUCCESS ? got : address(text, text_bytes, handle));
}

}  // namespace

extern "C" int kv_cuda_pci_address(int device, char* text, int text_bytes) {
  return kv::own_status(pci_address(device, text, text_bytes));
}

extern "C" int kv_cuda_export_dmabuf(void* memory, std::size_t bytes, int* fd, std::uint64_t* offset) {
  return kv::own_status(export_dmabuf(memory, bytes, fd, offset));
}

extern "C" int kv_cuda_copy_batch(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                                  void* stream) {
  if (count == 0) return cudaSuccess;
#if CUDART_VERSION >= 12080
  const cudaError_t batched = copy_in_one_call(to, from, bytes, count, as_stream(stream));
  kv::own_status(batched);
  if (batched != cudaErrorNotSupported && batched != cudaErrorCallRequiresNewerDriver) return batched;
#endif
  for (std::size_t i = 0; i < count; ++i) {
    const cudaError_t copied = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, as_stream(stream));
    if (copied != cudaSuccess) return kv::own_status(copied);
  }
  return cudaSuccess;
}

extern "C" int kv_cuda_copy_2d(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                               std::size_t width_bytes, std::size_t height, void* stream) {
  if (to_pitch == width_bytes && from_pitch == width_bytes) {
    return kv::own_status(cudaMemcpyAsync(to, from, width_bytes * height, cudaMemcpyDefault, as_stream(stream)));
  }
  return kv::own_status(
      cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width_bytes, height, cudaMemcpyDefault, as_stream(stream)));
}
extern "C" int kv_cuda_clear(void* memory, std::size_t bytes, void* stream) {
  return kv::own_status(cudaMemsetAsync(memory, 0, bytes, as_stream(stream)));
}
extern "C" int kv_cuda_copy(void* to, const void* from, std::size_t bytes) {
  return kv::own_status(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

extern "C" int kv_cuda_abi_version() { return kv::kDeviceAbiVersion; }
extern "C" int kv_cuda_device_count() {
  int count = 0;
  return kv::own_status(cudaGetDeviceCount(&count)) == cudaSuccess ? count : 0;
}

extern "C" int kv_cuda_use_device(int device, int* before) {
  const int status = kv::own_status(cudaGetDevice(before));
  return status == cudaSuccess && device >= 0 && device != *before ? kv::own_status(cudaSetDevice(device)) : status;
}

extern "C" int kv_cuda_memory_of(const void* memory, int* kind, int* device) {
  cudaPointerAttributes attributes = {};
  const int status = kv::own_status(cudaPointerGetAttributes(&attributes, memory));
  const bool is_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *kind = is_device ? 2 : attributes.type == cudaMemoryTypeHost ? 1 : 0;
  *device = is_device ? attributes.device : -1;
  return status;
}

extern "C" void* kv_cuda_allocate(std::size_t bytes) {
  void* memory = nullptr;
  return kv::own_status(cudaMalloc(&memory, bytes)) == cudaSuccess ? memory : nullptr;
}
extern "C" int kv_cuda_free(void* memory) { return kv::own_status(cudaFree(memory)); }
extern "C" void* kv_cuda_allocate_page_locked(std::size_t bytes) {
  void* memory = nullptr;
  return kv::own_status(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault)) == cudaSuccess ? memory : nullptr;
}
extern "C" int kv_cuda_free_page_locked(void* memory) { return kv::own_status(cudaFreeHost(memory)); }
extern "C" int kv_cuda_lock_pages(void* memory, std::size_t bytes) {
  // Portable: for every device of this process, not just the current one.
  return kv::own_status(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
}
extern "C" int kv_cuda_unlock_pages(void* memory) { return kv::own_status(cudaHostUnregister(memory)); }

extern "C" int kv_cuda_synchronise(void* stream) { return kv::own_status(cudaStreamSynchronize(as_stream(stream))); }
extern "C" int kv_cuda_create_stream(void** stream) {
  // Non-blocking: a stream that waits for the legacy default stream would wait for an engine's kernels.
  return kv::own_status(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking));
}
extern "C" int kv_cuda_destroy_stream(void* stream) { return kv::own_status(cudaStreamDestroy(as_stream(stream))); }
extern "C" int kv_cuda_create_event(void** event) {
  return kv::own_status(
      cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming | cudaEventBlockingSync));
}
extern "C" int kv_cuda_destroy_event(void* event) { return kv::own_status(cudaEventDestroy(as_event(event))); }
extern "C" int kv_cuda_record(void* event, void* stream) {
  return kv::own_status(cudaEventRecord(as_event(event), as_stream(stream)));
}
extern "C" int kv_cuda_wait_on_stream(void* stream, void* event) {
  return kv::own_status(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}
extern "C" int kv_cuda_is_passed(void* event, int* is_passed) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  kv::own_status(status);  // "not ready" also becomes the thread's last error
  *is_passed = status == cudaSuccess;
  return status == cudaErrorNotReady ? cudaSuccess : status;
}
extern "C" int kv_cuda_wait(void* event) { return kv::own_status(cudaEventSynchronize(as_event(event))); }
