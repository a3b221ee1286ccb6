// store/node/rdma/verbs_opener.h: opens RDMA for a node, now or as soon as a device can be used, and devices again that
// were left out: at boot a machine's links are often up a little later than its services, and a device may be reset.
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

  /// What was opened; nullptr: nothing, and `why` says why not. May take long.
  VerbsNode* open(std::string* why);
  /// Looks every `pause`, on a thread of its own: for devices that are left out; or if nothing was opened, for the
  /// first that can be, to call `opened` there, once. The latter as long as it may change by itself: libibverbs is
  /// here, and it is devices that are missing. A limit that forbids to register memory stays until the node is started
  /// anew.
  void keep_trying(Duration pause, std::function<void(VerbsNode&)> opened);
  void stop();  ///< Tries no more; waits for an attempt in progress, which may be to register an arena.

 private:
  VerbsConfig config_;
  std::span<std::byte> arena_;
  Clock& clock_;
  std::unique_ptr<verbs::Provider> provider_;
  std::unique_ptr<VerbsNode> node_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> is_stopped_{false};
  bool may_come_ = false;  ///< Nothing is open, and that may change.
  std::thread thread_;
};

}  // namespace kv
