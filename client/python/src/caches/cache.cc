#include "client/python/src/caches/cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/python/src/caches/device.h"
#include "client/python/src/errors.h"

namespace kv::python {
namespace {

/// Bytes from an array's first element to the end of its last. From the array's own strides, since a view may end far
/// before its base does, and memory behind it belongs to others.
std::int64_t reach_of(const Array& array) {
  std::int64_t end = static_cast<std::int64_t>(array.item_bytes());
  for (std::size_t i = 0; i < array.dimensions(); ++i) {
    if (array.strides()[i] < 0) throw bad_request(array.name() + ": a negative stride");
    end += (array.shape()[i] - 1) * array.strides()[i];
  }
  return std::find(array.shape().begin(), array.shape().end(), 0) == array.shape().end() ? end : 0;
}

}  // namespace

Cache::Cache(Layout layout, const std::vector<nb::object>& tensors) {
  const auto per_layer = static_cast<std::size_t>(layout.tensor_count);
  std::vector<void*> pointers;
  for (const nb::object& object : tensors) {
    const std::size_t index = pointers.size();
    // Read access: a cache may be a source only, where read-only memory is fine. writable() refuses it as a target.
    arrays_.emplace_back(object, "tensors[" + std::to_string(index) + "]", /*is_written=*/false, Place::kHostOrCuda);
    const Array& array = arrays_.back();
    is_read_only_ |= array.is_read_only();
    const auto tensor = static_cast<int>(index % per_layer);
    const std::int64_t end = reach_of(array);
    if (end < layout.tensor_bytes(tensor))
      throw bad_request(array.name() + ": " + std::to_string(end) + " bytes, the layout reaches to " +
                        std::to_string(layout.tensor_bytes(tensor)));
    for (const Component& component : layout.components) {
      const auto address =
          reinterpret_cast<std::uintptr_t>(array.data()) + static_cast<std::uintptr_t>(component.offset_bytes);
      if (component.tensor == tensor && address % static_cast<std::uintptr_t>(element_bytes(component.element)) != 0)
        throw bad_request(array.name() + ": misaligned: the address is not a multiple of an element's size");
    }
    pointers.push_back(array.data());
  }
  const std::size_t expected =
      per_layer * (layout.has_all_layers_in_tensor ? 1 : static_cast<std::size_t>(layout.layer_count));
  if (pointers.size() != expected)
    throw bad_request("tensors: " + std::to_string(pointers.size()) + ", the layout has " + std::to_string(expected));
  const bool is_on_device = arrays_.front().is_on_device();
  for (const Array& array : arrays_) {
    if (array.is_on_device() != is_on_device)
      throw bad_request(array.name() + ": in " + (is_on_device ? "host memory" : "a CUDA device's memory") +
                        ", unlike tensors[0]");
  }
  if (is_on_device) place(*cuda());
  bound_ = value_of(bind_layout(std::move(layout), pointers));
}

Cache::Cache(BoundLayout bound, const Cache& of)
    : bound_(std::move(bound)), of_(&of), is_read_only_(of.is_read_only_), device_(of.device_) {}

/// From the driver: __cuda_array_interface__ does not name the device.
void Cache::place(const CudaModule& module) {
  for (const Array& array : arrays_) {
    const CudaModule::MemoryPlace found = module.place_of(array.data());
    if (found.kind != CudaModule::MemoryKind::kDevice)
      throw bad_request(array.name() + ": the CUDA driver knows of no device memory there");
    if (device_ >= 0 && found.device != device_)
      throw bad_request(array.name() + ": on CUDA device " + std::to_string(found.device) +
                        ", tensors[0] is on device " + std::to_string(device_));
    device_ = found.device;
  }
}

const BoundLayout& Cache::writable(const char* name) const {
  if (is_read_only_) throw bad_request(std::string(name) + ": the memory is read-only, and bytes land there");
  return bound_;
}

void Cache::check_reachable(const CudaModule& module, const char* name) const {
  if (of_ != nullptr) return of_->check_reachable(module, name);
  if (is_reachable_) return;
  for (const Array& array : arrays_) {
    const std::int64_t end = reach_of(array);
    for (const std::int64_t at : {std::int64_t{0}, std::max<std::int64_t>(end - 1, 0)}) {
      if (module.place_of(array.data() + at).kind == CudaModule::MemoryKind::kHost)
        throw bad_request(std::string(name) +
                          ": host memory that is not page-locked, which a device does not reach. Give what "
                          "Client.allocate(page_locked=True) gives, or pinned memory of another library");
    }
  }
  is_reachable_ = true;
}

}  // namespace kv::python
