// transport/verbs/verbs_module.h: verbs of this machine's devices, from a module that is loaded on demand. A process
// without libibverbs is told so in one sentence and goes on without RDMA.
#pragma once

#include <memory>
#include <string>

#include "transport/verbs/verbs.h"

namespace kv::verbs {

/// Loads the file that the environment names in KV_VERBS_MODULE, else libkvstore_verbs.so as the loader finds it. The
/// module stays loaded. Whether there is any device is another question: device_names() may be empty.
/// Errors: kUnavailable: no such module, no libibverbs, or another version's module; the text says which and, behind a
/// semicolon, what to install. Thread safety: any thread.
Result<std::unique_ptr<Provider>, Failure> load_verbs();

}  // namespace kv::verbs
