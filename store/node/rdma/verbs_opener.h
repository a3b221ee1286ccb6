// store/node/rdma/verbs_opener.h: when a node's devices are opened: at the start, or as soon as one can be used, and
// again when one was gone. At boot, links often come up a little later than services, and a device may be reset at any
// time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "store/node/rdma/verbs_node.h"

namespace kv {

/// Thread safety: all calls from one thread.
class VerbsOpener {
 public:
  /// `arena` and `clock` outlive it.
  VerbsOpener(VerbsConfig config, std::span<std::byte> arena, Clock& clock);
  ~VerbsOpener();  ///< stop(), then closes the devices.

  /// Errors: nothing could be opened; the text says why not. May take long.
  Result<VerbsNode*, Failure> open();
  /// Looks every `pause`, on a thread of its own, for devices that are left out. If nothing was opened yet, it looks
  /// for the first device that can be, and calls `opened` on that thread, once. It does not look if that cannot change
  /// by itself: without libibverbs, or with a limit that forbids to register memory, only a new start helps.
  void keep_trying(Duration pause, std::function<void(VerbsNode&)> opened);
  void stop();  ///< Tries no more. Waits for an attempt in progress, which may be registering the arena.

 private:
  VerbsConfig config_;
  std::span<std::byte> arena_;
  Clock& clock_;
  std::unique_ptr<verbs::Provider> provider_;
  std::unique_ptr<VerbsNode> node_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> is_stopped_{false};
  bool may_come_ = false;  ///< Nothing is open, and that may change by itself.
  std::thread thread_;
};

}  // namespace kv
