// gpu/device/cuda_functions.h: the functions of gpu/cuda/module_abi.h, found by name. For gpu/device/cuda_*.cc alone.
#pragma once

#include <dlfcn.h>

#include "gpu/cuda/module_abi.h"
#include "gpu/device/cuda_module.h"

namespace kv {

struct CudaModule::Functions {
  void* library = nullptr;
  decltype(&kv_cuda_abi_version) abi_version = nullptr;
  decltype(&kv_cuda_permute) permute = nullptr;
  decltype(&kv_cuda_warm_up) warm_up = nullptr;
  decltype(&kv_cuda_scatter_kept) scatter_kept = nullptr;
  decltype(&kv_cuda_checksum) checksum = nullptr;
  decltype(&kv_cuda_copy_batch) copy_batch = nullptr;
  decltype(&kv_cuda_copy_2d) copy_2d = nullptr;
  decltype(&kv_cuda_clear) clear = nullptr;
  decltype(&kv_cuda_device_count) device_count = nullptr;
  decltype(&kv_cuda_use_device) use_device = nullptr;
  decltype(&kv_cuda_pci_address) pci_address = nullptr;
  decltype(&kv_cuda_memory_of) memory_of = nullptr;
  decltype(&kv_cuda_allocate) allocate = nullptr;
  decltype(&kv_cuda_free) free = nullptr;
  decltype(&kv_cuda_copy) copy = nullptr;
  decltype(&kv_cuda_synchronise) synchronise = nullptr;
  decltype(&kv_cuda_allocate_page_locked) allocate_page_locked = nullptr;
  decltype(&kv_cuda_free_page_locked) free_page_locked = nullptr;
  decltype(&kv_cuda_lock_pages) lock_pages = nullptr;
  decltype(&kv_cuda_unlock_pages) unlock_pages = nullptr;
  decltype(&kv_cuda_export_dmabuf) export_dmabuf = nullptr;
  decltype(&kv_cuda_create_stream) create_stream = nullptr;
  decltype(&kv_cuda_destroy_stream) destroy_stream = nullptr;
  decltype(&kv_cuda_create_event) create_event = nullptr;
  decltype(&kv_cuda_destroy_event) destroy_event = nullptr;
  decltype(&kv_cuda_record) record = nullptr;
  decltype(&kv_cuda_wait_on_stream) wait_on_stream = nullptr;
  decltype(&kv_cuda_is_passed) is_passed = nullptr;
  decltype(&kv_cuda_wait) wait = nullptr;

  Functions() = default;
  Functions(const Functions&) = delete;
  ~Functions() {
    if (library) dlclose(library);
  }
};

}  // namespace kv
