// gpu/cuda/own_status.h: which call an error belongs to.
//
// CUDA keeps a thread's last error until cudaGetLastError() takes it: an event that is not ready, an allocation that is
// refused. A launch written <<<>>> tells its own only there, so it would report what an earlier call, ours or the
// engine's, left behind. Here each call tells the status that it got and leaves nothing.
#pragma once

#include <cuda_runtime.h>

namespace kv {

/// Returns `status`, no longer the thread's last error if it is one. For the status of a call just made.
inline int own_status(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status;
}

/// kernel<<<grid, threads, 0, stream>>>(arguments...), and what came of this launch alone.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, void* stream,
                          Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<cudaError_t>(own_status(cudaLaunchKernelEx(&config, kernel, arguments...)));
}

}  // namespace kv
