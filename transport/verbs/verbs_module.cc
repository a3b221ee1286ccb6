#include "transport/verbs/verbs_module.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/assert.h"

namespace kv::verbs {

Result<std::unique_ptr<Provider>, Failure> load_verbs() {
  const auto refuse = [](const std::string& reason) {
    return Failure(Errc::kUnavailable, "RDMA is unavailable: " + reason);
  };
  const char* const named = std::getenv("KV_VERBS_MODULE");
  const std::string file = named ? named : "libkvstore_verbs.so";
  // Never unloaded: errors that the module has returned point into it.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const std::string error = ::dlerror();
    const bool lacks_library = error.find("libibverbs.so") != std::string::npos;
    return refuse(error + (lacks_library ? "; install rdma-core (Debian: libibverbs1 and ibverbs-providers)"
                                         : "; install kvstore's module for RDMA, or name its file in KV_VERBS_MODULE"));
  }
  const auto version = reinterpret_cast<int (*)()>(::dlsym(library, "kv_verbs_abi_version"));
  const auto make = reinterpret_cast<Provider* (*)(int)>(::dlsym(library, "kv_verbs_make_provider"));
  if (!version || !make || version() != kModuleAbiVersion) {
    return refuse(
        file + " is another version's" +
        (version ? ": " + std::to_string(version()) + ", wanted is " + std::to_string(kModuleAbiVersion) : "") +
        "; install the one that was built with this program");
  }
  // The policy goes along: the module's own copy of base must handle failed asserts as ours does.
  return std::unique_ptr<Provider>(make(static_cast<int>(assert_policy())));
}

}  // namespace kv::verbs
