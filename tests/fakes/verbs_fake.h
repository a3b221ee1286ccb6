// tests/fakes/verbs_fake.h: verbs inside one process, on a Clock, with faults. Bytes really move, with every check
// that a device makes. On a VirtualClock every run of a seed is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/fakes/virtual_clock.h"
#include "transport/verbs/verbs.h"

namespace kv::verbs {

struct FakeOptions {
  std::uint64_t seed = 1;
  std::uint32_t device_count = 2;                ///< fake0, fake1, ... each with one port, all on one network.
  Duration delay_min = 1us, delay_max = 50us;    ///< Of each packet and each completion. Order is kept per queue pair.
  std::uint32_t packet_bytes_max = 16 * 1024;    ///< Transfers are split into packets of 1..this many bytes.
  double fault_probability = 0;                  ///< Per packet: its request fails with a random status.
  std::uint64_t registered_bytes_max = 1 << 30;  ///< Of one device, as a memlock limit.
  bool takes_dmabuf = true;
  DeviceLimits limits{.region_bytes_max = 1 << 30,
                      .queue_pair_count_max = 1024,
                      .request_count_max = 4096,
                      .completion_count_max = 32767,
                      .piece_count_max = 16,
                      .read_count_max = 16};
  std::uint32_t inline_bytes_max = 220;
};

/// A queue pair takes packets only from its connected queue pair, with the agreed first PSN. Requests of one queue pair
/// are carried out one after the other, which is more than devices promise. A packet in flight still lands after its
/// queue pair went to ERROR, if the peer's still takes packets; a READ's bytes until the flush is reported. Each key is
/// given once. Thread safety: none; all calls on the executor's one thread. Outlives its devices.
class FakeVerbs final : public Provider {
 public:
  FakeVerbs(Clock& clock, const asio::any_io_executor& executor, const FakeOptions& options);
  ~FakeVerbs() override;

  std::vector<std::string> device_names() const override;
  Result<std::unique_ptr<Device>> open(const std::string& name) override;

  /// Fails the request of the device's next packet; errors about the peer also its queue pair. Calls add up.
  void fail_next(const std::string& device, Status status);
  void set_fault_probability(double probability);
  void set_link(const std::string& device, bool is_up);  ///< Packets are lost while it is down.
  /// As if pulled out: requests never complete, take_events() fails, calls get ENODEV. Handles stay destroyable.
  void remove_device(const std::string& device);
  /// As if put in again, at its old address. It has to be opened anew: old handles stay those of a removed device.
  void return_device(const std::string& device);
  /// Replaces FakeOptions::registered_bytes_max until the device is removed.
  void set_registered_bytes_max(const std::string& device, std::uint64_t bytes_max);
  /// The device's present queue pairs stop at once and for ever, as when their process is killed.
  void kill(const std::string& device);

  std::uint64_t packet_count() const;                               ///< Packets that arrived, over all devices.
  std::uint64_t registered_bytes(const std::string& device) const;  ///< Includes handles from before its removal.
  class Fabric;                                                     ///< The network; transport/verbs/verbs_fabric.h.

 private:
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace kv::verbs
