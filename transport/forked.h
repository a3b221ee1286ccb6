// transport/forked.h: what a child of fork() must not do, and what it must do at once.
#pragma once

#include <cstdint>

namespace kv {

/// How many forks lie between the process that was started and this one: 0 in the first, one more in each child of
/// fork(). Whatever holds threads, locks or connections remembers the generation that it was made in. In a process of
/// another generation the threads do not exist, the locks may be held for ever, and the connections are the parent's.
/// Costs one load. Thread safety: any.
std::uint32_t fork_generation();

/// Closes `fd` in every child, before anything else runs there: else a child that only sleeps would keep a session with
/// the peer open when its parent has long died. Nothing in the child may use the descriptor afterwards. (Linux has no
/// close-on-fork, and close-on-exec does not help a child that never calls exec.)
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
