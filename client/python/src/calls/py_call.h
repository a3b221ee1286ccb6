// client/python/src/calls/py_call.h: one call as Python sees it, and its buffers once it was given up.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/buffers.h"
#include "client/python/src/io_client.h"

namespace kv::python {

/// Throws if there is an error.
void check(const IoClient& io, const error_code& error, const std::string& reason = {});

/// Buffers of calls that were given up while they ran. Used with the GIL held.
struct Orphans {
  struct Orphan {
    CallPtr call;
    Holds holds;
  };
  std::list<Orphan> orphans;

  /// Releases the ended calls; in a child of fork(), where all threads are gone, every call.
  void sweep(bool is_forked);
};

/// The queue shared by calls under way: ending a call must never touch a Python object.
struct PyQueue {
  std::shared_ptr<ReadyQueue> queue = std::make_shared<ReadyQueue>();
};

/// One call as Python sees it. In a child of fork() a call in flight has ended, with kForked: its lock may be held.
class PyCall {
 public:
  PyCall(std::shared_ptr<IoClient> io, std::shared_ptr<Orphans> orphans)
      : state(std::make_shared<Call>()), io_(std::move(io)), orphans_(std::move(orphans)) {}
  PyCall(PyCall&&) noexcept = default;
  PyCall(const PyCall&) = delete;
  PyCall& operator=(const PyCall&) = delete;
  ~PyCall();

  /// The call's borrowed buffers. Allocated now, so that passing them to the orphans later needs no memory.
  Holds& holds();

  bool has_ended() const { return state->is_done() || io_->is_forked(); }
  bool wait(double seconds);
  void cancel() { io_->cancel(state); }
  nb::object result(double seconds);
  std::size_t wait_segments(std::size_t count, double seconds);
  std::vector<std::size_t> segments() const;

  /// False: the call has ended, and `queue` will not be notified.
  bool tell(const PyQueue& queue, std::uint64_t id) { return !has_ended() && state->tell(queue.queue, id); }
  void stop_telling(const PyQueue& queue) {
    if (!io_->is_forked()) state->stop_telling(*queue.queue);
  }

  CallPtr state;
  bool has_started = false;  ///< From here on `state` ends some day, and needs its borrowed buffers until then.

 private:
  std::list<Orphans::Orphan> borrowed_;  ///< One at most.
  std::shared_ptr<IoClient> io_;
  std::shared_ptr<Orphans> orphans_;
};

}  // namespace kv::python
