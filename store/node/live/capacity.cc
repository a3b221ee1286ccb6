#include "store/node/live/capacity.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/numa.h"
#include "store/node/machine/room.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::uint64_t kStepBytesMax = 256 << 20;
constexpr std::size_t kCopyBytes = 32 << 20;  ///< Between two holds of the Store's lock.
constexpr Duration kPause = 5ms;              ///< When blocks are in use, or the disk has to catch up.
constexpr Duration kDiskPatience = 5s;        ///< For blocks to reach the disk; after that they are lost.
constexpr Duration kStuckAfter = std::chrono::seconds(30);

}  // namespace

CapacityKeeper::CapacityKeeper(LockedStore& store, DiskWorker* disk_worker, std::vector<unsigned> numa_nodes)
    : store_(store),
      disk_worker_(disk_worker),
      numa_nodes_(std::move(numa_nodes)),
      pages_(*store.with([](Store& each) { return &each.pages(); })) {
  const CapacityDesk::Bounds bounds = store.with([](Store& each) { return each.capacity_bounds(); });
  granule_bytes_ = bounds.granule_bytes;
  bytes_max_ = bounds.max_bytes;
  now_bytes_ = target_bytes_ = bounds.now_bytes;
  thread_ = std::thread([this] { run(); });
}

CapacityKeeper::~CapacityKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::string CapacityKeeper::aim(std::uint64_t bytes) {
  KV_ASSERT(bytes > 0 && bytes <= bytes_max_ && bytes % granule_bytes_ == 0);  // the options' own checks
  const std::uint64_t least = store_.with([](Store& store) { return store.capacity_bounds().min_bytes; });
  if (bytes < least)
    return fmt::format("capacity: {} bytes, and a namespace has blocks of {}; allowed: so much or more", bytes, least);
  const Lock lock(mutex_);
  const MemoryRoom room = memory_room(read_memory_facts(), RoomOf::kNow);
  // Committed memory that is being given back already counts as free, which errs on the careful side.
  if (bytes > now_bytes_ && !pages_.uses_huge_pages() && bytes - now_bytes_ > room.bytes) {
    return fmt::format("capacity: {} bytes, {} more than now; {}; allowed: at most {}", bytes, bytes - now_bytes_,
                       room.text, now_bytes_ + room.bytes);
  }
  target_bytes_ = bytes;
  wake_.notify_all();
  return "";
}

std::uint64_t CapacityKeeper::target_bytes() const {
  const Lock lock(mutex_);
  return target_bytes_;
}

/// At most an eighth of the capacity, so that little is fenced off at a time.
std::uint64_t CapacityKeeper::step_bytes() const {
  const std::uint64_t most = std::min(kStepBytesMax, now_bytes_ / 8);
  return std::max(granule_bytes_, most / granule_bytes_ * granule_bytes_);
}

void CapacityKeeper::run() {
  const MemoryPlacement placement(numa_nodes_);  // the start has reported its errors
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stops_ || now_bytes_ != target_bytes_; });
    if (stops_) return;
    const std::uint64_t now = now_bytes_, target = target_bytes_, step = step_bytes();
    lock.unlock();
    const bool is_through = within_border(NodeThread::kCapacity, [&] {
      if (target > now) {
        grow(std::min(target, now + step));
      } else {
        shrink(std::max(target, now - std::min(now, step)));
      }
    });
    if (!is_through) failed("an exception");
    lock.lock();
    if (now_bytes_ != target_bytes_) continue;
    ++changes_;
    spdlog::info("capacity: {} bytes now", now_bytes_);
  }
}

void CapacityKeeper::grow(std::uint64_t to) {
  if (const error_code why = pages_.commit(to)) return failed(why.message());
  const auto done = store_.with([&](Store& store) { return store.set_capacity(to); });
  KV_ASSERT(done);
  const Lock lock(mutex_);
  now_bytes_ = to;
}

void CapacityKeeper::shrink(std::uint64_t to) {
  const auto begun = store_.with([&](Store& store) { return store.set_capacity(to); });
  if (!begun) return failed(begun.error().message());  // a namespace with larger blocks has appeared meanwhile
  if (!clear(to)) return;
  pages_.discard(to);
  const Lock lock(mutex_);
  now_bytes_ = to;
}

/// Runs until the memory behind `to` is empty. False: the target has changed, and the Store has its old size back.
bool CapacityKeeper::clear(std::uint64_t to) {
  const auto began = std::chrono::steady_clock::now();
  auto last = began;  // when a block was last moved, or room made
  while (!store_.with([](Store& store) { return store.is_shrunk(); })) {
    {
      Lock lock(mutex_);
      if (stops_ || target_bytes_ > to) {
        const std::uint64_t back = now_bytes_;
        lock.unlock();
        const auto undone = store_.with([&](Store& store) { return store.set_capacity(back); });
        KV_ASSERT(undone);
        return false;
      }
    }
    const auto now = std::chrono::steady_clock::now();
    const bool may_lose = disk_worker_ == nullptr || !disk_worker_->keeps_up() || now - last > kDiskPatience;
    const auto relocations = store_.with([&](Store& store) { return store.relocate(kCopyBytes, may_lose, now); });
    std::uint64_t bytes = 0;
    for (const CapacityDesk::Relocation& each : relocations) {
      std::memcpy(each.into.data(), each.from.data(), each.from.size());
      bytes += each.from.size();
    }
    store_.with([&](Store& store) { store.end_relocation(relocations); });
    if (disk_worker_ != nullptr) disk_worker_->notify();
    const bool is_stuck = now - last > kStuckAfter;
    {
      const Lock lock(mutex_);
      moved_bytes_ += bytes;
      if (is_stuck && !is_stuck_)
        spdlog::warn("capacity: waits for blocks that are in use, to give their memory back; {} bytes still",
                     now_bytes_);
      is_stuck_ = is_stuck;
    }
    if (relocations.empty()) {
      pause();
    } else {
      last = std::chrono::steady_clock::now();
    }
  }
  const Lock lock(mutex_);
  is_stuck_ = false;
  return true;
}

/// Ends early if the target changes.
void CapacityKeeper::pause() {
  Lock lock(mutex_);
  wake_.wait_for(lock, kPause);
}

/// Makes the present size the target.
void CapacityKeeper::failed(const std::string& why) {
  const Lock lock(mutex_);
  ++failures_;
  spdlog::error("capacity: stays at {} bytes: {}", now_bytes_, why);
  target_bytes_ = now_bytes_;
}

std::vector<NodeMetrics::Value> CapacityKeeper::stats() const {
  const Lock lock(mutex_);
  return {{"capacity_target_bytes", target_bytes_, false, "Where the capacity is going"},
          {"capacity_is_stuck", is_stuck_, false, "1: blocks that are in use keep memory from being given back"},
          {"capacity_changes", changes_, true, "Times that the capacity was changed while the node ran"},
          {"capacity_change_failures", failures_, true, "Changes that ended on the way, for lack of memory"},
          {"capacity_moved_bytes", moved_bytes_, true, "Bytes of blocks copied out of memory to be given back"}};
}

}  // namespace kv
