#include "store/node/rdma/verbs_thread.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

namespace kv {
namespace {

/// Of one thread's queue on one device: room for so many lanes at once, as far as the device has it.
constexpr std::uint32_t kCompletionCountMax = 32 * 1024;

}  // namespace

struct DeviceLoop::Running {
  VerbsNode& node;
  std::size_t index;
  std::shared_ptr<NodeDevice> device;
  verbs::CompletionLoop loop;
};

Result<std::shared_ptr<DeviceLoop>> DeviceLoop::start(VerbsNode& node, std::size_t index,
                                                      std::shared_ptr<NodeDevice> device,
                                                      const asio::any_io_executor& executor) {
  const verbs::OpenDevice& open = device->open;
  auto queue = open.device->create_completion_queue(std::min(kCompletionCountMax, open.limits.completion_count_max));
  if (!queue) return queue.error();
  std::shared_ptr<Running> running(new Running{node, index, std::move(device), {executor, std::move(*queue)}});
  asio::co_spawn(executor, run(running), [](std::exception_ptr thrown) {
    if (thrown) std::rethrow_exception(thrown);  // a bug: ends the node, as in a session
  });
  return std::shared_ptr<DeviceLoop>(new DeviceLoop(std::move(running)));
}

asio::awaitable<void> DeviceLoop::run(std::shared_ptr<Running> running) {
  const auto ended = co_await running->loop.run();
  if (!ended) running->node.leave_out(running->index, *running->device, ended.error().message());
}

DeviceLoop::~DeviceLoop() { running_->loop.stop(); }
const std::shared_ptr<NodeDevice>& DeviceLoop::device() const { return running_->device; }
verbs::CompletionLoop& DeviceLoop::loop() { return running_->loop; }

VerbsThread::VerbsThread(VerbsNode& node, asio::any_io_executor executor)
    : node_(node), executor_(std::move(executor)), loops_(node.device_count()) {}

std::shared_ptr<DeviceLoop> VerbsThread::loop(std::size_t index, const std::shared_ptr<NodeDevice>& device,
                                              std::string* why) {
  if (auto current = loops_[index].lock(); current && current->device() == device) return current;
  auto started = DeviceLoop::start(node_, index, device, executor_);
  if (!started) {
    *why = device->open.wish.device + ": no completion queue: " + started.error().message();
    return nullptr;
  }
  loops_[index] = *started;
  return std::move(*started);
}

void VerbsThread::stop() {
  for (const auto& each : loops_) {
    if (const auto running = each.lock()) running->loop().stop();
  }
}

}  // namespace kv
