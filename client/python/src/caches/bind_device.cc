// Streams and events of a GPU: client/python/kvstore/device.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>

#include "client/python/src/bind.h"
#include "client/python/src/caches/device.h"

namespace kv::python {

void bind_device(nb::module_& module) {
  using namespace nb::literals;
  const auto record_on = [](const DeviceStream& stream) {
    return DeviceEvent::record(cuda(), stream.device(), stream.handle());
  };
  nb::class_<DeviceEvent>(module, "Event")
      .def_prop_ro("is_passed", &DeviceEvent::is_passed)
      .def("wait", &DeviceEvent::wait, "timeout"_a = nb::none())
      .def(
          "hold", [](const DeviceEvent& self, nb::handle stream) { self.hold(stream_from(stream)); }, "stream"_a);
  nb::class_<DeviceStream>(module, "Stream")
      .def(nb::init<int>(), "device"_a = 0)
      .def_prop_ro("device", &DeviceStream::device)
      .def_prop_ro("handle", [](const DeviceStream& self) { return reinterpret_cast<std::uintptr_t>(self.handle()); })
      .def("record", record_on)
      .def(
          "wait", [](const DeviceStream& self, const DeviceEvent& event) { event.hold(self.handle()); }, "event"_a)
      .def("synchronise", &DeviceStream::synchronise);
  module.def(
      "record",
      [=](nb::handle stream, std::optional<int> device) {
        if (nb::isinstance<DeviceStream>(stream)) return record_on(nb::cast<const DeviceStream&>(stream));
        void* const handle = stream_from(stream);
        return DeviceEvent::record(cuda(), device.value_or(-1), handle);
      },
      "stream"_a, "device"_a = nb::none());
  module.def(
      "stream_handle", [](nb::handle stream) { return reinterpret_cast<std::uintptr_t>(stream_from(stream)); },
      "stream"_a);
  module.def("device_count", [] { return why_no_cuda().empty() ? cuda()->device_count() : 0; });
  module.def("why_no_device", &why_no_cuda);
  module.def(
      "pci_address",
      [](int device) {
        const auto address = cuda()->pci_address(device);
        check_cuda(address ? Result<void>() : Result<void>(address.error()), "device");
        return *address;
      },
      "device"_a = 0);
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
