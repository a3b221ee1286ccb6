// gpu/cuda/on_device.h: selects a call's device. CUDA launches on the thread's current device, which the engine
// chooses: a launch on another device's stream is error 400. (CudaModule::DeviceScope does the same for the host.)
#pragma once

#include <cuda_runtime.h>

#include "gpu/cuda/own_status.h"
#include "gpu/device/device_plan.h"

namespace kv {

/// Makes a device current in its scope, then restores the previous one. -1: no change.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (device < 0) return;
    status = static_cast<cudaError_t>(own_status(cudaGetDevice(&before_)));
    if (status != cudaSuccess || before_ == device) {
      before_ = -1;
      return;
    }
    status = static_cast<cudaError_t>(own_status(cudaSetDevice(device)));
  }
  ~OnDevice() {
    if (before_ >= 0) own_status(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaError_t status = cudaSuccess;

 private:
  int before_ = -1;
};

/// The device that holds this memory; -1: host memory, or a machine with one device.
inline int device_of(const void* memory) {
  static const int device_count = [] {
    int count = 0;
    return own_status(cudaGetDeviceCount(&count)) == cudaSuccess ? count : 0;
  }();
  if (device_count < 2) return -1;
  cudaPointerAttributes attributes = {};
  if (own_status(cudaPointerGetAttributes(&attributes, memory)) != cudaSuccess) return -1;
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

/// The device of a plan's pages: one side may be host memory.
inline int device_of(const DevicePlan& plan) {
  const int device = device_of(plan.bases[0]);
  return device >= 0 ? device : device_of(plan.bases[plan.layer_count * plan.to_width]);
}

}  // namespace kv
