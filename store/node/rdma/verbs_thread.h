// store/node/rdma/verbs_thread.h: completion loops of one I/O thread, one for each device that its sessions use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/node/rdma/verbs_node.h"
#include "transport/verbs/completion_loop.h"

namespace kv {

/// A device's completions on one thread, from one opening of the device to the next. Held by those that they belong to;
/// the loop runs until this goes, or the device does, which is left out then.
class DeviceLoop {
 public:
  /// Errors: the device gives no completion queue.
  static Result<std::shared_ptr<DeviceLoop>> start(VerbsNode& node, std::size_t index,
                                                   std::shared_ptr<NodeDevice> device,
                                                   const asio::any_io_executor& executor);
  ~DeviceLoop();
  DeviceLoop(const DeviceLoop&) = delete;
  DeviceLoop& operator=(const DeviceLoop&) = delete;

  const std::shared_ptr<NodeDevice>& device() const;
  verbs::CompletionLoop& loop();

 private:
  struct Running;
  explicit DeviceLoop(std::shared_ptr<Running> running) : running_(std::move(running)) {}
  static asio::awaitable<void> run(std::shared_ptr<Running> running);

  std::shared_ptr<Running> running_;
};

/// Thread safety: none; on its executor. Outlives the sessions on it; `node` outlives this.
class VerbsThread {
 public:
  VerbsThread(VerbsNode& node, asio::any_io_executor executor);

  VerbsNode& node() { return node_; }
  /// Made for the first to ask, and gone with the last to hold it. nullptr: the device gives no completion queue, and
  /// `why` says so.
  std::shared_ptr<DeviceLoop> loop(std::size_t index, const std::shared_ptr<NodeDevice>& device, std::string* why);
  void stop();  ///< The loops end; completions that come later are taken by nobody.

 private:
  VerbsNode& node_;
  asio::any_io_executor executor_;
  std::vector<std::weak_ptr<DeviceLoop>> loops_;  ///< By device.
};

}  // namespace kv
