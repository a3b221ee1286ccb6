// base/assert.h: stops a bug at its first sign, in release builds too.
#pragma once

namespace kv {

/// The effect of a failed KV_ASSERT. The daemon aborts: a supervisor restarts it, and a cache may lose anything. The
/// client library throws instead, so that its outermost layer can disable it and leave the engine running.
enum class AssertPolicy { kAbort, kThrow };
void set_assert_policy(AssertPolicy policy) noexcept;
AssertPolicy assert_policy() noexcept;

/// Prints the condition with its place to stderr, then aborts or throws std::logic_error.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace kv

/// Only for our own bugs. Faults that a peer, a user or a device can cause are errors to return. The condition is
/// evaluated in every build, so it may contain a required call.
#define KV_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::kv::assertion_failed(#condition, __FILE__, __LINE__))
