// store/node/rdma/verbs_opener.h: opens a node's devices: at the start or as soon as one is usable, and again after a
// device went away. At boot, links often come up a little later than services, and a device may be reset at any time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "store/node/rdma/verbs_node.h"

namespace kv {

/// Thread safety: all calls from one thread.
class VerbsOpener {
 public:
  /// `arena` and `clock` outlive it.
  VerbsOpener(VerbsConfig config, std::span<std::byte> arena, Clock& clock);
  ~VerbsOpener();  ///< stop(), then closes the devices.

  /// Errors: all devices failed; the text says why. May take long.
  Result<VerbsNode*, Failure> open();
  /// Checks every `pause`, on its own thread, for disabled devices. If no device is open yet, it tries to open the
  /// first one and calls `opened` on that thread, once. It does not try where waiting cannot help: without libibverbs,
  /// or with a limit that forbids registering memory, only a restart does.
  void keep_trying(Duration pause, std::function<void(VerbsNode&)> opened);
  void stop();  ///< Waits for an attempt in progress, which may be registering the arena.

 private:
  VerbsConfig config_;
  std::span<std::byte> arena_;
  Clock& clock_;
  std::unique_ptr<verbs::Provider> provider_;
  std::unique_ptr<VerbsNode> node_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> is_stopped_{false};
  bool may_come_ = false;  ///< No device is open, and that may change by itself.
  std::thread thread_;
};

}  // namespace kv
