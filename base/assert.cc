#include "base/assert.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kv {
namespace {
// Per copy of this library: a module loaded at run time has its own, and receives the policy when it is loaded.
std::atomic<AssertPolicy> current_policy{AssertPolicy::kAbort};
}  // namespace

void set_assert_policy(AssertPolicy policy) noexcept { current_policy = policy; }
AssertPolicy assert_policy() noexcept { return current_policy; }

/// Printed under either policy: where the exception is caught and the client disabled, stderr still has the place.
void assertion_failed(const char* condition, const char* file, int line) {
  // Not through the log: the log may be the faulty part, may not exist yet, and may allocate.
  std::fprintf(stderr, "kvstore: assertion failed: %s at %s:%d\n", condition, file, line);
  if (current_policy == AssertPolicy::kAbort) std::abort();
  throw std::logic_error(std::string("kvstore assertion failed: ") + condition);
}

}  // namespace kv
