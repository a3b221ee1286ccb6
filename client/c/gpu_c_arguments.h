// client/c/gpu_c_arguments.h: a C caller's arguments, checked, in the types of the C++ functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "base/assert.h"
#include "client/c/c_status.h"
#include "client/c/gpu_c_types.h"
#include "gpu/device/cuda_module.h"
#include "gpu/operation.h"
#include "gpu/rows.h"

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

/// The rows of a call on the side of `layout`. Ids are unchecked: they may be in device memory.
Rows read_rows(const kvs_rows* given, const Layout& layout, std::int64_t row_count);
/// `to`: the layout that determines the scales of quantised components.
Operation read_operation(const kvs_operation* given, std::int64_t row_count, const Layout& to);

/// The status and text for an error of the CUDA module that the arguments do not explain.
int fail_cuda(error_code error);
inline int told(const Result<void>& done) { return done ? KVS_OK : fail_cuda(done.error()); }
/// The status and text for an error of permute() and its like.
int fail_permute(error_code error, const Layout& to, const Layout& from, const Operation& operation);

}  // namespace kv::c_api
