// client/link/verbs_lender.h: the client's RDMA devices, and its lent memory registered with them. All sessions share
// both; their queue pairs are link_lanes.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/link/lent_memory.h"
#include "client/link/lifeline.h"
#include "transport/slow_calls.h"
#include "transport/verbs/verbs_devices.h"

namespace kv {

/// Devices are opened when a node first offers RDMA: many clients never meet one that does. Nothing here waits.
/// Opening, and registering, which takes 0.2 s a GiB, happen on another thread, and until they are over calls go
/// inline.
///   1. A region is registered once, whatever number of sessions lend it.
///   2. A registration holds its devices and its region: neither goes while a device may reach the memory.
///   3. After forget() no device reaches the region, as soon as `then` is called.
/// Thread safety: none; on the client's executor. The other thread has an Entry to itself while it works on it.
class VerbsLender {
 public:
  /// Devices, and the provider that they come from. Held by all that was made of them.
  struct Open {
    std::unique_ptr<verbs::Provider> provider;
    std::vector<verbs::OpenDevice> devices;
    std::size_t device_of(std::size_t lane) const { return lane % devices.size(); }
  };
  enum class State : std::uint8_t { kIdle, kOpening, kReady, kUnavailable };

  /// `provider`: instead of this machine's devices, and used on the executor only; outlives the lender, as `clock`
  /// does.
  /// `numa`: where the other thread runs, from which the nearest devices follow.
  VerbsLender(asio::any_io_executor executor, Clock& clock, verbs::DevicesConfig devices, verbs::Provider* provider,
              const NumaChoice& numa = {});
  ~VerbsLender();

  /// Begins to open the devices, unless they are open. Tries again from time to time if libibverbs is here and only
  /// devices are missing: a link may come up.
  void open();
  State state() const { return state_; }
  /// Why the state is not kReady; if it is, which devices are left out.
  const std::string& why() const { return why_; }
  const std::shared_ptr<Open>& devices() const { return open_; }  ///< Null until kReady.

  enum class Registration : std::uint8_t { kPending, kReady, kFailed };  ///< kReady: with one device at least.
  /// Begins to register `region` at the first call. Requires kReady.
  Registration registration(const std::shared_ptr<LentMemory::Region>& region);
  const verbs::RegisteredMemory& registered(const LentMemory::Region& region) const;  ///< Requires kReady of it.
  /// Takes `region` from the devices, on the other thread; the memory stays mapped until then. Afterwards `then` is
  /// called, unless the lender is gone.
  void forget(
      const LentMemory::Region& region, std::function<void()> then = [] {});

  SlowCalls& slow_calls() { return slow_calls_; }

 private:
  struct Entry {
    std::shared_ptr<Open> open;
    std::shared_ptr<LentMemory::Region> region;
    std::unique_ptr<verbs::RegisteredMemory> memory;  ///< Declared last of the three: it goes first.
    std::string why;
    bool is_registered = false;  ///< Asked instead of `memory`, which forget() changes on the other thread.
    Registration state = Registration::kPending;
  };

  asio::any_io_executor executor_;
  Clock& clock_;
  verbs::DevicesConfig config_;
  verbs::Provider* provider_;
  State state_ = State::kIdle;
  bool is_opening_ = false;                  ///< Also while the state is kUnavailable, and opening is tried again.
  TimePoint open_again_ = TimePoint::max();  ///< If kUnavailable.
  std::string why_;
  std::shared_ptr<Open> open_;
  std::map<const LentMemory::Region*, std::shared_ptr<Entry>> entries_;
  Lifeline lifeline_;  ///< For what comes back from the thread.
  SlowCalls slow_calls_;
};

}  // namespace kv
