#include "tests/gpu/emulated_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/gpu/backend.h"

namespace kv {
namespace {

Duration nanoseconds(double count) { return Duration(static_cast<Duration::rep>(count)); }

}  // namespace

EmulatedDevice::~EmulatedDevice() {
  for (const Line line : {Line::kCopy, Line::kKernel}) EXPECT_TRUE(queue(line).tasks.empty()) << "work was left";
  EXPECT_TRUE(owned_.empty()) << "memory was left";
}

bool EmulatedDevice::is_in_device(const std::byte* at, std::size_t bytes) const {
  auto found = memory_.upper_bound(at);
  const bool is_known = found != memory_.begin() && (--found, at + bytes <= found->first + found->second.bytes);
  EXPECT_TRUE(is_known) << "the device cannot touch this memory";
  return is_known && found->second.is_device;
}

std::byte* EmulatedDevice::allocate(StagingMemory kind, std::size_t bytes) {
  if (allocations_left_-- <= 0) return nullptr;
  std::vector<std::byte> memory(bytes + 64, std::byte{0x5A});
  std::byte* const start = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  owned_[start] = std::move(memory);
  memory_[start] = {bytes, kind == StagingMemory::kDevice};
  return start;
}

void EmulatedDevice::free(StagingMemory kind, std::byte* memory) {
  if (!memory) return;
  EXPECT_EQ(memory_.at(memory).is_device, kind == StagingMemory::kDevice);
  memory_.erase(memory);
  owned_.erase(memory);
}

bool EmulatedDevice::run_one(Line line) const {
  Queue& mine = queue(line);
  if (mine.tasks.empty()) return false;
  const Task& task = mine.tasks.front();
  TimePoint start = std::max(task.enqueued, mine.finished.back());
  if (task.after.number != 0) {
    const Queue& other = queue(task.after.line);
    if (other.finished.size() <= task.after.number) return false;
    start = std::max(start, other.finished[task.after.number]);
  }
  if (task.run) task.run();
  mine.finished.push_back(start + task.cost);
  mine.tasks.pop_front();
  return true;
}

void EmulatedDevice::run_some() const {
  for (std::uint64_t i = random_() % 4; i > 0; --i) run_one(random_() % 2 == 0 ? Line::kCopy : Line::kKernel);
}

void EmulatedDevice::enqueue(Line line, std::function<void()> run, double cost, Mark after) {
  now_ += nanoseconds(costs_.launch);
  Queue& mine = queue(line);
  mine.tasks.push_back({std::move(run), nanoseconds(cost), after, now_});
  ++mine.enqueued;
  run_some();
}

Result<void> EmulatedDevice::copy(const Copy2d& copy) {
  ++copy_count_;
  is_in_device(copy.to, (copy.height - 1) * copy.to_pitch + copy.width_bytes);
  is_in_device(copy.from, (copy.height - 1) * copy.from_pitch + copy.width_bytes);
  const double bytes = static_cast<double>(copy.height * copy.width_bytes);
  const auto run = [copy] {
    for (std::size_t i = 0; i < copy.height; ++i) {
      std::memcpy(copy.to + i * copy.to_pitch, copy.from + i * copy.from_pitch, copy.width_bytes);
    }
  };
  enqueue(Line::kCopy, run, costs_.copy_start + bytes / costs_.bus);
  return {};
}

Result<void> EmulatedDevice::permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                                     const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                                     int /*block_count_max*/) {
  ++kernel_count_;
  bool is_in_memory = true;
  for (const BoundLayout* side : {&to, &from}) {
    for (std::size_t i = 0; i < side->bases.size(); ++i) {
      is_in_memory = is_in_device(side->bases[i], 1) && is_in_memory;
    }
  }
  const Layout& layout = from.layout;
  double bytes = 0;
  for (const Component& each : layout.components) {
    bytes += static_cast<double>(row_count * layout.layer_count * each.heads() * each.features() *
                                 element_bytes(each.element));
  }
  const auto run = [=] { EXPECT_TRUE(emulated_permute(to, to_rows, from, from_rows, row_count, operation)); };
  enqueue(Line::kKernel, run, costs_.kernel_start + bytes / (is_in_memory ? costs_.device_memory : costs_.host_memory));
  return {};
}

Result<void> EmulatedDevice::clear(std::byte* memory, std::size_t bytes) {
  EXPECT_TRUE(is_in_device(memory, bytes));
  enqueue(
      Line::kKernel, [=] { std::memset(memory, 0, bytes); }, costs_.kernel_start);
  return {};
}

Result<Mark> EmulatedDevice::mark(Line line) { return Mark{line, queue(line).enqueued}; }

Result<void> EmulatedDevice::wait_on_line(Line line, Mark mark) {
  enqueue(line, nullptr, 0, mark);
  return {};
}

bool EmulatedDevice::is_passed(Mark mark) const {
  const Queue& queue = this->queue(mark.line);
  return queue.finished.size() > mark.number && queue.finished[mark.number] <= now_;
}

Result<void> EmulatedDevice::wait(Mark mark, TimePoint deadline) const {
  const Queue& waited = queue(mark.line);
  while (waited.finished.size() <= mark.number) {
    const bool is_copy_first = random_() % 2 == 0;
    const bool has_run =
        run_one(is_copy_first ? Line::kCopy : Line::kKernel) || run_one(is_copy_first ? Line::kKernel : Line::kCopy);
    if (!has_run) {
      ADD_FAILURE() << "a mark that nothing passes";
      return Errc::kUnavailable;
    }
  }
  if (waited.finished[mark.number] > deadline) {
    now_ = std::max(now_, deadline);
    return error_code(asio::error::timed_out);
  }
  now_ = std::max(now_, waited.finished[mark.number]);
  return {};
}

}  // namespace kv
