// tests/client/failing_allocations.h: lets allocations of a thread fail. Included by one file of a program, since it
// replaces operator new. KV_ALLOCATIONS_FAIL is 0 where that cannot be done.
#pragma once

#include <cstdlib>
#include <new>

// ThreadSanitizer has an operator new of its own, which no other may replace.
#if defined(__SANITIZE_THREAD__)
#define KV_ALLOCATIONS_FAIL 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KV_ALLOCATIONS_FAIL 0
#endif
#endif
#ifndef KV_ALLOCATIONS_FAIL
#define KV_ALLOCATIONS_FAIL 1
#endif

#if KV_ALLOCATIONS_FAIL
namespace {

/// Allocations of this thread until one fails; below 0: none will.
thread_local long allocations_left = -1;

}  // namespace

// Not inlined: compilers take the pair of them for a mismatch then.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
