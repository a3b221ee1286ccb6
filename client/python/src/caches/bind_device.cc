// Streams and events of a GPU, and where a call runs. Users see client/python/kvstore/device.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>

#include "client/python/src/bind.h"
#include "client/python/src/caches/device.h"
#include "client/python/src/caches/device_call.h"

namespace kv::python {
namespace {

void* stream_from(std::uintptr_t handle) { return reinterpret_cast<void*>(handle); }

}  // namespace

void bind_device(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<DeviceEvent>(module, "Event")
      .def_prop_ro("device", &DeviceEvent::device)
      .def("is_passed", &DeviceEvent::is_passed)
      .def("wait", &DeviceEvent::wait, "seconds"_a.none())
      .def(
          "hold", [](const DeviceEvent& self, std::uintptr_t stream) { self.hold(stream_from(stream)); }, "stream"_a);
  nb::class_<DeviceStream>(module, "Stream")
      .def(nb::init<int>(), "device"_a)
      .def_prop_ro("device", &DeviceStream::device)
      .def_prop_ro("handle", [](const DeviceStream& self) { return reinterpret_cast<std::uintptr_t>(self.handle()); })
      .def("synchronise", &DeviceStream::synchronise);
  nb::class_<Where>(module, "Where")
      .def(
          "__init__",
          [](Where* self, std::optional<std::uintptr_t> stream, int grid_max) {
            new (self) Where{stream, grid_max};
          },
          "stream"_a.none(), "grid_max"_a);
  module.def(
      "record_event",
      [](std::uintptr_t stream, int device) { return DeviceEvent::record(cuda(), device, stream_from(stream)); },
      "stream"_a, "device"_a);
  module.def("device_count", [] { return why_no_cuda().empty() ? cuda()->device_count() : 0; });
  module.def("why_no_device", &why_no_cuda);
  module.def(
      "pci_address",
      [](int device) {
        const auto address = cuda()->pci_address(device);
        check_cuda(address ? Result<void>() : Result<void>(address.error()), "device");
        return *address;
      },
      "device"_a);
  module.def(
      "warm_up",
      [](int device) {
        const auto loaded = cuda();
        const CudaModule::DeviceScope on_device(*loaded, device);
        check_cuda(on_device.status, "device");
        check_cuda(loaded->warm_up(), "device");
      },
      "device"_a);
}

}  // namespace kv::python
