// tests/transport/descriptor_count.h: the open descriptors of this process, so that a test notices one that stays open.
#pragma once

#include <cstddef>
#include <filesystem>

namespace kv {

inline std::size_t descriptor_count() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace kv
