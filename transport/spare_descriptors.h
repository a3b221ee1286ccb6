// transport/spare_descriptors.h: descriptors that are kept back from clients.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace kv {

/// Whether a client may keep its new descriptor: a high number leaves few for health answers and files.
inline bool leaves_descriptors(int descriptor) {
  constexpr rlim_t kSpareMax = 96;  // the admin server's connections, and a third more
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(descriptor) < limit.rlim_cur - std::min(kSpareMax, limit.rlim_cur / 8);
}

}  // namespace kv
