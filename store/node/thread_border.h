// store/node/thread_border.h: where a thread of the node ends what it cannot go on with.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <exception>
#include <utility>

#include "base/result.h"

namespace kv {

/// A thread of the node, as a label of kvstore_thread_failures_total. Names never change; append only.
enum class NodeThread : std::uint8_t {
  kMain,        ///< Signals, housekeeping, and the watching of files.
  kIo,          ///< Sessions and handshakes.
  kAdmin,       ///< HTTP.
  kMembership,  ///< etcd.
  kMover,       ///< Handing over.
  kPool,        ///< Learning together.
  kContexts,    ///< The file of named contexts.
  kWarmer,      ///< Contexts brought from disk.
  kLearned,     ///< The file of what was learned.
  kEraser,      ///< Erasing a tenant.
  kCapacity,    ///< The arena's size.
  kSpill,       ///< The disk tier, and its disks.
  kRdma         ///< Devices.
};
inline constexpr std::array kNodeThreadNames = {"main",     "io",       "admin",  "membership", "mover",
                                                "pool",     "contexts", "warmer", "learned",    "eraser",
                                                "capacity", "spill",    "rdma"};

/// What a peer, a file, etcd or an operator says is an error to return, and a bug of our own is KV_ASSERT. In between
/// are exceptions: of a library that was given something odd, or of a machine without memory. Each ends here, at the
/// border of the thread that met it: logged, counted, and tried again by whoever works in rounds. So std::terminate
/// cannot be reached from outside. Process-wide, since threads are; any thread.
void note_thread_failure(NodeThread thread, std::exception_ptr thrown) noexcept;
std::uint64_t thread_failure_count(NodeThread thread) noexcept;

/// Whether `body` came to its end.
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

/// context.run() for a thread's whole life: a handler that throws is over, and the next one runs.
inline void run_within_border(NodeThread thread, asio::io_context& context) noexcept {
  while (!within_border(thread, [&context] { context.run(); })) {
  }
}

/// One round of a coroutine that goes on with the next one. Whether it came to its end.
inline asio::awaitable<bool> within_border(NodeThread thread, asio::awaitable<void> round) {
  try {
    co_await std::move(round);
    co_return true;
  } catch (...) {
    note_thread_failure(thread, std::current_exception());
  }
  co_return false;
}

/// What co_spawn() tells of the end, where nobody waits for it: asio::detached would forget the exception.
struct BorderOf {
  NodeThread thread;
  void operator()(std::exception_ptr thrown) const noexcept {
    if (thrown) note_thread_failure(thread, std::move(thrown));
  }
};

}  // namespace kv
