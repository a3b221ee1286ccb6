// base/assert.h: a bug is stopped where it is first seen, in release builds too.
#pragma once

namespace kv {

/// What a failed KV_ASSERT does. The daemon aborts: a supervisor restarts it, and a cache may lose anything.
/// The client library throws instead, so that its outermost layer can disable it and leave the engine running.
enum class AssertPolicy { kAbort, kThrow };
void set_assert_policy(AssertPolicy policy) noexcept;
AssertPolicy assert_policy() noexcept;

/// Prints the condition with its place to stderr, then aborts or throws std::logic_error.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace kv

/// For bugs of our own only. What a peer, a user or a device can cause is an error to return.
/// The condition is evaluated in every build, so a call that must happen may stand in it.
#define KV_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::kv::assertion_failed(#condition, __FILE__, __LINE__))
