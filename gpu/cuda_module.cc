#include "gpu/cuda_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "base/assert.h"
#include "gpu/device_plan.h"

namespace kv {

// The functions of gpu/cuda/module_abi.h, found by name.
struct CudaModule::Functions {
  void* library = nullptr;
  int (*abi_version)() = nullptr;
  int (*permute)(const DevicePlan*, void*, int) = nullptr;
  int (*scatter_kept)(const DevicePlan*, const KeepRow*, std::int64_t, void*, int) = nullptr;
  int (*device_count)() = nullptr;
  void* (*allocate)(std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*copy)(void*, const void*, std::size_t) = nullptr;
  int (*synchronise)(void*) = nullptr;

  Functions() = default;
  Functions(const Functions&) = delete;
  ~Functions() {
    if (library) dlclose(library);
  }
};

namespace {

/// cudaError_t as an error_code. CUDA's texts are in the module, which may be gone by the time somebody asks for one.
// boost::system::error_category is never deleted through its base, so it has no virtual destructor.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"
class CudaCategory final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "cuda"; }
  std::string message(int error) const override { return "CUDA error " + std::to_string(error); }
};
#pragma GCC diagnostic pop
const CudaCategory& cuda_category() {
  static const CudaCategory category;
  return category;
}

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

CudaModule::CudaModule(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
CudaModule::~CudaModule() = default;

Result<std::shared_ptr<const CudaModule>> CudaModule::load(std::string* why) {
  const auto refuse = [&](std::string reason) -> Result<std::shared_ptr<const CudaModule>> {
    if (why) *why = std::move(reason);
    return Errc::kUnavailable;
  };
  const char* named = std::getenv("KV_CUDA_MODULE");
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen(named ? named : "libkvstore_cuda.so", RTLD_NOW | RTLD_LOCAL);
  void* library = functions->library;
  if (!library) return refuse(dlerror());
  if (!find(library, "kv_cuda_abi_version", functions->abi_version) || functions->abi_version() != kDeviceAbiVersion) {
    return refuse("the CUDA module is another version's");
  }
  const bool is_whole =
      find(library, "kv_cuda_permute", functions->permute) &&
      find(library, "kv_cuda_device_count", functions->device_count) &&
      find(library, "kv_cuda_allocate", functions->allocate) && find(library, "kv_cuda_free", functions->free) &&
      find(library, "kv_cuda_copy", functions->copy) && find(library, "kv_cuda_synchronise", functions->synchronise);
  if (!is_whole) return refuse("the CUDA module lacks a function");
  if (functions->device_count() == 0) return refuse("no CUDA device");
  return std::shared_ptr<const CudaModule>(new CudaModule(std::move(functions)));
}

Result<void> CudaModule::check(int error) const {
  if (error == 0) return {};
  return error_code(error, cuda_category());
}

Result<void> CudaModule::permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                                 const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                                 void* stream, int block_count_max) const {
  KV_ASSERT(row_count >= 0 && block_count_max > 0);
  const auto plan = make_plan(to, to_rows, from, from_rows, row_count, operation);
  if (!plan) return Errc::kMismatch;
  for (const DevicePlan& launch : make_device_plans(*plan)) {
    const auto launched = check(functions_->permute(&launch, stream, block_count_max));
    if (!launched) return launched.error();
  }
  return {};
}

Result<void> CudaModule::scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows,
                                      const BoundLayout& source, void* stream, int block_count_max) const {
  const auto plan = make_keep_plan(cache, source);
  if (!plan) return plan.error();
  for (const DevicePlan& launch : make_device_plans(*plan)) {
    const auto launched = check(functions_->scatter_kept(&launch, rows.data(), static_cast<std::int64_t>(rows.size()),
                                                         stream, block_count_max));
    if (!launched) return launched.error();
  }
  return {};
}

void* CudaModule::allocate(std::size_t bytes) const { return functions_->allocate(bytes); }
void CudaModule::free(void* memory) const { functions_->free(memory); }
Result<void> CudaModule::copy(void* to, const void* from, std::size_t bytes) const {
  return check(functions_->copy(to, from, bytes));
}
Result<void> CudaModule::synchronise(void* stream) const { return check(functions_->synchronise(stream)); }

}  // namespace kv
