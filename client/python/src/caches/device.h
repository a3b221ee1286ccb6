// client/python/src/caches/device.h: work that Python enqueues on a GPU: the CUDA module, streams, events, and objects
// kept until the device has used them. All calls hold the GIL, and release it while they wait.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device/cuda_module.h"

namespace kv::python {

namespace nb = nanobind;

/// The module, loaded once and never unloaded: CUDA may be gone before the process's last destructors run. Throws
/// kUnavailable with the reason: no module, no device, a child of fork().
std::shared_ptr<const CudaModule> cuda();
/// Why there is no module; empty if there is one.
std::string why_no_cuda();
/// The cudaStream_t of a DeviceStream, of an object with `cuda_stream`, or of a number. Throws for others.
void* stream_from(nb::handle stream);
/// Throws the error of a call into the module, naming `what`.
void check_cuda(const Result<void>& done, const char* what);

/// A moment on a stream. Passed once all earlier work of the stream is done. Thread safety: all.
class DeviceEvent {
 public:
  /// Now, on `stream` of `device`; -1: the thread's device.
  static std::shared_ptr<DeviceEvent> record(std::shared_ptr<const CudaModule> module, int device, void* stream);
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  bool is_passed() const;                          ///< Throws CUDA's errors.
  bool has_passed_or_failed() const noexcept;      ///< A failed device uses no memory any more.
  bool wait(std::optional<double> seconds) const;  ///< Whether it has passed by then. Ctrl-C ends it.
  void hold(void* stream) const;                   ///< Later work of that stream waits for it; the caller does not.

 private:
  DeviceEvent(std::shared_ptr<const CudaModule> module, void* event) : module_(std::move(module)), event_(event) {}

  const std::shared_ptr<const CudaModule> module_;
  void* const event_;
};

/// A stream of the package's own, independent of others unless told to wait.
class DeviceStream {
 public:
  explicit DeviceStream(int device);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  void* handle() const { return stream_; }
  int device() const { return device_; }
  void synchronise() const;

 private:
  const std::shared_ptr<const CudaModule> module_;
  const int device_;
  void* stream_ = nullptr;
};

/// A call's part of page-locked memory for kernels: ids, deltas, frequencies. Sized first, as addresses go out at once.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const CudaModule& module, std::size_t bytes);  ///< For all arrays of a call, by room_for().
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&& other) noexcept;
  ~Scratch();  ///< Returns the memory for reuse: readers must be done.

  static std::size_t room_for(std::size_t bytes) { return (bytes + 15) / 16 * 16; }
  template <class T>
  const T* keep(std::span<const T> values) {
    return static_cast<const T*>(keep(values.data(), values.size_bytes()));
  }

 private:
  const void* keep(const void* from, std::size_t bytes);

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0;
};

/// Releases objects whose events have passed. Before new work: freeing page-locked memory may wait for the device.
void let_go();
/// Keeps `holds` and `scratch` until the event has passed.
void keep_until(const std::shared_ptr<DeviceEvent>& event, Scratch scratch, std::vector<nb::object> holds);

}  // namespace kv::python
