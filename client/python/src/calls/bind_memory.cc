// Memory that nodes reach: the host's, which a client allocates, and a GPU's, which its owner lends.
#include "base/descriptor.h"
#include "client/python/src/caches/device.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/lent_memory.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"
#include "client/python/src/without_gil.h"

namespace kv::python {
namespace {

/// NumPy and torch views keep it alive by the buffer protocol.
class Memory {
 public:
  explicit Memory(std::shared_ptr<LentMemory> lent) : lent_(std::move(lent)) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    // Waits for the I/O thread, and other Python threads must be able to run meanwhile.
    const WithoutGil without_gil;
    lent_->unmap();  // here instead of on the I/O thread: 0.1 s per GiB
  }

  std::span<std::byte> bytes() const { return lent_->bytes(); }
  const std::shared_ptr<ClientCore>& core() const { return lent_->core(); }
  bool is_page_locked() const { return is_page_locked_; }
  void lock_pages(std::shared_ptr<const CudaModule> module) {
    // Takes as long as touching all pages.
    check_cuda(run_without_gil([&] { return lent_->lock_pages(std::move(module)); }), "page_locked");
    is_page_locked_ = true;
  }

 private:
  std::shared_ptr<LentMemory> lent_;
  bool is_page_locked_ = false;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {  // made by __new__ alone
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this Memory was not made by a client's allocate()");
    return -1;
  }
  const std::span<std::byte> bytes = nb::inst_ptr<Memory>(self)->bytes();
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), /*readonly=*/0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

/// The caller owns the result.
Memory* allocate_memory(const PyClient& self, std::size_t bytes, bool page_locked) {
  self.core()->check_open();
  if (self.core()->is_forked()) throw failure_of(Errc::kForked);
  const auto module = page_locked ? cuda() : nullptr;  // first: an error here spares touching the memory
  auto made = std::make_unique<Memory>(allocate(self.core(), bytes));
  if (module) made->lock_pages(module);
  return made.release();
}

/// As Client::lend, but an empty result at the deadline is an error: some node had yet to answer.
Async<std::size_t> lend_in_time(Client& client, std::span<std::byte> memory, std::chrono::microseconds deadline,
                                CallControl control) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  const auto lent = co_await client.lend(memory, deadline, control);
  // Before the deadline, 0 is an answer: all nodes are on other hosts and without RDMA.
  if (lent && *lent == 0 && std::chrono::steady_clock::now() >= until) co_return error_code(asio::error::timed_out);
  co_return lent;
}

std::size_t lend(ClientCore& core, std::span<std::byte> bytes, double deadline) {
  return core.ask<std::size_t>([bytes, time = deadline_of(deadline)](Client& client, CallControl control) {
    return lend_in_time(client, bytes, time, control);
  });
}

bool is_quarantined(ClientCore& core, std::span<const std::byte> bytes) {
  core.check_open();
  return value_of(
      run_without_gil([&] { return core.use([&](Client& client) { return client.is_quarantined(bytes); }); }));
}

// -- a GPU's memory

using DeviceRegion = DeviceRegions::Region;

/// What Python holds of it. The memory itself is held by the client's list, whatever becomes of this.
struct PyDeviceMemory {
  DeviceRegions::RegionPtr region;
};

/// An array of a device, or (address, bytes).
DeviceRegion region_of(nb::handle object) {
  DeviceRegion region;
  if (PyTuple_Check(object.ptr()) != 0) {
    if (nb::len(object) != 2) throw bad_request("memory: a tuple is (address, bytes)");
    region.bytes = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(object[nb::int_(0)])),
                    nb::cast<std::size_t>(object[nb::int_(1)])};
  } else {
    Array array(object, "memory", /*is_written=*/true, Place::kHostOrCuda);
    if (!array.is_on_device())
      throw bad_request("memory: lies in host memory; Client.allocate() makes host memory that nodes reach");
    region.bytes = array.all_bytes();
    region.owner.push_back(std::move(array));
  }
  if (region.bytes.data() == nullptr || region.bytes.empty()) throw bad_request("memory: is empty");
  return region;
}

/// Asks the driver, whatever the object said: devices would register a wrong address, and nodes write there.
int device_of(const CudaModule& module, std::span<std::byte> bytes) {
  const CudaModule::MemoryPlace first = module.place_of(bytes.data()), last = module.place_of(&bytes.back());
  if (first.kind != CudaModule::MemoryKind::kDevice || last.kind != first.kind || last.device != first.device)
    throw bad_request("memory: the CUDA driver knows of no device memory there");
  return first.device;
}

PyDeviceMemory add_device_memory(const PyClient& self, nb::handle object) {
  ClientCore& core = *self.core();
  core.check_open();
  const auto module = cuda();
  DeviceRegion made = region_of(object);
  made.device = device_of(*module, made.bytes);
  kv::DeviceMemory memory{.bytes = made.bytes};
  Descriptor dmabuf;  // the client duplicates it
  if (const auto exported = module->export_dmabuf(made.bytes)) {
    dmabuf = Descriptor(exported->fd);
    memory.dmabuf_fd = exported->fd;
    memory.dmabuf_offset = exported->offset;
    made.has_dmabuf = true;
  }
  const DeviceRegions::RegionPtr region = core.device_regions.add(std::move(made));
  const Result<void> added =
      run_without_gil([&] { return core.use([&](Client& client) { return client.add_device_memory(memory); }); });
  if (!added) {
    core.device_regions.remove(region);
    throw failure_of(added.error());
  }
  return {region};
}

