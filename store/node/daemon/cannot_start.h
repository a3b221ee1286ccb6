// store/node/daemon/cannot_start.h: the last words of a node that cannot start.
#pragma once

#include <iostream>
#include <string>

namespace kv {

/// Writes the reason to stderr. Always false, so that a step of the start can return it.
inline bool cannot_start(const std::string& why) {
  std::cerr << "kvstore-node: " << why << "\n";
  return false;
}

}  // namespace kv
