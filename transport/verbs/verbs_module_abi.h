// transport/verbs/verbs_module_abi.h: what libkvstore_verbs.so shows to verbs_module.cc. Both are built from one tree;
// the version keeps a module that another build left behind from being used.
//
//   extern "C" int kv_verbs_abi_version();
//   extern "C" kv::verbs::Provider* kv_verbs_make_provider(int assert_policy);
#pragma once

namespace kv::verbs {

inline constexpr int kModuleAbiVersion = 3;  ///< Changes with transport/verbs/verbs.h.

}  // namespace kv::verbs
