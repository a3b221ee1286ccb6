#include "store/node/rdma/verbs_thread.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

/// Entries of one thread's queue on one device, up to the device's limit: all lanes of the thread share them.
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
  KV_ASSERT(device != nullptr && index < node.device_count());
  const verbs::OpenDevice& open = device->open;
  auto queue = open.device->create_completion_queue(std::min(kCompletionCountMax, open.limits.completion_count_max));
  if (!queue) return queue.error();
  std::shared_ptr<Running> running(new Running{node, index, std::move(device), {executor, std::move(*queue)}});
  asio::co_spawn(executor, run(running), BorderOf{NodeThread::kRdma});
  return std::shared_ptr<DeviceLoop>(new DeviceLoop(std::move(running)));
}

/// Holds the device as long as the loop runs: its completions are still being read, even if the lanes have broken.
asio::awaitable<void> DeviceLoop::run(std::shared_ptr<Running> running) {
  const auto ended = co_await running->loop.run();
  // A stop is not an error: the caller of stop() may have released the node already.
  if (!ended) running->node.leave_out(running->index, *running->device, ended.error().message());
}

DeviceLoop::~DeviceLoop() { running_->loop.stop(); }
const std::shared_ptr<NodeDevice>& DeviceLoop::device() const { return running_->device; }
verbs::CompletionLoop& DeviceLoop::loop() { return running_->loop; }

VerbsThread::VerbsThread(VerbsNode& node, asio::any_io_executor executor)
    : node_(node),
      executor_(std::move(executor)),
      loops_(node.device_count()),
      watch_(node, executor_, [this](std::size_t index) {
        KV_ASSERT(index < loops_.size());
        // The device may be in use again by now, with a loop of the new opening.
        if (auto& kept = loops_[index]; kept && !is_in_use(index, *kept->device())) kept.reset();
      }) {}

bool VerbsThread::is_in_use(std::size_t index, const NodeDevice& device) const {
  const auto in_use = node_.device(index);
  return in_use && in_use->get() == &device;
}

Result<std::shared_ptr<DeviceLoop>, Failure> VerbsThread::loop(std::size_t index,
                                                               const std::shared_ptr<NodeDevice>& device) {
  KV_ASSERT(index < loops_.size() && device != nullptr);
  if (const auto& kept = loops_[index]; kept && kept->device() == device) return kept;
  auto started = DeviceLoop::start(node_, index, device, executor_);
  if (!started)
    return Failure(started.error(), device->open.wish.device + ": no completion queue: " + started.error().message());
  // A loop stored after leave_out() would be kept for good. Stored before, the watch drops it.
  if (is_in_use(index, *device)) loops_[index] = *started;
  return std::move(*started);
}

/// Called on the thread itself or after it has ended: loops are not locked.
void VerbsThread::stop() {
  for (const auto& each : loops_) {
    if (each) each->loop().stop();
  }
}

}  // namespace kv
