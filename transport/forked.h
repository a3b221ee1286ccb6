// transport/forked.h: what a child of fork() must not do, and what it must do at once.
#pragma once

#include <cstdint>

namespace kv {

/// How often this process is a child: 0 in the one that was started, and one more in each child of fork(). What holds
/// threads, locks or connections remembers it from when it was made: in a process of another generation its threads do
/// not exist, its locks may be held for ever, and its connections are the parent's. Costs one load. Thread safety: any.
std::uint32_t fork_generation();

/// Closes `fd` in every child, at once and before anything else runs there: a child that only sleeps would keep a
/// session with the peer open when its parent has long died. Nothing there may use it afterwards. (Linux has no
/// close-on-fork, and close-on-exec does not help a child that goes on as it is.)
/// Thread safety: any. Cost: some microseconds.
class ClosedInChild {
 public:
  ClosedInChild() = default;
  explicit ClosedInChild(int fd);
  ~ClosedInChild() { forget(); }
  ClosedInChild(const ClosedInChild&) = delete;
  ClosedInChild& operator=(const ClosedInChild&) = delete;
  void forget();  ///< Before `fd` is closed here, and its number becomes another file's.

 private:
  int fd_ = -1;
};

}  // namespace kv
