// transport/verbs/verbs_module.h: verbs of this machine's devices, from a module that is loaded on demand. A process
// without libibverbs gets one sentence that says so and runs without RDMA.
#pragma once

#include <memory>

#include "transport/verbs/verbs.h"

namespace kv::verbs {

/// Loads the file named by KV_VERBS_MODULE in the environment, else libkvstore_verbs.so as the loader finds it; it
/// stays loaded. device_names() may be empty. Errors: kUnavailable: no such module, no libibverbs, or another version's
/// module; the text says which and, behind a semicolon, which package to install. Thread safety: any thread.
Result<std::unique_ptr<Provider>, Failure> load_verbs();

/// The module exports
///     extern "C" int kv_verbs_abi_version();
///     extern "C" kv::verbs::Provider* kv_verbs_make_provider(int assert_policy);
/// Both sides are built from one tree; the version, which changes with verbs.h, rejects another build's module.
inline constexpr int kModuleAbiVersion = 3;

}  // namespace kv::verbs
