// client/c/gpu_c_arguments.h: the types behind kvstore_gpu.h's handles; and a C caller's arguments, checked, in the
// types of the C++ functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/c/c_status.h"
#include "client/kvstore_gpu.h"
#include "gpu/device/cuda_module.h"
#include "gpu/layout.h"
#include "gpu/operation.h"
#include "gpu/rows.h"

struct kvs_layout {
  kv::Layout layout;
};
struct kvs_cache {
  kv::BoundLayout bound;
};

namespace kv::c_api {

/// Runs a call's body. A failed assertion must not take the engine down.
template <class Body>
int gpu_call(Body body) noexcept {
  set_assert_policy(AssertPolicy::kThrow);
  return guarded(body);
}

/// "field: value is not allowed".
[[noreturn]] void refuse_value(const std::string& field, std::int64_t value, const std::string& allowed);

/// Where a call runs. The caller's device, if named, is the thread's current one during this object's life.
struct Run {
  /// `caches`: the call's, which must lie on the device that the caller names, if any.
  explicit Run(const kvs_where* given, std::initializer_list<const kvs_cache*> caches = {});
  static Run on_cuda();  ///< For calls without other arguments.

  std::shared_ptr<const CudaModule> cuda;  ///< Null: on the host.
  void* stream = nullptr;
  int block_count_max = CudaModule::kBlockCountMax;
  std::optional<CudaModule::DeviceScope> device;
};
/// Device `ordinal` from a number counted from 1; -1 for 0: the thread's.
int read_device_number(const CudaModule& cuda, const char* field, int number);
bool has_cuda();

/// A caller's list as 64-bit numbers: itself, or a copy.
template <class Id>
struct WideList {
  WideList(const Id* from, std::size_t count) {
    if constexpr (sizeof(Id) == 8) {
      list = {from, count};
    } else {
      copy.assign(from, from + count);
      list = copy;
    }
  }
  std::vector<std::int64_t> copy;
  std::span<const std::int64_t> list;
};

/// The rows of a call on the side of `layout`. Ids are unchecked: they may be in device memory.
Rows read_rows(const kvs_rows* given, const Layout& layout, std::int64_t row_count);
/// `to`: the layout that determines the scales of quantised components.
Operation read_operation(const kvs_operation* given, std::int64_t row_count, const Layout& to);

/// For an error of the CUDA module that the arguments do not explain.
[[noreturn]] void refuse_cuda(error_code error);
inline void demand(const Result<void>& done) {
  if (!done) refuse_cuda(done.error());
}
[[noreturn]] void refuse_permute(error_code error, const Layout& to, const Layout& from, const Operation& operation);
/// For an error of permute() and its like, if `done` has one.
template <class T>
void demand(const Result<T>& done, const Layout& to, const Layout& from, const Operation& operation) {
  if (!done) refuse_permute(done.error(), to, from, operation);
}

}  // namespace kv::c_api
