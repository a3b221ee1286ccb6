// gpu/device/cuda_functions.h: the functions of gpu/cuda/module_abi.h, found by name. For gpu/device/cuda_*.cc alone.
#pragma once

#include <dlfcn.h>

#include "gpu/cuda/module_abi.h"
#include "gpu/device/cuda_module.h"

namespace kv {

struct CudaModule::Functions {
  explicit Functions(void* opened) : library(opened) {}
  Functions(const Functions&) = delete;
  ~Functions() { dlclose(library); }

  void* library;
  bool is_whole = true;  ///< None is null.
  decltype(&kv_cuda_abi_version) abi_version = find("kv_cuda_abi_version");
  decltype(&kv_cuda_permute) permute = find("kv_cuda_permute");
  decltype(&kv_cuda_warm_up) warm_up = find("kv_cuda_warm_up");
  decltype(&kv_cuda_scatter_kept) scatter_kept = find("kv_cuda_scatter_kept");
  decltype(&kv_cuda_checksum) checksum = find("kv_cuda_checksum");
  decltype(&kv_cuda_copy_batch) copy_batch = find("kv_cuda_copy_batch");
  decltype(&kv_cuda_copy_2d) copy_2d = find("kv_cuda_copy_2d");
  decltype(&kv_cuda_clear) clear = find("kv_cuda_clear");
  decltype(&kv_cuda_device_count) device_count = find("kv_cuda_device_count");
  decltype(&kv_cuda_use_device) use_device = find("kv_cuda_use_device");
  decltype(&kv_cuda_pci_address) pci_address = find("kv_cuda_pci_address");
  decltype(&kv_cuda_memory_of) memory_of = find("kv_cuda_memory_of");
  decltype(&kv_cuda_allocate) allocate = find("kv_cuda_allocate");
  decltype(&kv_cuda_free) free = find("kv_cuda_free");
  decltype(&kv_cuda_copy) copy = find("kv_cuda_copy");
  decltype(&kv_cuda_synchronise) synchronise = find("kv_cuda_synchronise");
  decltype(&kv_cuda_allocate_page_locked) allocate_page_locked = find("kv_cuda_allocate_page_locked");
  decltype(&kv_cuda_free_page_locked) free_page_locked = find("kv_cuda_free_page_locked");
  decltype(&kv_cuda_lock_pages) lock_pages = find("kv_cuda_lock_pages");
  decltype(&kv_cuda_unlock_pages) unlock_pages = find("kv_cuda_unlock_pages");
  decltype(&kv_cuda_export_dmabuf) export_dmabuf = find("kv_cuda_export_dmabuf");
  decltype(&kv_cuda_create_stream) create_stream = find("kv_cuda_create_stream");
  decltype(&kv_cuda_destroy_stream) destroy_stream = find("kv_cuda_destroy_stream");
  decltype(&kv_cuda_create_event) create_event = find("kv_cuda_create_event");
  decltype(&kv_cuda_destroy_event) destroy_event = find("kv_cuda_destroy_event");
  decltype(&kv_cuda_record) record = find("kv_cuda_record");
  decltype(&kv_cuda_wait_on_stream) wait_on_stream = find("kv_cuda_wait_on_stream");
  decltype(&kv_cuda_is_passed) is_passed = find("kv_cuda_is_passed");
  decltype(&kv_cuda_wait) wait = find("kv_cuda_wait");

 private:
  /// The address of any function.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol find(const char* name) {
    void* const address = dlsym(library, name);
    is_whole = is_whole && address != nullptr;
    return {address};
  }
};

}  // namespace kv
