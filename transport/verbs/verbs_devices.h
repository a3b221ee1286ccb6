// transport/verbs/verbs_devices.h: the devices that a process uses, opened, and memory registered with all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_choice.h"

namespace kv::verbs {

/// A device, with the one domain shared by this process's memory and queue pairs on it.
struct OpenDevice {
  /// The device's present attachment: link and addresses may have changed. Errors: kUnavailable, or the device's; the
  /// text names the missing part. May take long. Thread safety: any thread, if the provider allows that.
  Result<Attachment, Failure> attach() const;

  DeviceWish wish;
  std::uint8_t traffic_class = 0;
  DeviceLimits limits;
  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> domain;
};

/// Whether an error means that the device was pulled out or reset: all objects made from it are then useless.
bool is_gone(error_code error);

struct DevicesConfig {
  /// Each as parse_device_wish() reads it. Empty: all that can be attached, nearest to the calling thread first.
  std::vector<std::string> names = {};
  std::size_t count_max = 4;       ///< Without names.
  std::uint8_t traffic_class = 0;  ///< Of packets to peers: Path::traffic_class.
};

struct OpenDevices {
  std::vector<OpenDevice> devices;
  std::string left_out;  ///< Reasons for each skipped device. Empty: all are used.
};
/// Opens the devices, in the order of choose_devices(), and skips unusable ones. A named device that lacks only a link
/// or an address is kept: OpenDevice::attach() succeeds once it has them. Errors: kUnavailable: no device can be
/// attached now; the text has each one's reason. May take long.
Result<OpenDevices, Failure> open_devices(Provider& provider, const DevicesConfig& config);

/// Opens one device, attachable or not. Errors: the device's; the text names it. May take long.
Result<OpenDevice, Failure> open_device(Provider& provider, const DeviceWish& wish, std::uint8_t traffic_class);

/// One range of memory, registered with each capable device, in slices of one size (the last may be shorter). A slice
/// is one registration with its own keys, since devices limit the size of one registration.
class RegisteredMemory {
 public:
  /// `slice_bytes_max` 0: the largest size that every device takes. May take long: 0.2 s a GiB. `memory` and `devices`
  /// outlive the result. Devices that refuse are skipped. If all refuse: register_memory's errors and texts.
  static Result<std::unique_ptr<RegisteredMemory>, Failure> make(std::span<const OpenDevice> devices,
                                                                 std::span<std::byte> memory, Access access,
                                                                 std::uint64_t slice_bytes_max);
  /// The same for memory that the processor does not own, such as a GPU's: the peer names it by `addresses`, which are
  /// not touched here. Tried first through the dma-buf that begins `dmabuf_offset` bytes earlier (`dmabuf_fd` < 0:
  /// skipped). Where a device or the kernel cannot do that, by the addresses themselves, which needs a driver that
  /// supports them (nvidia-peermem). As make(); a refusal names both ways.
  static Result<std::unique_ptr<RegisteredMemory>, Failure> make_of_device(std::span<const OpenDevice> devices,
                                                                           std::span<std::byte> addresses,
                                                                           int dmabuf_fd, std::uint64_t dmabuf_offset,
                                                                           Access access);
  const std::string& left_out() const { return left_out_; }  ///< The devices that refused, and why.

  std::span<std::byte> memory() const { return memory_; }
  std::uint64_t slice_bytes() const { return slice_bytes_; }
  std::size_t slice_count() const { return slice_count_; }
  /// The bytes from `from` on that lie in one slice, at most `bytes_max`.
  std::span<std::byte> within_slice(const std::byte* from, std::uint64_t bytes_max) const;
  bool has(std::size_t device) const { return regions_[device * slice_count_] != nullptr; }
  /// Key of the slice that contains `at`. Both keys require has(device).
  std::uint32_t lkey(std::size_t device, const std::byte* at) const { return region(device, slice_of(at)).lkey(); }
  std::uint32_t rkey(std::size_t device, std::size_t slice) const { return region(device, slice).rkey(); }

 private:
  using RegisterSlice = std::function<Result<std::unique_ptr<MemoryRegion>, Failure>(
      ProtectionDomain&, std::uint64_t begin, std::uint64_t bytes)>;

  RegisteredMemory(std::span<std::byte> memory, std::uint64_t slice_bytes);
  static Result<std::unique_ptr<RegisteredMemory>, Failure> make_slices(std::span<const OpenDevice> devices,
                                                                        std::span<std::byte> memory,
                                                                        std::uint64_t slice_bytes_max,
                                                                        const RegisterSlice& register_slice);
  std::size_t slice_of(const std::byte* at) const {
    KV_ASSERT(at >= memory_.data() && at < memory_.data() + memory_.size());
    return static_cast<std::uint64_t>(at - memory_.data()) / slice_bytes_;
  }
  /// Checks for both kinds of key that the slice exists and that the device has registered it.
  const MemoryRegion& region(std::size_t device, std::size_t slice) const {
    const std::size_t index = device * slice_count_ + slice;
    KV_ASSERT(slice < slice_count_ && index < regions_.size() && regions_[index] != nullptr);
    return *regions_[index];
  }

  std::span<std::byte> memory_;
  std::uint64_t slice_bytes_;
  std::size_t slice_count_;
  std::string left_out_;
  std::vector<std::unique_ptr<MemoryRegion>> regions_;  ///< Slice by slice, device after device; null: not registered.
};

}  // namespace kv::verbs
