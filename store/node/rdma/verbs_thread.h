// store/node/rdma/verbs_thread.h: completion loops of one I/O thread, one for each device its sessions use.
#pragma once

#include <memory>
#include <vector>

#include "store/node/rdma/verbs_node.h"
#include "transport/verbs/completion_loop.h"

namespace kv {

/// A device's completions on one thread, during one opening of the device. The loop runs until this is destroyed or the
/// device's completion channel fails; a failure disables the device.
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

/// The loops of one I/O thread, at most one for each device. Loops are kept: the queue takes 2 MiB and milliseconds of
/// this thread, which a client that reconnects again and again must not cost each time.
///   1. Only loops of devices in use are kept: a kept loop would stop a disabled device from being closed.
/// Thread safety: none; on its executor. Outlives the sessions on it; `node` outlives this.
class VerbsThread {
 public:
  VerbsThread(VerbsNode& node, asio::any_io_executor executor);

  VerbsNode& node() { return node_; }
  /// Made at the first call. Lanes hold it too, and may outlast the use. Errors: no completion queue. Never nullptr.
  Result<std::shared_ptr<DeviceLoop>, Failure> loop(std::size_t index, const std::shared_ptr<NodeDevice>& device);
  void stop();  ///< Ends the loops; later completions are dropped.

 private:
  bool is_in_use(std::size_t index, const NodeDevice& device) const;

  VerbsNode& node_;
  asio::any_io_executor executor_;
  std::vector<std::shared_ptr<DeviceLoop>> loops_;  ///< By device; null: not requested yet.
  VerbsNode::Watch watch_;
};

}  // namespace kv
