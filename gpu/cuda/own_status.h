// gpu/cuda/own_status.h: pairs an error with its call.
//
// CUDA keeps a thread's last error (an event that is not ready, a refused allocation) until cudaGetLastError() takes
// it. A launch written <<<>>> reports its own error only there, so it would report an earlier one, ours or the
// engine's. Here each call returns its own status and clears the last error.
#pragma once

#include <cuda_runtime.h>

namespace kv {

/// Returns `status`, and clears the thread's last error if it is one. For the status of a call just made.
inline int own_status(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status;
}

/// kernel<<<grid, threads, 0, stream>>>(arguments...), returning the status of this launch alone.
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
