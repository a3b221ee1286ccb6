#include "base/on_all_processors.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace kv {

void on_all_processors(std::size_t count_max, const std::function<void()>& work) {
  const std::size_t count = std::min(count_max, allowed_processors().size());
  std::vector<std::jthread> others;
  while (others.size() + 1 < count) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
}

}  // namespace kv
