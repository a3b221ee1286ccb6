#include "client/python/src/waits.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace kv::python {

bool is_main_thread() { return ::syscall(SYS_gettid) == ::getpid(); }

std::chrono::nanoseconds time_of(double seconds, double most, const char* name) {
  if (std::isnan(seconds)) throw bad_request(std::string(name) + " is not a number");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, most) * 1e9));
}

std::chrono::nanoseconds duration_of(double seconds) {
  return time_of(seconds, 1e9, "a time in seconds");  // 1e9: so that arithmetic on it cannot overflow
}

std::chrono::microseconds deadline_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration_of(seconds));
}

}  // namespace kv::python
