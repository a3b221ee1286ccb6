// gpu/cuda/transfer.cu: memory, streams, events and copies for the host's side of the module. No kernels.
#include <cuda_runtime.h>

#include "gpu/cuda/module_abi.h"

namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

#if CUDART_VERSION >= 12080
/// One call of the driver for all copies. cudaErrorNotSupported if it cannot: an older driver, a legacy default stream.
cudaError_t copy_in_one_call(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                             cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return cudaErrorNotSupported;
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder =
      cudaMemcpySrcAccessOrderStream;  // "any" may read before the stream's kernels have written
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

}  // namespace

extern "C" int kv_cuda_copy_batch(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                                  void* stream) {
  if (count == 0) return cudaSuccess;
#if CUDART_VERSION >= 12080
  const cudaError_t batched = copy_in_one_call(to, from, bytes, count, as_stream(stream));
  if (batched == cudaSuccess) return batched;
  if (batched != cudaErrorNotSupported && batched != cudaErrorCallRequiresNewerDriver) return batched;
  static_cast<void>(cudaGetLastError());  // it is no error of the copies'
#endif
  for (std::size_t i = 0; i < count; ++i) {
    const cudaError_t copied = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, as_stream(stream));
    if (copied != cudaSuccess) return copied;
  }
  return cudaSuccess;
}

extern "C" int kv_cuda_copy_2d(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                               std::size_t width_bytes, std::size_t height, void* stream) {
  if (to_pitch == width_bytes && from_pitch == width_bytes) {
    return cudaMemcpyAsync(to, from, width_bytes * height, cudaMemcpyDefault, as_stream(stream));
  }
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width_bytes, height, cudaMemcpyDefault, as_stream(stream));
}
extern "C" int kv_cuda_clear(void* memory, std::size_t bytes, void* stream) {
  return cudaMemsetAsync(memory, 0, bytes, as_stream(stream));
}
extern "C" int kv_cuda_copy(void* to, const void* from, std::size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
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
extern "C" void* kv_cuda_allocate_page_locked(std::size_t bytes) {
  void* memory = nullptr;
  return cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess ? memory : nullptr;
}
extern "C" int kv_cuda_free_page_locked(void* memory) { return cudaFreeHost(memory); }
extern "C" int kv_cuda_lock_pages(void* memory, std::size_t bytes) {
  return cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
}
extern "C" int kv_cuda_unlock_pages(void* memory) { return cudaHostUnregister(memory); }

extern "C" int kv_cuda_synchronise(void* stream) { return cudaStreamSynchronize(as_stream(stream)); }
extern "C" int kv_cuda_create_stream(void** stream) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
}
extern "C" int kv_cuda_destroy_stream(void* stream) { return cudaStreamDestroy(as_stream(stream)); }
extern "C" int kv_cuda_create_event(void** event) {
  return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                  cudaEventDisableTiming | cudaEventBlockingSync);
}
extern "C" int kv_cuda_destroy_event(void* event) { return cudaEventDestroy(as_event(event)); }
extern "C" int kv_cuda_record(void* event, void* stream) { return cudaEventRecord(as_event(event), as_stream(stream)); }
extern "C" int kv_cuda_wait_on_stream(void* stream, void* event) {
  return cudaStreamWaitEvent(as_stream(stream), as_event(event), 0);
}
extern "C" int kv_cuda_is_passed(void* event, int* is_passed) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  *is_passed = status == cudaSuccess;
  return status == cudaErrorNotReady ? cudaSuccess : status;
}
extern "C" int kv_cuda_wait(void* event) { return cudaEventSynchronize(as_event(event)); }
