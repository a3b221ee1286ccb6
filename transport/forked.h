// transport/forked.h: rules for a child of fork().
#pragma once

#include <cstdint>

namespace kv {

/// The number of forks between the first process and this one: 0 in the first. Objects that hold threads, locks or
/// connections record the generation of their creation: in another one the threads do not exist, the locks may be held
/// for ever, and the connections are the parent's. Costs one load. Thread safety: any.
std::uint32_t fork_generation();

/// Closes `fd` in every child, before other code runs there: else a child that only sleeps would keep the session with
/// the peer open after its parent has died. The child must not use the descriptor. (Linux has no close-on-fork, and
/// close-on-exec does not help a child that never calls exec.)
/// Thread safety: any. Cost: some microseconds.
class ClosedInChild {
 public:
  ClosedInChild() = default;
  explicit ClosedInChild(int fd);
  ~ClosedInChild() { forget(); }
  ClosedInChild(const ClosedInChild&) = delete;
  ClosedInChild& operator=(const ClosedInChild&) = delete;
  void forget();  ///< Call before `fd` is closed here: its number may soon be another file's.

 private:
  int fd_ = -1;
};

}  // namespace kv
