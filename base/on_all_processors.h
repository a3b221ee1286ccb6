// base/on_all_processors.h: one piece of work on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace kv {

/// Calls `work` on as many threads as the calling thread may use processors, at most `count_max`, the calling one among
/// them; fewer where the limit of threads is reached. Returns when all calls have returned. `work` does not throw. The
/// threads inherit the caller's choice of processors and NUMA nodes.
void on_all_processors(std::size_t count_max, const std::function<void()>& work);

}  // namespace kv
