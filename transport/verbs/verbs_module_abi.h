// transport/verbs/verbs_module_abi.h: the exports of libkvstore_verbs.so for verbs_module.cc. Both are built from one
// tree; the version rejects a module left behind by another build.
//
//   extern "C" int kv_verbs_abi_version();
//   extern "C" kv::verbs::Provider* kv_verbs_make_provider(int assert_policy);
#pragma once

namespace kv::verbs {

inline constexpr int kModuleAbiVersion = 3;  ///< Changes with transport/verbs/verbs.h.

}  // namespace kv::verbs
