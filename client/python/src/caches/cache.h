// client/python/src/caches/cache.h: a layout bound to memory from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "client/python/src/buffers.h"
#include "gpu/device/cuda_module.h"
#include "gpu/layout.h"

namespace kv::python {

/// A layout, its addresses, and the memory's owners: all on the host, or all on one CUDA device.
class Cache {
 public:
  Cache(Layout layout, const std::vector<nb::object>& tensors);
  /// A part of another cache, which has to outlive this one, so the arrays are not held twice.
  Cache(BoundLayout bound, const Cache& of);
  Cache(Cache&&) = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const BoundLayout& bound() const { return bound_; }
  const BoundLayout& writable(const char* name) const;
  int device() const { return device_; }  ///< -1: the host.

  /// Throws unless a device's kernels can reach this host memory: all must be page-locked. `name` is the argument's.
  void check_reachable(const CudaModule& module, const char* name) const;

 private:
  void place(const CudaModule& module);

  std::vector<Array> arrays_;
  BoundLayout bound_;
  const Cache* of_ = nullptr;
  bool is_read_only_ = false;
  int device_ = -1;
  mutable bool is_reachable_ = false;  ///< Checked once: the pages stay locked until after the last view.
};

}  // namespace kv::python
