#include "base/on_all_processors.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace kv {

void on_all_processors(std::size_t count_max, const std::function<void()>& work) {
  std::vector<std::jthread> others;
  while (others.size() + 1 < std::min<std::size_t>(count_max, std::thread::hardware_concurrency())) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
}

}  // namespace kv
