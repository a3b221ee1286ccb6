// store/node/threads/thread_border.h: stops exceptions at the edge of each thread of the node.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/result.h"

namespace kv {

/// A thread of the node, as a label of kvstore_thread_failures_total. Names never change; append only.
enum class NodeThread : std::uint8_t {
  kMain,        ///< Signals, housekeeping, and checks of files.
  kIo,          ///< Sessions and handshakes.
  kAdmin,       ///< HTTP.
  kMembership,  ///< etcd.
  kMover,       ///< Hand-overs.
  kExchange,    ///< Learning together.
  kContexts,    ///< The file of named contexts.
  kWarmer,      ///< Contexts brought from disk.
  kLearned,     ///< The file of learned counts.
  kEraser,      ///< Erasing a tenant.
  kCapacity,    ///< The arena's size.
  kDisk,        ///< The disk tier, and its disks.
  kRdma         ///< Devices.
};
inline constexpr std::array kNodeThreadNames = {"main",     "io",       "admin",  "membership", "mover",
                                                "exchange", "contexts", "warmer", "learned",    "eraser",
                                                "capacity", "disk",     "rdma"};

/// Bad input from a peer, a file, etcd or an operator is an error to return, and a bug of this program is KV_ASSERT.
/// Exceptions are the cases between: a library given odd input, or a machine without memory. Each ends at the border of
/// its thread: logged, counted, and retried by threads that work in rounds. So outside input cannot cause
/// std::terminate. Process-wide, since threads are; any thread.
void note_thread_failure(NodeThread thread, std::exception_ptr thrown) noexcept;
std::uint64_t thread_failure_count(NodeThread thread) noexcept;

/// Returns whether `body` completed.
template <class Body>
bool within_border(NodeThread thread, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return true;
  } catch (...) {
    note_thread_failure(thread, std::current_exception());
    return false;
  }
}

/// context.run() for a thread's whole life: after a handler throws, the next one runs.
inline void run_within_border(NodeThread thread, asio::io_context& context) noexcept {
  while (!within_border(thread, [&context] { context.run(); })) {
  }
}

/// Ends a thread that works for a disk. If the disk hangs, the thread is left to itself, with the Work that it shares
/// with the caller. Work has a `mutex` for `ends` and `has_ended`, and `changed`, on which the thread waits.
template <class Work>
void end_or_leave(std::thread& thread, Work& work) {
  constexpr std::chrono::milliseconds kPatience{200};
  std::unique_lock lock(work.mutex);
  work.ends = true;
  work.changed.notify_all();
  const bool has_ended = work.changed.wait_for(lock, kPatience, [&work] { return work.has_ended; });
  lock.unlock();
  has_ended ? thread.join() : thread.detach();
}

/// Runs one round of a repeating coroutine. Returns whether it completed.
inline asio::awaitable<bool> within_border(NodeThread thread, asio::awaitable<void> round) {
  try {
    co_await std::move(round);
    co_return true;
  } catch (...) {
    note_thread_failure(thread, std::current_exception());
  }
  co_return false;
}

/// Completion handler for co_spawn() without a waiter: asio::detached would drop the exception.
struct BorderOf {
  NodeThread thread;
  void operator()(std::exception_ptr thrown) const noexcept {
    if (thrown) note_thread_failure(thread, std::move(thrown));
  }
};

}  // namespace kv
