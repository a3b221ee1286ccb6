#include "transport/forked.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace kv {
namespace {

/// Never destroyed: handlers run until the end. The lock is held across fork(), so the child gets a whole list.
struct Registry {
  std::mutex mutex;
  std::vector<int> fds;
  std::atomic<std::uint32_t> generation{0};
};

Registry& registry() {
  static Registry* const made = [] {
    static Registry* all = nullptr;
    all = new Registry;
    KV_ASSERT(::pthread_atfork([] { all->mutex.lock(); }, [] { all->mutex.unlock(); },
                               [] {  // in the child: only async-signal-safe calls
                                 for (const int fd : all->fds) ::close(fd);
                                 all->fds.clear();
                                 all->generation.fetch_add(1, std::memory_order_relaxed);
                                 all->mutex.unlock();
                               }) == 0);
    return all;
  }();
  return *made;
}

}  // namespace

std::uint32_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

/// Otherwise a child forked by an engine would keep a copy of each connection open: the node would not see the end of
/// the stream when the parent closes it, and the child's writes would land in the middle of the parent's frames.
ClosedInChild::ClosedInChild(int fd) : fd_(fd) {
  KV_ASSERT(fd >= 0);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.fds.push_back(fd);
}

void ClosedInChild::forget() {
  if (fd_ < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find(all.fds.begin(), all.fds.end(), std::exchange(fd_, -1));
  if (found == all.fds.end()) return;  // in a child, where the list was emptied
  *found = all.fds.back();
  all.fds.pop_back();
}

}  // namespace kv
