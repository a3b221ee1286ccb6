#include "client/python/src/caches/device.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <list>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"
#include "client/python/src/without_gil.h"
#include "transport/forked.h"

namespace kv::python {
namespace {

using namespace std::chrono_literals;

/// CUDA has no wait with a timeout, so such a wait polls.
constexpr auto kLookInterval = 20us;
/// Page-locked buffers kept for later calls, and the minimum size of each.
constexpr std::size_t kBuffersKept = 64, kBufferBytesMin = 4096;

struct Found {
  Result<std::shared_ptr<const CudaModule>, Failure> module = CudaModule::load();
  std::uint32_t generation = fork_generation();
};
const Found& found() {
  static const auto* const found = new Found;
  return *found;
}

struct Buffer {
  std::byte* memory;
  std::size_t bytes;
};
std::vector<Buffer>& spare_buffers() {
  static auto* const buffers = new std::vector<Buffer>;
  return *buffers;
}

struct Kept {
  std::shared_ptr<DeviceEvent> event;
  Scratch scratch;
  std::vector<nb::object> holds;
};
/// Never destroyed: at the process's end a device may still use the kept objects.
std::list<Kept>& all_kept() {
  static auto* const kept = new std::list<Kept>;
  return *kept;
}

bool is_invalid_handle(const error_code& error) {
  return std::string_view(error.category().name()) == "cuda" && error.value() == 400;
}

}  // namespace

std::shared_ptr<const CudaModule> cuda() {
  if (std::string why = why_no_cuda(); !why.empty()) {
    throw StatusError{status_of(make_error_code(Errc::kUnavailable)), "CUDA: " + std::move(why)};
  }
  return *found().module;
}

std::string why_no_cuda() {
  if (!found().module) return found().module.error().text;
  // A driver's state does not outlive fork().
  if (found().generation != fork_generation()) return "this process is a child of one that uses CUDA";
  return {};
}

void* stream_from(nb::handle stream) {
  if (nb::isinstance<DeviceStream>(stream)) return nb::cast<const DeviceStream&>(stream).handle();
  const nb::object handle = nb::getattr(stream, "cuda_stream", stream);
  std::uintptr_t number = 0;
  if (PyBool_Check(handle.ptr()) || !PyLong_Check(handle.ptr()) || !nb::try_cast(handle, number))
    throw bad_request("stream: " + std::string(nb::repr(stream).c_str()) +
                      " is no stream, has no cuda_stream and is no number");
  return reinterpret_cast<void*>(number);
}

void check_cuda(const Result<void>& done, const char* what) {
  if (done) return;
  if (is_invalid_handle(done.error())) {
    throw bad_request(std::string(what) + ": is no stream, or belongs to another CUDA device");
  }
  throw StatusError{status_of(done.error()), std::string(what) + ": " + done.error().message()};
}

std::shared_ptr<DeviceEvent> DeviceEvent::record(std::shared_ptr<const CudaModule> module, int device, void* stream) {
  const CudaModule::DeviceScope on_device(*module, device);
  check_cuda(on_device.status, "device");
  const auto event = module->create_event();
  if (!event) throw failure_of(event.error());
  const std::shared_ptr<DeviceEvent> made(new DeviceEvent(module, *event));
  check_cuda(module->record(*event, stream), "stream");
  return made;
}

DeviceEvent::~DeviceEvent() {
  if (found().generation == fork_generation()) module_->destroy_event(event_);
}

bool DeviceEvent::is_passed() const {
  cuda();  // not in a child of fork()
  bool is_passed = false;
  check_cuda(module_->ask(event_, &is_passed), "event");
  return is_passed;
}

bool DeviceEvent::has_passed_or_failed() const noexcept {
  if (found().generation != fork_generation()) return false;
  bool is_passed = false;
  const auto asked = module_->ask(event_, &is_passed);
  return !asked || is_passed;
}

bool DeviceEvent::wait(std::optional<double> seconds) const {
  using Clock = std::chrono::steady_clock;
  cuda();
  const auto until = seconds ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                  std::chrono::duration<double>(std::clamp(*seconds, 0.0, 1e9)))
                             : Clock::time_point::max();
  for (;;) {
    bool is_passed = false;
    Result<void> asked = Errc::kBadRequest;
    {
      const WithoutGil without_gil;
      const auto step = std::min(until, Clock::now() + kSignalInterval);
      for (;;) {
        asked = module_->ask(event_, &is_passed);
        if (!asked || is_passed || Clock::now() >= step) break;
        std::this_thread::sleep_for(kLookInterval);
      }
    }
    check_cuda(asked, "event");
    if (is_passed || Clock::now() >= until) return is_passed;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void DeviceEvent::hold(void* stream) const { check_cuda(module_->wait_on_stream(stream, event_), "stream"); }

DeviceStream::DeviceStream(int device) : module_(cuda()), device_(device) {
  if (device < 0 || device >= module_->device_count())
    throw bad_request("device: " + std::to_string(device) + " is not one of " +
                      std::to_string(module_->device_count()));
  const CudaModule::DeviceScope on_device(*module_, device);
  check_cuda(on_device.status, "device");
  const auto made = module_->create_stream();
  if (!made) throw failure_of(made.error());
  stream_ = *made;
}

DeviceStream::~DeviceStream() {
  if (stream_ != nullptr && found().generation == fork_generation()) module_->destroy_stream(stream_);
}

void DeviceStream::synchronise() const {
  cuda();
  check_cuda(run_without_gil([&] { return module_->synchronise(stream_); }), "stream");
}

Scratch::Scratch(const CudaModule& module, std::size_t bytes) {
  if (bytes == 0) return;
  std::vector<Buffer>& spare = spare_buffers();
  const auto fits = std::find_if(spare.begin(), spare.end(), [&](const Buffer& each) { return each.bytes >= bytes; });
  if (fits != spare.end()) {
    memory_ = fits->memory, bytes_ = fits->bytes;
    spare.erase(fits);
    return;
  }
  bytes_ = std::bit_ceil(std::max(bytes, kBufferBytesMin));
  memory_ = static_cast<std::byte*>(module.allocate_page_locked(bytes_));
  if (memory_ == nullptr) throw failure_of(make_error_code(Errc::kOutOfMemory));
}
Scratch::Scratch(Scratch&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), used_(other.used_) {}
Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(used_, other.used_);
  return *this;
}
Scratch::~Scratch() {
  if (memory_ == nullptr) return;
  std::vector<Buffer>& spare = spare_buffers();
  if (spare.size() < kBuffersKept) {
    try {
      spare.push_back({memory_, bytes_});
      return;
    } catch (const std::bad_alloc&) {  // then it is freed
    }
  }
  if (const auto& module = found().module; module && found().generation == fork_generation()) {
    (*module)->free_page_locked(memory_);
  }
}
const void* Scratch::keep(const void* from, std::size_t bytes) {
  KV_ASSERT(used_ + bytes <= bytes_ || bytes == 0);
  std::byte* const to = memory_ + used_;
  if (bytes > 0) std::memcpy(to, from, bytes);
  used_ += room_for(bytes);
  return to;
}

void keep_until(const std::shared_ptr<DeviceEvent>& event, Scratch scratch, std::vector<nb::object> holds) {
  all_kept().push_back({event, std::move(scratch), std::move(holds)});
}

void let_go() {
  std::list<Kept>& kept = all_kept();
  std::list<Kept> over;  // destroyed last: a release can run Python, and another thread may enter here
  for (auto each = kept.begin(); each != kept.end();) {
    const auto next = std::next(each);
    if (each->event->has_passed_or_failed()) over.splice(over.end(), kept, each);
    each = next;
  }
}

}  // namespace kv::python
