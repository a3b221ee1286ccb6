#include "gpu/device/cuda_staging.h"

#include <thread>
#include <utility>

#include "base/assert.h"
#include "gpu/device/cuda_functions.h"

namespace kv {

Result<std::unique_ptr<CudaStagingDevice>> CudaStagingDevice::create(std::shared_ptr<const CudaModule> module,
                                                                     int number, NumaChoice numa) {
  if (number < 0) {
    // -1 returns the current device without a change: this one is meant, even if another becomes current later.
    const auto asked = module->check(module->functions_->use_device(-1, &number));
    if (!asked) return asked.error();
  }
  // From here on the destructor undoes a partial construction.
  std::unique_ptr<CudaStagingDevice> device(new CudaStagingDevice(std::move(module), number, std::move(numa)));
  const CudaModule& cuda = *device->module_;
  const CudaModule::DeviceScope on_device(cuda, number);
  if (!on_device.status) return on_device.status.error();
  const auto made = cuda.check(cuda.functions_->create_event(&device->borrowed_event_));
  if (!made) return made.error();
  for (Queue& queue : device->queues_) {
    const auto streamed = cuda.check(cuda.functions_->create_stream(&queue.stream));
    if (!streamed) return streamed.error();
    for (std::size_t i = 0; i < kEvents; ++i) {
      void* event = nullptr;
      const auto created = cuda.check(cuda.functions_->create_event(&event));
      if (!created) return created.error();
      queue.events.push_back(event);
    }
  }
  return device;
}

/// The streams are idle before their events go: the device may still wait for an event.
CudaStagingDevice::~CudaStagingDevice() {
  const CudaModule::DeviceScope on_device(*module_, device_);
  for (Queue& queue : queues_) {
    if (queue.stream) module_->functions_->synchronise(queue.stream);
    for (void* event : queue.events) module_->functions_->destroy_event(event);
    if (queue.stream) module_->functions_->destroy_stream(queue.stream);
  }
  if (borrowed_event_) module_->functions_->destroy_event(borrowed_event_);
}

Result<void> CudaStagingDevice::wait_on_stream(void* stream, Mark mark) {
  if (mark.number == 0) return {};
  const CudaModule::DeviceScope on_device(*module_, device_);
  return module_->check(module_->functions_->wait_on_stream(stream, event_of(mark)));
}

/// One event serves all calls: a wait uses the latest recording at the time of its enqueueing.
Result<void> CudaStagingDevice::wait_for_stream(Line line, void* stream) {
  const CudaModule::DeviceScope on_device(*module_, device_);
  const auto recorded = module_->check(module_->functions_->record(borrowed_event_, stream));
  if (!recorded) return recorded.error();
  return module_->check(module_->functions_->wait_on_stream(queue(line).stream, borrowed_event_));
}

std::byte* CudaStagingDevice::allocate(StagingMemory kind, std::size_t bytes) {
  const auto& functions = *module_->functions_;
  void* memory = nullptr;
  const auto make = [&] {
    const CudaModule::DeviceScope on_device(*module_, device_);
    if (!on_device.status) return;
    memory = kind == StagingMemory::kDevice ? functions.allocate(bytes) : functions.allocate_page_locked(bytes);
  };
  if (kind == StagingMemory::kPageLocked) {
    static_cast<void>(run_on_nodes(numa_, make));
  } else {
    make();
  }
  return static_cast<std::byte*>(memory);
}

void CudaStagingDevice::free(StagingMemory kind, std::byte* memory) {
  if (!memory) return;
  const CudaModule::DeviceScope on_device(*module_, device_);
  const auto& functions = *module_->functions_;
  static_cast<void>(kind == StagingMemory::kDevice ? functions.free(memory) : functions.free_page_locked(memory));
}

Result<void> CudaStagingDevice::copy(const Copy2d& copy) {
  KV_ASSERT(copy.to && copy.from && copy.width_bytes <= copy.to_pitch && copy.width_bytes <= copy.from_pitch);
  const CudaModule::DeviceScope on_device(*module_, device_);
  return module_->check(module_->functions_->copy_2d(copy.to, copy.to_pitch, copy.from, copy.from_pitch,
                                                     copy.width_bytes, copy.height, queue(Line::kCopy).stream));
}

Result<void> CudaStagingDevice::permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                                        const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                                        int block_count_max) {
  const CudaModule::DeviceScope on_device(*module_, device_);
  return module_->permute(to, to_rows, from, from_rows, row_count, operation, queue(Line::kKernel).stream,
                          block_count_max);
}

Result<void> CudaStagingDevice::clear(std::byte* device_memory, std::size_t bytes) {
  KV_ASSERT(device_memory);
  const CudaModule::DeviceScope on_device(*module_, device_);
  return module_->check(module_->functions_->clear(device_memory, bytes, queue(Line::kKernel).stream));
}

Result<Mark> CudaStagingDevice::mark(Line line) {
  const CudaModule::DeviceScope on_device(*module_, device_);
  Queue& mine = queue(line);
  // Numbers grow for ever, events are reused. A mark with a reused event waits for a later one at worst.
  const Mark mark{line, ++mine.marked};
  const auto recorded = module_->check(module_->functions_->record(event_of(mark), mine.stream));
  if (!recorded) return recorded.error();
  return mark;
}

Result<void> CudaStagingDevice::wait_on_line(Line line, Mark mark) { return wait_on_stream(queue(line).stream, mark); }

Result<void> CudaStagingDevice::wait(Mark mark, TimePoint deadline) const {
  if (mark.number == 0) return {};
  const CudaModule::DeviceScope on_device(*module_, device_);
  const auto& functions = *module_->functions_;
  // Without a deadline, CUDA's own wait: the driver sleeps for the device's interrupt.
  if (deadline == TimePoint::max()) return module_->check(functions.wait(event_of(mark)));
  for (;;) {
    int is_passed = 0;
    const auto asked = module_->check(functions.is_passed(event_of(mark), &is_passed));
    if (!asked) return asked.error();
    if (is_passed) return {};
    if (now() >= deadline) return error_code(asio::error::timed_out);
    std::this_thread::sleep_for(20us);  // CUDA's wait has no deadline
  }
}

}  // namespace kv
