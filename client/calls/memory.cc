// client/calls/memory.cc: memory that nodes fill and drain themselves: made, lent, taken back.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "client/client.h"
#include "client/core/client_core.h"

namespace kv {
namespace {

constexpr Duration kPause = 1ms;  // Between checks on another thread's or a node's progress.

/// Lets the executor work for kPause, or until the call's deadline.
class Pause {
 public:
  explicit Pause(ClientShared& shared)
      : clock_(shared.clock), event_(shared.executor), alarm_(shared.clock.make_alarm(shared.executor)) {}
  asio::awaitable<void> wait(TimePoint until) {
    event_.reset();
    alarm_->arm(std::min<TimePoint>(clock_.now() + kPause, until), [this] { event_.set(); });
    co_await event_.wait();
  }

 private:
  Clock& clock_;
  Event event_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace

Result<std::span<std::byte>> Client::allocate(std::size_t bytes) { return core_->shared->memory.allocate(bytes); }

Result<void> Client::reserve_memory(std::size_t bytes) { return core_->shared->memory.reserve(bytes); }

Result<std::span<std::byte>> Client::adopt_memory(std::size_t reserved_bytes,
                                                  Result<std::unique_ptr<SharedMemory>> memory) {
  return core_->shared->memory.adopt(reserved_bytes, std::move(memory));
}

Async<std::size_t> Client::lend(std::span<std::byte> memory, std::chrono::microseconds deadline, CallControl control) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;
  const auto region = shared->memory.find(memory);
  if (!region || memory.empty() || deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  if (region->is_leaving) co_return error_code(Errc::kQuarantined);
  const CallInProgress in_progress(shared);
  const RegionUse region_use(region);
  const TimePoint until = core.deadline_after(deadline);
  // Registering and connecting send no notification, so check from time to time.
  Pause pause(*shared);
  NodeLink::LendState all;
  while (true) {
    all = {};
    for (const std::size_t node : core.members) {
      const NodeLink::LendState state = core.links[node]->lend(region);
      all.lent += state.lent;
      all.pending += state.pending;
    }
    if (all.pending == 0 || shared->clock.now() >= until) break;
    if (control.is_cancelled()) co_return error_code(Errc::kCancelled);
    co_await pause.wait(until);
  }
  co_return all.lent;
}

Result<void> Client::free_memory(std::span<std::byte> memory) {
  const auto released = release_memory(memory);
  if (!released) return released.error();
  return {};
}

Result<std::shared_ptr<const void>> Client::release_memory(std::span<std::byte> memory) {
  const auto region = core_->shared->memory.free(memory);
  if (!region) return region.error();
  KV_ASSERT((*region)->call_count == 0);
  for (const auto& link : core_->links)
    link->take_back(**region);  // before the devices let go: nodes must stop using it first
  core_->shared->verbs.forget(**region);
  return std::shared_ptr<const void>(*region);
}

Result<void> Client::add_device_memory(DeviceMemory memory) {
  Descriptor dmabuf;
  if (memory.dmabuf_fd >= 0) {
    dmabuf = Descriptor(::fcntl(memory.dmabuf_fd, F_DUPFD_CLOEXEC, 0));
    if (!dmabuf) return error_code(errno, boost::system::system_category());
  }
  return core_->shared->memory.add_device(memory.bytes, std::move(dmabuf), memory.dmabuf_offset);
}

/// The order makes the memory safe to free: new calls are refused (begin_removal), nodes stop using it (take_back),
/// then the devices drop their registrations, and only then the caller is told. A timeout leaves the removal in
/// progress, and the next call continues to wait for it.
Async<void> Client::remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline,
                                         CallControl control) {
  ClientCore& core = *core_;
  const std::shared_ptr<ClientShared> shared = core.shared;
  if (deadline > kDeadlineMax) co_return error_code(Errc::kBadRequest);
  const auto found = shared->memory.find(memory);
  const bool is_new = found && !found->is_leaving;
  const auto begun = shared->memory.begin_removal(memory);
  if (!begun) co_return begun.error();
  const std::shared_ptr<LentMemory::Region> region = *begun;
  const CallInProgress in_progress(shared);
  const TimePoint until = core.deadline_after(deadline);
  if (is_new) {  // else an earlier call began it, and timed out
    for (const auto& link : core.links) link->take_back(*region);
    shared->verbs.forget(*region, [region] { LentMemory::set_gone(*region); });
  }
  Pause pause(*shared);
  while (!region->is_gone) {
    if (shared->clock.now() >= until) co_return error_code(asio::error::timed_out);
    if (control.is_cancelled()) co_return error_code(Errc::kCancelled);  // it goes on leaving, as after a deadline
    co_await pause.wait(until);
  }
  shared->memory.end_removal(*region);
  co_return Result<void>();
}

const NumaPlace& Client::numa_place() const { return core_->shared->numa_place; }

NumaStatus Client::numa() const {
  constexpr std::size_t kPagesLookedAt = 512;
  NumaStatus status{.place = numa_place(), .misplaced_ratio = std::nullopt};
  if (status.place.choice.memory.empty()) return status;
  const auto regions = core_->shared->memory.made();
  std::size_t bytes = 0;
  for (const auto& each : regions) bytes += each.size();
  NumaLook look{.node_count = status.place.node_count, .chosen = status.place.choice.memory, .spread = NumaSpread()};
  for (const auto& each : regions) {
    // In proportion to its size, and at least one page.
    const auto looks = 1 + static_cast<std::size_t>(double(kPagesLookedAt) * double(each.size()) / double(bytes));
    const auto spread = look_where_pages_lie(each, looks);
    if (!spread) return status;
    for (const auto& [node, count] : *spread) (*look.spread)[node] += count;
  }
  status.misplaced_ratio = look.misplaced_share();
  return status;
}

bool Client::is_quarantined(std::span<const std::byte> memory) const {
  return core_->shared->memory.is_quarantined(memory);
}

}  // namespace kv
