// transport/verbs/verbs_devices.h: the devices that a process uses, opened, and memory registered with all of them.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_choice.h"

namespace kv::verbs {

/// A device, and the domain that the process's memory and queue pairs on it share.
struct OpenDevice {
  /// Where it is reached now: its link may have gone or come, its addresses may have changed. Errors: kUnavailable, or
  /// the device's; `why` says what is missing. May take long. Thread safety: any thread, if the provider's is.
  Result<Attachment> attach(std::string* why) const;

  DeviceWish wish;
  std::uint8_t traffic_class = 0;
  DeviceLimits limits;
  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> domain;
};

/// Whether an error of a device's says that it was pulled out or reset: what was made of it is of no more use.
bool is_gone(error_code error);

struct DevicesConfig {
  /// Each as parse_device_wish() reads it. Empty: all that can be attached, nearest to the calling thread first.
  std::vector<std::string> names = {};
  std::size_t count_max = 4;       ///< If none is named.
  std::uint8_t traffic_class = 0;  ///< Of what goes to peers: Path::traffic_class.
};

/// Opens them, in the order of choose_devices(). One that cannot be used is left out, but not one that is named and
/// lacks no more than a link or an address: OpenDevice::attach() tells when it has them. `why` says what each lacks
/// that is left out, also on success. Errors: kUnavailable: none can be attached now. May take long.
Result<std::vector<OpenDevice>> open_devices(Provider& provider, const DevicesConfig& config, std::string* why);

/// One of them, whether it can be attached now or not. Errors: the device's; `why` says which. May take long.
Result<OpenDevice> open_device(Provider& provider, const DeviceWish& wish, std::uint8_t traffic_class,
                               std::string* why);

/// One stretch of memory, registered with each of several devices that can, in slices of equal size but the last.
class RegisteredMemory {
 public:
  /// `slice_bytes_max` 0: as much as every device takes at once. May take long: 0.2 s a GiB. `memory` and `devices`
  /// outlive it. A device that refuses is left out; `why` names it, also on success. Errors: those of register_memory,
  /// if all refuse.
  static Result<std::unique_ptr<RegisteredMemory>> make(std::span<const OpenDevice> devices,
                                                        std::span<std::byte> memory, Access access,
                                                        std::uint64_t slice_bytes_max, std::string* why);
  /// The same for memory that is not the processor's, a GPU's for instance: `addresses` are what the peer calls it, and
  /// nothing here touches them. Through the dma-buf that begins `dmabuf_offset` bytes before it (`dmabuf_fd` < 0: there
  /// is none), or where a device or the kernel cannot do that, by its addresses, which needs a driver that knows them
  /// (nvidia-peermem). As make(); `why` names both ways.
  static Result<std::unique_ptr<RegisteredMemory>> make_of_device(std::span<const OpenDevice> devices,
                                                                  std::span<std::byte> addresses, int dmabuf_fd,
                                                                  std::uint64_t dmabuf_offset, Access access,
                                                                  std::string* why);

  std::span<std::byte> memory() const { return memory_; }
  std::uint64_t slice_bytes() const { return slice_bytes_; }
  std::size_t slice_count() const { return slice_count_; }
  /// From `from` on, at most `bytes_max` bytes that lie in one slice.
  std::span<std::byte> within_slice(const std::byte* from, std::uint64_t bytes_max) const;
  bool has(std::size_t device) const { return regions_[device * slice_count_] != nullptr; }
  /// Of the slice that `at` lies in. Requires has(device), as the next one does.
  std::uint32_t lkey(std::size_t device, const std::byte* at) const { return region(device, slice_of(at)).lkey(); }
  std::uint32_t rkey(std::size_t device, std::size_t slice) const { return region(device, slice).rkey(); }

 private:
  using RegisterSlice = std::function<Result<std::unique_ptr<MemoryRegion>>(ProtectionDomain&, std::uint64_t begin,
                                                                            std::uint64_t bytes, std::string* why)>;

  RegisteredMemory(std::span<std::byte> memory, std::uint64_t slice_bytes);
  static Result<std::unique_ptr<RegisteredMemory>> make_slices(std::span<const OpenDevice> devices,
                                                               std::span<std::byte> memory,
                                                               std::uint64_t slice_bytes_max,
                                                               const RegisterSlice& register_slice, std::string* why);
  std::size_t slice_of(const std::byte* at) const {
    return static_cast<std::uint64_t>(at - memory_.data()) / slice_bytes_;
  }
  const MemoryRegion& region(std::size_t device, std::size_t slice) const {
    return *regions_[device * slice_count_ + slice];
  }

  std::span<std::byte> memory_;
  std::uint64_t slice_bytes_;
  std::size_t slice_count_;
  std::vector<std::unique_ptr<MemoryRegion>> regions_;  ///< Slice by slice, device after device; null: left out.
};

/// Makes calls that may take long (opening, registering, connecting a queue pair, reading many bytes) away from an
/// event loop. Thread safety: any thread. The destructor is finish().
class SlowCalls {
 public:
  /// `in_place`: calls are made at once by who asks, for a provider that is not thread-safe. With several threads, in
  /// no order.
  explicit SlowCalls(bool in_place, std::size_t thread_count = 1);
  ~SlowCalls();

  /// Makes `call`, then `then` on `executor`, where an exception of `call` is thrown instead. What they hold is let go
  /// there. The executor's context outlives this, or finish() is called before it ends.
  void run(std::function<void()> call, const asio::any_io_executor& executor, std::function<void()> then);
  /// Waits for calls that are being made. Those that wait for their turn, and later ones, are not made: what comes
  /// after them comes nonetheless, and has to find its way without.
  void finish();

 private:
  std::unique_ptr<asio::thread_pool> threads_;
  std::atomic<bool> is_finished_{false};
};

}  // namespace kv::verbs
