#include "gpu/device/cuda_module.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/assert.h"
#include "base/error_words.h"
#include "gpu/device/cuda_functions.h"
#include "gpu/device/device_plan.h"
#include "gpu/plans/verified_plan.h"

namespace kv {

namespace {

/// cudaError_t as an error_code. CUDA's texts are in the module, which may be unloaded before they are read.
const boost::system::error_category& cuda_category() {
  static const ErrorWords category("cuda", [](int error) { return "CUDA error " + std::to_string(error); });
  return category;
}

}  // namespace

CudaModule::CudaModule(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
CudaModule::~CudaModule() = default;

Result<std::shared_ptr<const CudaModule>, Failure> CudaModule::load() {
  const auto refuse = [](std::string reason) { return Failure(Errc::kUnavailable, std::move(reason)); };
  // The module may be of another version or beside another driver: every step may fail, and the error names the step.
  const char* named = std::getenv("KV_CUDA_MODULE");
  if (named && *named == '\0') named = nullptr;  // dlopen("") would return the program itself
  const std::string path = named ? named : "libkvstore_cuda.so";
  const std::string what = named ? "KV_CUDA_MODULE names " + path : "the CUDA module " + path;
  // Local: an engine that brings its own CUDA runtime must not find the one inside.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return refuse(what + ", which cannot be loaded: " + dlerror());
  auto functions = std::make_unique<Functions>(library);
  if (!functions->abi_version) return refuse(what + ", which is a library but no CUDA module of kvstore");
  if (const int version = functions->abi_version(); version != kDeviceAbiVersion) {
    return refuse(what + ", which has interface " + std::to_string(version) + "; this library needs " +
                  std::to_string(kDeviceAbiVersion));
  }
  // All at once: a module with some of its functions would fail in the middle of a serving process.
  if (!functions->is_whole) return refuse(what + ", which lacks a function");
  if (functions->device_count() == 0) return refuse("no CUDA device, or no driver for one");
  return std::shared_ptr<const CudaModule>(new CudaModule(std::move(functions)));
}

int CudaModule::device_count() const { return functions_->device_count(); }

Result<std::string> CudaModule::pci_address(int device) const {
  constexpr int kNotSupported = 801;  // cudaErrorNotSupported
  if (device < 0) {
    if (const auto asked = check(functions_->use_device(-1, &device)); !asked) return asked.error();
  }
  char text[32] = {};
  const int error = functions_->pci_address(device, text, sizeof text - 1);
  if (error == kNotSupported) return Errc::kUnsupported;
  if (const auto asked = check(error); !asked) return asked.error();
  return std::string(text);
}

Result<void> CudaModule::check(int error) const {
  if (error == 0) return {};
  return error_code(error, cuda_category());
}

Result<void> CudaModule::warm_up() const { return check(functions_->warm_up()); }

Result<void> CudaModule::permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                                 const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                                 void* stream, int block_count_max) const {
  KV_ASSERT(row_count >= 0 && block_count_max > 0);
  const auto plan = make_plan(to, to_rows, from, from_rows, row_count, operation);
  if (!plan) return Errc::kMismatch;
  // Several launches if the layers or components exceed one launch's arguments.
  for (const DevicePlan& launch : make_device_plans(*plan)) {
    const auto launched = check(functions_->permute(&launch, stream, block_count_max));
    if (!launched) return launched.error();
  }
  return {};
}

Result<void> CudaModule::scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows,
                                      const BoundLayout& source, void* stream, int block_count_max) const {
  KV_ASSERT(block_count_max > 0 && (rows.empty() || rows.data()));
  const auto plan = make_keep_plan(cache, source);
  if (!plan) return plan.error();
  for (const DevicePlan& launch : make_device_keep_plans(*plan)) {
    const auto launched = check(functions_->scatter_kept(&launch, rows.data(), static_cast<std::int64_t>(rows.size()),
                                                         stream, block_count_max));
    if (!launched) return launched.error();
  }
  return {};
}

Result<void> CudaModule::scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                          const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                          int block_count_max) const {
  return run_verified(cache, rows, blocks, verified, operation, true, stream, block_count_max);
}
Result<void> CudaModule::gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                               const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                               int block_count_max) const {
  return run_verified(cache, rows, blocks, verified, operation, false, stream, block_count_max);
}

