#include "store/node/rdma/verbs_opener.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"
#include "transport/verbs/verbs_module.h"

namespace kv {

VerbsOpener::VerbsOpener(VerbsConfig config, std::span<std::byte> arena, Clock& clock)
    : config_(std::move(config)), arena_(arena), clock_(clock) {}

VerbsOpener::~VerbsOpener() { stop(); }

/// The library stays loaded after a failure, for the next try. may_come_ separates a missing device, which may still
/// appear, from one that refuses the arena, where another try would not help.
Result<VerbsNode*, Failure> VerbsOpener::open() {
  KV_ASSERT(!node_);
  if (!provider_) {
    auto loaded = verbs::load_verbs();
    if (!loaded) return loaded.error();
    provider_ = std::move(*loaded);
  }
  auto made = VerbsNode::open(*provider_, config_, arena_, clock_);
  may_come_ = !made && made.error() == Errc::kUnavailable;
  if (!made) return made.error();
  node_ = std::move(*made);
  return node_.get();
}

/// Devices come late (a driver loads, a cable is plugged in) and go away. One thread handles both, so that opening,
/// which registers the whole arena, never runs twice at once.
void VerbsOpener::keep_trying(Duration pause, std::function<void(VerbsNode&)> opened) {
  KV_ASSERT(!thread_.joinable() && pause > Duration::zero());
  if (!node_ && !may_come_) return;
  thread_ = std::thread([this, pause, opened = std::move(opened)] {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, pause, [this] { return is_stopped_.load(); })) {
      bool goes_on = true;
      within_border(NodeThread::kRdma, [&] {
        if (node_) {
          node_->check_devices([this] { return is_stopped_.load(); });
        } else if (const auto node = open()) {
          opened(**node);
        } else if (!may_come_) {
          spdlog::warn("rdma: a device is there now, but {}; restart the node to try it again", node.error().text);
          goes_on = false;
        }
      });
      if (!goes_on) return;
    }
  });
}

void VerbsOpener::stop() {
  is_stopped_ = true;
  { const std::scoped_lock lock(mutex_); }  // from here on the thread waits, or sees is_stopped_ before it waits
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace kv
