// client/link/verbs_lender.h: the client's RDMA devices, and its lent memory registered with them, shared by all
// sessions; their queue pairs are in link_lanes.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/link/lent_memory.h"
#include "client/link/lifeline.h"
#include "transport/slow_calls.h"
#include "transport/verbs/verbs_devices.h"

namespace kv {

/// Devices are opened when a node first offers RDMA, which many clients never see. Calls here do not wait: opening, and
/// registering at 0.2 s per GiB, happen on another thread, and calls go inline until then.
///   1. A region is registered once for all sessions.
///   2. A registration holds its devices and its region: both stay while a device may reach the memory.
///   3. After forget(), devices cannot reach the region from the call of `then` on.
/// Thread safety: none; on the client's executor. The other thread owns an Entry while it works on it.
class VerbsLender {
 public:
  /// Devices and their provider. Held by all objects made from them.
  struct Open {
    std::unique_ptr<verbs::Provider> provider;
    std::vector<verbs::OpenDevice> devices;
    std::size_t device_of(std::size_t lane) const { return lane % devices.size(); }
  };
  enum class State : std::uint8_t { kIdle, kReady, kUnavailable };

  /// `provider`: replaces this machine's devices, used on the executor only; outlives the lender, as `clock` does.
  /// `numa`: the other thread's nodes, which determine the nearest devices.
  VerbsLender(asio::any_io_executor executor, Clock& clock, verbs::DevicesConfig devices, verbs::Provider* provider,
              const NumaChoice& numa = {});
  ~VerbsLender();

  /// Begins to open the devices, unless they are open. Retries from time to time if libibverbs is present and only
  /// devices are missing: a link may come up.
  void open();
  State state() const { return state_; }
  /// Why the state is not kReady; if it is, the devices left out.
  const std::string& why() const { return why_; }
  const std::shared_ptr<Open>& devices() const { return open_; }  ///< Null until kReady.

  enum class Registration : std::uint8_t { kPending, kReady, kFailed };  ///< kReady: with at least one device.
  /// Begins to register `region` at its first call. Requires kReady.
  Registration registration(const std::shared_ptr<LentMemory::Region>& region);
  const verbs::RegisteredMemory& registered(const LentMemory::Region& region) const;  ///< Requires its registration.
  /// Takes `region` from the devices, on the other thread; the memory stays mapped until then. Then calls `then`,
  /// unless the lender is gone.
  void forget(
      const LentMemory::Region& region, std::function<void()> then = [] {});

  SlowCalls& slow_calls() { return slow_calls_; }

 private:
  struct Entry {
    std::shared_ptr<Open> open;
    std::shared_ptr<LentMemory::Region> region;
    std::unique_ptr<verbs::RegisteredMemory> memory;  ///< Declared last of the three: destroyed first.
    std::string why;
    bool is_registered = false;  ///< Read instead of `memory`, which forget() changes on the other thread.
    Registration state = Registration::kPending;
  };

  asio::any_io_executor executor_;
  Clock& clock_;
  verbs::DevicesConfig config_;
  verbs::Provider* provider_;
  State state_ = State::kIdle;
  bool is_opening_ = false;
  TimePoint open_again_ = TimePoint::max();  ///< In kUnavailable.
  std::string why_;
  std::shared_ptr<Open> open_;
  std::map<const LentMemory::Region*, std::shared_ptr<Entry>> entries_;
  Lifeline lifeline_;  ///< For results of the thread.
  SlowCalls slow_calls_;
};

}  // namespace kv
