// transport/spare_descriptors.h: descriptors that are not for clients.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace kv {

/// Whether a descriptor that a client has just been given may stay: the kernel gives the lowest number that is free, so
/// one of the last says that hardly any is left. These are for health answers and for files.
inline bool leaves_descriptors(int descriptor) {
  constexpr rlim_t kSpareMax = 96;  // the admin server's connections, and a third of them more
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(descriptor) < limit.rlim_cur - std::min(kSpareMax, limit.rlim_cur / 8);
}

}  // namespace kv
