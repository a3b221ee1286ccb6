#include "base/assert.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kv {
namespace {
std::atomic<AssertPolicy> current_policy{AssertPolicy::kAbort};
}  // namespace

void set_assert_policy(AssertPolicy policy) noexcept { current_policy = policy; }
AssertPolicy assert_policy() noexcept { return current_policy; }

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "kvstore: assertion failed: %s at %s:%d\n", condition, file, line);
  if (current_policy == AssertPolicy::kAbort) std::abort();
  throw std::logic_error(std::string("kvstore assertion failed: ") + condition);
}

}  // namespace kv
