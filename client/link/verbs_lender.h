// client/link/verbs_lender.h: the client's RDMA devices, opened when a node first offers RDMA, and its lent memory
// registered with them. Sessions share both; their queue pairs are link_lanes.h.
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
#include "transport/verbs/verbs_devices.h"

namespace kv {

/// Nothing here waits: opening and registering happen on a thread of its own, and until they are over calls go inline.
/// Thread safety: none; on the client's executor.
class VerbsLender {
 public:
  /// Devices, and the provider they come from. Held by all that was made of them.
  struct Open {
    std::unique_ptr<verbs::Provider> provider;
    std::vector<verbs::OpenDevice> devices;
    std::size_t device_of(std::size_t lane) const { return lane % devices.size(); }
  };
  enum class State : std::uint8_t { kIdle, kOpening, kReady, kUnavailable };

  /// `provider`: instead of this machine's devices, and used on the executor only; outlives the lender, as `clock`
  /// does.
  VerbsLender(asio::any_io_executor executor, Clock& clock, verbs::DevicesConfig devices, verbs::Provider* provider);
  ~VerbsLender();

  /// Begins it; and again from time to time if libibverbs is here and it is devices that are missing: a link may
  /// come.
  void open();
  State state() const { return state_; }
  const std::string& why() const { return why_; }                 ///< Why not kReady; then: which devices are left out.
  const std::shared_ptr<Open>& devices() const { return open_; }  ///< Null until kReady.

  enum class Registration : std::uint8_t { kPending, kReady, kFailed };  ///< kReady: with one device at least.
  /// Begins to register `region` if that was not done. Requires kReady.
  Registration registration(const std::shared_ptr<LentMemory::Region>& region);
  const verbs::RegisteredMemory& registered(const LentMemory::Region& region) const;  ///< Requires that it is.
  /// Nobody can reach its memory through a device any more, shortly; it stays mapped until then. `then` is called when
  /// it is so, unless the lender is gone.
  void forget(
      const LentMemory::Region& region, std::function<void()> then = [] {});

  verbs::SlowCalls& slow_calls() { return slow_calls_; }

 private:
  struct Entry {
    std::shared_ptr<Open> open;
    std::shared_ptr<LentMemory::Region> region;
    std::unique_ptr<verbs::RegisteredMemory> memory;  ///< Goes first.
    std::string why;
    bool is_registered = false;  ///< Not `memory`: what forgets it writes that one on another thread.
    Registration state = Registration::kPending;
  };

  asio::any_io_executor executor_;
  Clock& clock_;
  verbs::DevicesConfig config_;
  verbs::Provider* provider_;
  State state_ = State::kIdle;
  bool is_opening_ = false;                  ///< Also while it is kUnavailable, and tried again.
  TimePoint open_again_ = TimePoint::max();  ///< If kUnavailable.
  std::string why_;
  std::shared_ptr<Open> open_;
  std::map<const LentMemory::Region*, std::shared_ptr<Entry>> entries_;
  Lifeline lifeline_;  ///< For what comes back from the thread.
  verbs::SlowCalls slow_calls_;
};

}  // namespace kv