Result<void> CudaModule::run_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                      const VerifiedBlocks& verified, const Operation& operation, bool is_scatter,
                                      void* stream, int block_count_max) const {
  KV_ASSERT(block_count_max > 0);
  const auto steps = plan_verified(cache, rows, blocks, verified, operation, is_scatter);
  if (!steps) return steps.error();
  for (const VerifiedStep& step : *steps) {
    const auto sum = [&] { return check(functions_->checksum(&step.checksum, cache.bases.front(), stream)); };
    if (is_scatter) {  // before the rows move: its verdicts decide which may
      if (const auto enqueued = sum(); !enqueued) return enqueued.error();
    }
    for (const DevicePlan& launch : step.launches) {
      const auto launched = check(functions_->permute(&launch, stream, block_count_max));
      if (!launched) return launched.error();
    }
    if (!is_scatter) {
      if (const auto enqueued = sum(); !enqueued) return enqueued.error();
    }
  }
  return {};
}

Result<void> CudaModule::copy_batch(std::span<void* const> to, std::span<const void* const> from,
                                    std::span<const std::size_t> bytes, void* stream) const {
  KV_ASSERT(to.size() == from.size() && to.size() == bytes.size());
  return check(functions_->copy_batch(to.data(), from.data(), bytes.data(), to.size(), stream));
}

CudaModule::MemoryPlace CudaModule::place_of(const void* memory) const {
  int kind = 0, device = -1;
  // Memory unknown to CUDA is plain host memory.
  if (functions_->memory_of(memory, &kind, &device) != 0) return {};
  KV_ASSERT(kind >= 0 && kind <= static_cast<int>(MemoryKind::kDevice));
  return {static_cast<MemoryKind>(kind), device};
}

CudaModule::DeviceScope::DeviceScope(const CudaModule& module, int device) : module_(module) {
  // The engine's thread may have any device current, and must keep it.
  status = module_.check(module_.functions_->use_device(device, &before_));
  if (!status || before_ == device) before_ = -1;
}
CudaModule::DeviceScope::~DeviceScope() {
  int ours = 0;
  if (before_ >= 0) static_cast<void>(module_.functions_->use_device(before_, &ours));
}

void* CudaModule::allocate(std::size_t bytes) const { return functions_->allocate(bytes); }
void CudaModule::free(void* memory) const { functions_->free(memory); }
Result<void> CudaModule::copy(void* to, const void* from, std::size_t bytes) const {
  KV_ASSERT(bytes == 0 || (to && from));
  return check(functions_->copy(to, from, bytes));
}
Result<void> CudaModule::lock_pages(std::span<std::byte> memory) const {
  KV_ASSERT(!memory.empty());
  return check(functions_->lock_pages(memory.data(), memory.size()));
}
Result<void> CudaModule::unlock_pages(std::byte* memory) const { return check(functions_->unlock_pages(memory)); }
Result<CudaModule::Dmabuf> CudaModule::export_dmabuf(std::span<std::byte> memory) const {
  constexpr int kNotSupported = 801;  // cudaErrorNotSupported
  Dmabuf dmabuf;
  const int error = functions_->export_dmabuf(memory.data(), memory.size(), &dmabuf.fd, &dmabuf.offset);
  if (error == kNotSupported) return Errc::kUnsupported;
  if (const auto exported = check(error); !exported) return exported.error();
  return dmabuf;
}
Result<void> CudaModule::synchronise(void* stream) const { return check(functions_->synchronise(stream)); }

Result<void*> CudaModule::made_by(int (*create)(void**)) const {
  void* handle = nullptr;
  const auto made = check(create(&handle));
  if (!made) return made.error();
  return handle;
}
Result<void*> CudaModule::create_stream() const { return made_by(functions_->create_stream); }
void CudaModule::destroy_stream(void* stream) const { static_cast<void>(functions_->destroy_stream(stream)); }
Result<void*> CudaModule::create_event() const { return made_by(functions_->create_event); }
void CudaModule::destroy_event(void* event) const { static_cast<void>(functions_->destroy_event(event)); }
Result<void> CudaModule::record(void* event, void* stream) const { return check(functions_->record(event, stream)); }
Result<void> CudaModule::wait_on_stream(void* stream, void* event) const {
  return check(functions_->wait_on_stream(stream, event));
}
Result<void> CudaModule::ask(void* event, bool* is_passed) const {
  int passed = 0;
  const auto asked = check(functions_->is_passed(event, &passed));
  *is_passed = passed != 0;
  return asked;
}
Result<void> CudaModule::wait(void* event) const { return check(functions_->wait(event)); }
void* CudaModule::allocate_page_locked(std::size_t bytes) const { return functions_->allocate_page_locked(bytes); }
void CudaModule::free_page_locked(void* memory) const { static_cast<void>(functions_->free_page_locked(memory)); }

}  // namespace kv
