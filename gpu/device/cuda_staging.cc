#include "gpu/device/cuda_staging.h"

#include <thread>
#include <utility>

#include "gpu/device/cuda_functions.h"

namespace kv {

class CudaStagingDevice::OnDevice {
 public:
  explicit OnDevice(const CudaStagingDevice& device) : cuda_(*device.module_) {
    status = cuda_.check(cuda_.functions_->use_device(device.device_, &before_));
    if (!status || before_ == device.device_) before_ = -1;
  }
  ~OnDevice() {
    int ours = 0;
    if (before_ >= 0) static_cast<void>(cuda_.functions_->use_device(before_, &ours));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  Result<void> status;

 private:
  const CudaModule& cuda_;
  int before_ = -1;
};

Result<std::unique_ptr<CudaStagingDevice>> CudaStagingDevice::create(std::shared_ptr<const CudaModule> module,
                                                                     int number) {
  if (number < 0) {
    const auto asked = module->check(module->functions_->use_device(-1, &number));
    if (!asked) return asked.error();
  }
  std::unique_ptr<CudaStagingDevice> device(new CudaStagingDevice(std::move(module), number));
  const CudaModule& cuda = *device->module_;
  const OnDevice on_device(*device);
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

CudaStagingDevice::~CudaStagingDevice() {
  const OnDevice on_device(*this);
  for (Queue& queue : queues_) {
    if (queue.stream) module_->functions_->synchronise(queue.stream);
    for (void* event : queue.events) module_->functions_->destroy_event(event);
    if (queue.stream) module_->functions_->destroy_stream(queue.stream);
  }
  if (borrowed_event_) module_->functions_->destroy_event(borrowed_event_);
}

Result<void> CudaStagingDevice::wait_on_stream(void* stream, Mark mark) {
  if (mark.number == 0) return {};
  const OnDevice on_device(*this);
  return module_->check(module_->functions_->wait_on_stream(stream, event_of(mark)));
}

Result<void> CudaStagingDevice::wait_for_stream(Lane lane, void* stream) {
  const OnDevice on_device(*this);
  const auto recorded = module_->check(module_->functions_->record(borrowed_event_, stream));
  if (!recorded) return recorded.error();
  return module_->check(module_->functions_->wait_on_stream(queue(lane).stream, borrowed_event_));
}

std::byte* CudaStagingDevice::allocate(StagingMemory kind, std::size_t bytes) {
  const OnDevice on_device(*this);
  if (!on_device.status) return nullptr;
  const auto& functions = *module_->functions_;
  return static_cast<std::byte*>(kind == StagingMemory::kDevice ? functions.allocate(bytes)
                                                                : functions.allocate_page_locked(bytes));
}

void CudaStagingDevice::free(StagingMemory kind, std::byte* memory) {
  if (!memory) return;
  const OnDevice on_device(*this);
  const auto& functions = *module_->functions_;
  static_cast<void>(kind == StagingMemory::kDevice ? functions.free(memory) : functions.free_page_locked(memory));
}

Result<void> CudaStagingDevice::copy(const Copy2d& copy) {
  const OnDevice on_device(*this);
  return module_->check(module_->functions_->copy_2d(copy.to, copy.to_pitch, copy.from, copy.from_pitch,
                                                     copy.width_bytes, copy.height, queue(Lane::kCopy).stream));
}

Result<void> CudaStagingDevice::permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                                        const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                                        int block_count_max) {
  const OnDevice on_device(*this);
  return module_->permute(to, to_rows, from, from_rows, row_count, operation, queue(Lane::kKernel).stream,
                          block_count_max);
}

Result<void> CudaStagingDevice::clear(std::byte* device_memory, std::size_t bytes) {
  const OnDevice on_device(*this);
  return module_->check(module_->functions_->clear(device_memory, bytes, queue(Lane::kKernel).stream));
}

Result<Mark> CudaStagingDevice::mark(Lane lane) {
  const OnDevice on_device(*this);
  Queue& mine = queue(lane);
  const Mark mark{lane, ++mine.marked};
  const auto recorded = module_->check(module_->functions_->record(event_of(mark), mine.stream));
  if (!recorded) return recorded.error();
  return mark;
}

Result<void> CudaStagingDevice::wait_on_lane(Lane lane, Mark mark) { return wait_on_stream(queue(lane).stream, mark); }

Result<void> CudaStagingDevice::wait(Mark mark, TimePoint deadline) const {
  if (mark.number == 0) return {};
  const OnDevice on_device(*this);
  const auto& functions = *module_->functions_;
  if (deadline == TimePoint::max()) return module_->check(functions.wait(event_of(mark)));
  for (;;) {
    int is_passed = 0;
    const auto asked = module_->check(functions.is_passed(event_of(mark), &is_passed));
    if (!asked) return asked.error();
    if (is_passed) return {};
    if (now() >= deadline) return error_code(asio::error::timed_out);
    std::this_thread::sleep_for(20us);  // CUDA has no wait that ends by itself
  }
}

}  // namespace kv