void check_lent(const ClientCore& core, const PyDeviceMemory& memory) {
  if (!core.device_regions.has(memory.region)) throw bad_request("memory: another client's, or taken back already");
}

/// Until it has returned, RDMA devices may reach the memory, and its owner is held.
void take_back(const PyClient& self, const PyDeviceMemory& memory, double deadline) {
  ClientCore& core = *self.core();
  core.check_open();
  const DeviceRegions::RegionPtr region = memory.region;
  check_lent(core, memory);
  region->is_leaving = true;
  const Completion end =
      core.run({.op = Op::kRemoveDeviceMemory, .deadline = deadline_of(deadline), .memory = region->bytes});
  // After any other failure it goes on leaving: a later call waits for that.
  if (end.error == Errc::kBusy) region->is_leaving = false;
  check(core, end);
  core.device_regions.remove(region);
}

std::size_t element_count(nb::handle shape) {
  // A shape may be one number, as NumPy allows.
  if (PyLong_Check(shape.ptr()) != 0) return nb::cast<std::size_t>(shape);
  std::size_t count = 1;
  for (const nb::handle extent : shape) count *= nb::cast<std::size_t>(extent);
  return count;
}

/// A view by `library`'s frombuffer(), which holds a reference to `memory`: it stays mapped while any view lives.
nb::object view_of(const nb::module_& library, nb::handle memory, nb::handle shape, nb::handle type,
                   std::size_t offset) {
  const nb::object flat = library.attr("frombuffer")(
      memory, nb::arg("dtype") = type, nb::arg("count") = element_count(shape), nb::arg("offset") = offset);
  return flat.attr("reshape")(shape);
}

}  // namespace

void bind_memory(nb::module_& module, ClientClass& client) {
  using namespace nb::literals;
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots), nb::is_weak_referenceable())
      .def_prop_ro("nbytes", [](const Memory& memory) { return memory.bytes().size(); })
      .def_prop_ro("address",
                   [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.bytes().data()); })
      .def_prop_ro("is_page_locked", &Memory::is_page_locked)
      .def("__len__", [](const Memory& memory) { return memory.bytes().size(); })
      .def(
          "array",
          [](nb::object self, nb::handle shape, nb::handle dtype, std::size_t offset) {
            const nb::module_ numpy = nb::module_::import_("numpy");
            return view_of(numpy, self, shape, numpy.attr("dtype")(dtype), offset);
          },
          "shape"_a, "dtype"_a = "uint8", "offset"_a = 0)
      .def(
          "tensor",
          [](nb::object self, nb::handle shape, nb::handle dtype, std::size_t offset) {
            return view_of(nb::module_::import_("torch"), self, shape, dtype, offset);
          },
          "shape"_a, "dtype"_a, "offset"_a = 0);
  nb::class_<PyDeviceMemory>(module, "DeviceMemory")
      .def_prop_ro("nbytes", [](const PyDeviceMemory& memory) { return memory.region->bytes.size(); })
      .def_prop_ro(
          "address",
          [](const PyDeviceMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.region->bytes.data()); })
      .def_prop_ro("device", [](const PyDeviceMemory& memory) { return memory.region->device; })
      .def_prop_ro("has_dmabuf", [](const PyDeviceMemory& memory) { return memory.region->has_dmabuf; });
  client.def("allocate", &allocate_memory, "nbytes"_a, "page_locked"_a, nb::rv_policy::take_ownership)
      .def(
          "is_quarantined",
          [](const PyClient& self, const Memory& memory) { return is_quarantined(*self.core(), memory.bytes()); },
          "memory"_a)
      .def(
          "is_quarantined",
          [](const PyClient& self, const PyDeviceMemory& memory) {
            check_lent(*self.core(), memory);
            return is_quarantined(*self.core(), memory.region->bytes);
          },
          "memory"_a)
      .def("add_device_memory", &add_device_memory, "memory"_a)
      .def(
          "lend",
          [](const PyClient& self, const Memory& memory, double deadline) {
            // A region is lent over the sessions of the client that made it, and counts against its limit.
            if (memory.core() != self.core()) throw bad_request("memory: another client's");
            return lend(*self.core(), memory.bytes(), deadline);
          },
          "memory"_a, "deadline"_a)
      .def(
          "lend",
          [](const PyClient& self, const PyDeviceMemory& memory, double deadline) {
            check_lent(*self.core(), memory);
            return lend(*self.core(), memory.region->bytes, deadline);
          },
          "memory"_a, "deadline"_a)
      .def("take_back", &take_back, "memory"_a, "deadline"_a);
}

}  // namespace kv::python
