// Client, Call, ReadyQueue and Memory: the base of Python's Client, Future and event loops.
//
// Each call is one entry into C++: arguments are checked and borrowed with the GIL held, the rest runs without it. An
// abandoned call keeps its buffers until it has ended.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <list>

#include "base/assert.h"
#include "client/blocking_client.h"
#include "client/python/src/allocation.h"
#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/client_config.h"
#include "client/python/src/device.h"
#include "client/python/src/errors.h"
#include "client/python/src/io_client.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "index/name_groups.h"

namespace kv::python {
namespace {

using std::chrono::microseconds;

/// How often a waiting thread checks for signals: Ctrl-C ends a blocking call within 100 ms.
constexpr auto kSignalInterval = 40ms;

/// Only the main thread handles signals, so others need not check.
bool is_main_thread() { return ::syscall(SYS_gettid) == ::getpid(); }

std::chrono::nanoseconds duration_of(double seconds) {
  constexpr double kMost = 1e9;  // so that arithmetic on it cannot overflow
  if (std::isnan(seconds)) throw bad_request("a time in seconds is not a number");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, kMost) * 1e9));
}

/// Since 1970.
std::chrono::nanoseconds duration_of_date(double seconds) {
  constexpr double kMost = 9e9;  // the year 2255
  if (std::isnan(seconds)) throw bad_request("a date is not a number");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, kMost) * 1e9));
}

microseconds deadline_of(double seconds) { return std::chrono::duration_cast<microseconds>(duration_of(seconds)); }

/// A context's life in seconds; 0: not given. The C++ client and the nodes validate it.
ContextTime context_time(double ttl, bool sliding, double until) {
  ContextTime life;
  life.ttl = deadline_of(ttl);
  life.is_sliding = sliding;
  life.until = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(duration_of_date(until)));
  return life;
}

/// Waits in steps, each without the GIL, until `step` returns true or the time has passed. `seconds` < 0: for ever.
template <class Step>
bool wait_in_steps(const IoClient& io, double seconds, Step step) {
  const auto until = std::chrono::steady_clock::now() + duration_of(seconds < 0 ? 1e9 : seconds);
  const bool looks_for_signals = is_main_thread();
  for (;;) {
    if (io.is_forked()) throw failure_of(Errc::kForked);
    const auto left = std::max<std::chrono::nanoseconds>(until - std::chrono::steady_clock::now(), 0ns);
    bool is_over;
    {
      const WithoutGil without_gil;
      is_over = step(looks_for_signals ? std::min<std::chrono::nanoseconds>(left, kSignalInterval) : left);
    }
    if (is_over) return true;
    if (looks_for_signals && PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left == 0ns) return false;
  }
}

void check(const IoClient& io, const error_code& error, const std::string& reason = {}) {
  if (!error) return;
  // Calls of a disabled client end as unavailable, which would read as a node that may come back.
  if (io.is_disabled()) throw StatusError{kStatusInternal, "the client is disabled after an internal error"};
  throw failure_of(error, reason);
}

/// A result with the text of its `why`.
template <class T>
struct Told : T {
  std::string reason;
};
/// Except contexts: their `why` is their quota's, and they come in lists.
template <class T>
concept HasWhy = !std::same_as<T, NamedContext> &&
                 (
                     requires(const T& value) { value.why; } || requires(const T& value) { value.get.why; });

/// Buffers of calls that were given up while they ran. Used with the GIL held.
struct Orphans {
  struct Orphan {
    CallPtr call;
    Holds holds;
  };
  std::list<Orphan> orphans;

  /// Releases the ended calls; in a child of fork(), where all threads are gone, every call.
  void sweep(bool is_forked) {
    std::list<Orphan> ended;  // destroyed last: a release can run Python, and another thread may enter here
    for (auto each = orphans.begin(); each != orphans.end();) {
      const auto next = std::next(each);
      if (is_forked || each->call->is_done()) ended.splice(ended.end(), orphans, each);
      each = next;
    }
  }
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
  ~PyCall() {
    // A node may still write into this dropped call's buffers. Waiting here would block Python's garbage collector.
    if (has_started && state && !has_ended()) orphans_->orphans.splice(orphans_->orphans.end(), borrowed_);
  }

  /// The call's borrowed buffers. Allocated now, so that passing them to the orphans later needs no memory.
  Holds& holds() {
    if (borrowed_.empty()) borrowed_.push_back({state, {}});
    return borrowed_.front().holds;
  }

  bool has_ended() const { return state->is_done() || io_->is_forked(); }
  bool wait(double seconds) {
    try {
      return has_ended() || wait_in_steps(*io_, seconds, [&](auto time) { return state->wait(time); });
    } catch (const nb::python_error&) {  // Ctrl-C: the answer is not wanted any more
      cancel();
      throw;
    }
  }
  void cancel() { io_->cancel(state); }

  nb::object result(double seconds) {
    if (!wait(seconds)) throw failure_of(asio::error::timed_out);
    {
      // The buffers are their owner's again. Taken out first: a release can run Python and let another thread in here.
      const std::list<Orphans::Orphan> ended = std::exchange(borrowed_, {});
    }
    // Then this is a child of fork(), where has_ended() holds for every call that was in flight.
    if (!state->is_done()) throw failure_of(Errc::kForked);
    check(*io_, state->error(), state->reason());
    return std::visit([this](const auto& outcome) { return to_python(outcome, state->reason()); }, state->outcome());
  }

  std::size_t wait_segments(std::size_t count, double seconds) {
    std::size_t landed = 0;
    wait_in_steps(*io_, seconds, [&](auto time) {
      landed = state->wait_segments(count, time);
      return landed >= count || state->is_done();
    });
    return landed;
  }

  std::vector<std::size_t> segments() const {
    if (io_->is_forked()) throw failure_of(Errc::kForked);
    return state->segments();
  }

  /// False: the call has ended, and `queue` will not be notified.
  bool tell(const PyQueue& queue, std::uint64_t id) { return !has_ended() && state->tell(queue.queue, id); }
  void stop_telling(const PyQueue& queue) {
    if (!io_->is_forked()) state->stop_telling(*queue.queue);
  }

  CallPtr state;
  bool has_started = false;  ///< From here on `state` ends some day, and needs its borrowed buffers until then.

 private:
  static nb::object to_python(std::monostate, const std::string&) { return nb::none(); }
  static nb::object to_python(const std::string& text, const std::string&) { return nb::cast(text); }
  static nb::object to_python(Space space, const std::string&) { return nb::cast(static_cast<std::uint32_t>(space)); }
  static nb::object to_python(const std::vector<std::chrono::nanoseconds>& times, const std::string&) {
    nb::list seconds;
    for (const auto time : times) {
      seconds.append(time.count() < 0 ? nb::none()
                                      : nb::object(nb::float_(std::chrono::duration<double>(time).count())));
    }
    return seconds;
  }
  static nb::object to_python(const std::vector<NodeStats>& nodes, const std::string&) {
    nb::list list;
    for (const NodeStats& node : nodes) {
      nb::dict values, entry;
      for (const auto& [name, value] : node.values) values[name.c_str()] = value;
      nb::list spaces;
      for (const NodeStats::Namespace& space : node.namespaces) {
        nb::dict one;
        one["record"] = space.record;
        one["block_count"] = space.block_count;
        one["total_bytes"] = space.total_bytes;
        one["stored_blocks"] = space.stored_blocks;
        one["lookups"] = space.lookups;
        one["empty_lookups"] = space.empty_lookups;
        spaces.append(one);
      }
      entry["name"] = node.name;
      entry["error"] = node.error ? nb::object(nb::str(failure_of(node.error).text.c_str())) : nb::none();
      entry["values"] = values;
      entry["namespaces"] = spaces;
      list.append(entry);
    }
    return list;
  }
  static nb::object to_python(const std::vector<NodeStatus>& nodes, const std::string&) {
    nb::list list;
    for (const NodeStatus& node : nodes) {
      nb::dict entry;
      entry["name"] = node.name;
      entry["endpoint"] = node.endpoint;
      entry["node_id"] = node.node_id;
      entry["transport"] = node.peer_transport;
      entry["rdma_lanes"] = node.rdma_lanes;
      entry["rdma_text"] = node.rdma_text;
      entry["connected"] = node.connected;
      entry["breaker_open"] = node.breaker_open;
      entry["calls"] = node.calls;
      entry["failures"] = node.failures;
      entry["timeouts"] = node.timeouts;
      entry["reconnects"] = node.reconnects;
      entry["hedges"] = node.hedges;
      entry["hedge_wins"] = node.hedge_wins;
      entry["breaker_openings"] = node.breaker_openings;
      entry["last_error"] = node.last_error_text;
      list.append(entry);
    }
    return list;
  }
  static nb::object to_python(const NumaStatus& numa, const std::string&) {
    nb::dict entry;
    entry["nodes"] = numa.place.node_count;
    nb::list chosen, processors;
    for (const unsigned node : numa.place.choice.memory) chosen.append(node);
    for (const unsigned processor : numa.place.choice.processors) processors.append(processor);
    entry["chosen"] = chosen;
    entry["processors"] = processors;
    entry["misplaced_ratio"] = numa.misplaced_ratio ? nb::cast(*numa.misplaced_ratio) : nb::none();
    entry["why_not"] = numa.place.why_not;
    return entry;
  }
  static nb::object to_python(std::span<std::byte>, const std::string&) { return nb::none(); }
  template <class T>
  static nb::object to_python(const T& value, const std::string& reason) {
    if constexpr (HasWhy<T>) {
      return nb::cast(Told<T>{value, reason});
    } else {
      return nb::cast(value);
    }
  }

  std::list<Orphans::Orphan> borrowed_;  ///< One at most.
  std::shared_ptr<IoClient> io_;
  std::shared_ptr<Orphans> orphans_;
};

/// NumPy and torch views keep it alive by the buffer protocol.
class Memory {
 public:
  explicit Memory(std::shared_ptr<LentMemory> lent) : lent_(std::move(lent)) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    // Waits for the I/O thread, and other Python threads must be able to run meanwhile.
    const WithoutGil without_gil;
    lent_->unmap();  // here instead of on the I/O thread: 0.1 s per GiB
  }

  std::span<std::byte> bytes() const { return lent_->bytes(); }
  const std::shared_ptr<IoClient>& io() const { return lent_->io(); }
  bool is_page_locked() const { return is_page_locked_; }
  void lock_pages(std::shared_ptr<const CudaModule> module) {
    Result<void> locked = Errc::kBadRequest;
    {
      const WithoutGil without_gil;  // takes as long as touching all pages
      locked = lent_->lock_pages(std::move(module));
    }
    check_cuda(locked, "page_locked");
    is_page_locked_ = true;
  }

 private:
  std::shared_ptr<LentMemory> lent_;
  bool is_page_locked_ = false;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {  // made by __new__ alone
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this Memory was not made by a client's allocate()");
    return -1;
  }
  const std::span<std::byte> bytes = nb::inst_ptr<Memory>(self)->bytes();
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), /*readonly=*/0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

/// As Client::lend, but an empty result at the deadline is an error: some node had yet to answer.
Async<std::size_t> lend_in_time(Client& client, std::span<std::byte> memory, microseconds deadline,
                                CallControl control) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  const auto lent = co_await client.lend(memory, deadline, control);
  // Before the deadline, 0 is an answer: all nodes are on other hosts and without RDMA.
  if (lent && *lent == 0 && std::chrono::steady_clock::now() >= until) co_return error_code(asio::error::timed_out);
  co_return lent;
}

class PyClient {
 public:
  PyClient(ClientConfig config, double busy_poll) : config_(config) {
    try {
      io_ = IoClient::make(std::move(config), deadline_of(busy_poll));
    } catch (const std::invalid_argument& error) {
      throw bad_request(error.what());
    }
  }
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;
  ~PyClient() { close(); }

  bool is_closed() const { return is_closed_; }
  bool is_forked() const { return io_->is_forked(); }

  /// Cancels the calls in flight and closes the connections. Memory still in use stays mapped.
  void close() {
    if (std::exchange(is_closed_, true)) return;
    if (!io_->is_forked()) {
      const auto memory = std::exchange(memory_, {});
      const WithoutGil without_gil;
      // Calls first: memory that a node still fills cannot be taken back, and would be quarantined instead of freed.
      io_->cancel_all();
      // Cancelled calls end soon, whatever the nodes do; abandoned ones never.
      while (io_->call_count() > 0 && !io_->is_over()) ::usleep(50);
      for (const auto& each : memory) {
        // Its Memory object may live on under NumPy arrays: it is ordinary memory then, unknown to all nodes.
        if (const auto lent = each.lock()) lent->take_back();
      }
      io_->close();
    } else {
      io_->close();
    }
    orphans_->sweep(io_->is_forked());
  }

  PyCall begin(bool at_once = false) {
    check_open();
    orphans_->sweep(io_->is_forked());
    PyCall call(io_, orphans_);
    call.state->at_once = at_once;
    const nb::object traceparent = trace_.attr("get")();
    // An invalid traceparent is ignored, as W3C asks: engines pass on whatever their callers send.
    if (nb::isinstance<nb::str>(traceparent))
      call.state->trace = TraceContext::parse(nb::cast<std::string>(traceparent)).value_or(TraceContext());
    return call;
  }

  PyCall begin(nb::handle hashes, bool at_once) {
    PyCall call = begin(at_once);
    // Copied: the caller's list may change as soon as this returns.
    call.state->hashes = hashes_from(hashes, "hashes");
    return call;
  }

  PyCall open(const NamespaceRecord& record, double deadline, bool waits) {
    PyCall call = begin();
    start<Space>(call, [record, state = call.state, time = waits ? deadline_of(deadline) : 0us](Client& client) {
      return client.open(record, time, state->control());
    });
    return call;
  }
  PyCall wait_open(std::uint32_t space, double deadline) {
    PyCall call = begin();
    start<void>(call, [=, state = call.state, time = deadline_of(deadline)](Client& client) {
      return client.wait_open(Space{space}, time, state->control());
    });
    return call;
  }

  PyCall match(std::uint32_t space, nb::handle hashes, double deadline, bool lease, bool prefetch, nb::handle tokens,
               nb::handle extras, std::uint8_t reuse, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    take_tokens(state, tokens, extras);
    MatchOptions options{};
    options.deadline = deadline_of(deadline);
    options.lease = lease;
    options.prefetch = prefetch;
    options.token_ids = state.token_ids;
    options.extras = state.extras;
    options.reuse = static_cast<ReuseHint>(reuse);
    options.control = state.control();
    start<MatchResult>(call, [=, &state](Client& client) { return client.match(Space{space}, state.hashes, options); });
    return call;
  }

  PyCall why(std::uint32_t space, nb::handle hashes, double deadline) {
    PyCall call = begin(hashes, /*at_once=*/false);
    Call& state = *call.state;
    start<MissReport>(call, [=, &state, time = deadline_of(deadline)](Client& client) {
      return client.why(Space{space}, state.hashes, time, state.control());
    });
    return call;
  }

  PyCall get(std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks, nb::handle rows,
             double deadline, std::uint64_t lease, std::vector<std::uint64_t> segment_ends, bool memory_only,
             bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    state.blocks = blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/true, call.holds());
    state.segment_ends = std::move(segment_ends);
    GetOptions options{};
    options.deadline = deadline_of(deadline);
    options.lease = Lease{lease};
    options.segment_ends = state.segment_ends;
    options.memory_only = memory_only;
    options.control = state.control();
    options.on_segment = tell_segments(state);
    start<GetResult>(
        call, [=, &state](Client& client) { return client.get(Space{space}, state.hashes, state.blocks, options); });
    return call;
  }

  PyCall load(std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks, nb::handle rows,
              double deadline, std::size_t block_count_min, std::vector<std::uint64_t> segment_ends, bool memory_only,
              std::uint8_t reuse, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    state.blocks = blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/true, call.holds());
    state.segment_ends = std::move(segment_ends);
    LoadOptions options{};
    options.deadline = deadline_of(deadline);
    options.block_count_min = block_count_min;
    options.segment_ends = state.segment_ends;
    options.memory_only = memory_only;
    options.on_segment = tell_segments(state);
    options.reuse = static_cast<ReuseHint>(reuse);
    start<LoadResult>(call, [=, &state](Client& client) {
      return python::load(client, Space{space}, state.hashes, state.blocks, options, state.control());
    });
    return call;
  }

  PyCall put(std::uint32_t space, std::size_t block_bytes, nb::handle hashes, nb::handle blocks, nb::handle rows,
             double deadline, nb::handle tokens, nb::handle extras, std::uint8_t reuse, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    // Borrowed, not copied: an engine must not write to these blocks until the call has ended, just as in C.
    state.read_from(blocks_from(blocks, rows, state.hashes.size(), block_bytes, /*is_written=*/false, call.holds()));
    take_tokens(state, tokens, extras);
    PutOptions options{};
    options.deadline = deadline_of(deadline);
    options.token_ids = state.token_ids;
    options.extras = state.extras;
    options.reuse = static_cast<ReuseHint>(reuse);
    options.control = state.control();
    start<PutResult>(
        call, [=, &state](Client& client) { return client.put(Space{space}, state.hashes, state.sources, options); });
    return call;
  }

  PyCall match_set(std::uint32_t set, nb::handle hashes, nb::handle groups, double deadline, bool lease, bool prefetch,
                   std::uint8_t reuse, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    SetMatchOptions options{};
    options.group_counts = take_groups(state, groups);
    options.deadline = deadline_of(deadline);
    options.control = state.control();
    options.lease = lease;
    options.prefetch = prefetch;
    options.reuse = static_cast<ReuseHint>(reuse);
    start<SetMatchResult>(call,
                          [=, &state](Client& client) { return client.match_set(Space{set}, state.hashes, options); });
    return call;
  }
  PyCall get_set(std::uint32_t set, nb::handle hashes, nb::handle groups, nb::handle blocks, nb::handle rows,
                 double deadline, std::uint64_t lease, bool memory_only, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    state.blocks = sized_blocks_from(blocks, rows, state.hashes.size(), /*is_written=*/true, call.holds());
    SetGetOptions options{};
    options.group_counts = take_groups(state, groups);
    options.deadline = deadline_of(deadline);
    options.control = state.control();
    options.lease = Lease{lease};
    options.memory_only = memory_only;
    start<SetGetResult>(
        call, [=, &state](Client& client) { return client.get_set(Space{set}, state.hashes, state.blocks, options); });
    return call;
  }
  PyCall put_set(std::uint32_t set, nb::handle hashes, nb::handle groups, nb::handle blocks, nb::handle rows,
                 double deadline, std::uint8_t reuse, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    state.read_from(sized_blocks_from(blocks, rows, state.hashes.size(), /*is_written=*/false, call.holds()));
    SetPutOptions options{};
    options.group_counts = take_groups(state, groups);
    options.deadline = deadline_of(deadline);
    options.reuse = static_cast<ReuseHint>(reuse);
    options.control = state.control();
    start<SetPutResult>(
        call, [=, &state](Client& client) { return client.put_set(Space{set}, state.hashes, state.sources, options); });
    return call;
  }

  using CountVerb = Async<std::size_t> (Client::*)(Space, std::span<const BlockHash>, microseconds, CallControl);
  template <CountVerb verb>
  PyCall count(std::uint32_t space, nb::handle hashes, double deadline, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    start<std::size_t>(call, [=, &state, time = deadline_of(deadline)](Client& client) {
      return (client.*verb)(Space{space}, state.hashes, time, state.control());
    });
    return call;
  }
  PyCall drop(std::uint32_t space, nb::handle hashes, double deadline, bool at_once) {
    PyCall call = begin(hashes, at_once);
    Call& state = *call.state;
    start<DropResult>(call, [=, &state, time = deadline_of(deadline)](Client& client) {
      return client.drop(Space{space}, state.hashes, time, state.control());
    });
    return call;
  }

  PyCall create_context(std::uint32_t space, nb::handle hashes, std::string name, double ttl, bool sliding,
                        double until, std::vector<std::string> tags, std::uint8_t priority, double deadline) {
    PyCall call = begin(hashes, /*at_once=*/false);
    Call& state = *call.state;
    state.name = std::move(name);
    state.tags = std::move(tags);
    const ContextTime life = context_time(ttl, sliding, until);
    start<NamedContext>(call, [=, &state, time = deadline_of(deadline)](Client& client) {
      const ContextOptions options{.deadline = time,
                                   .name = state.name,
                                   .life = life,
                                   .tags = state.tags,
                                   .priority = priority,
                                   .control = state.control()};
      return client.create_context(Space{space}, state.hashes, options);
    });
    return call;
  }
  PyCall extend_context(std::string name, double ttl, bool sliding, double until, std::optional<std::uint8_t> priority,
                        double deadline) {
    PyCall call = begin();
    Call& state = *call.state;
    state.name = std::move(name);
    const ContextTime life = context_time(ttl, sliding, until);
    start<NamedContext>(call, [=, &state, time = deadline_of(deadline)](Client& client) {
      return client.extend_context(state.name, life, time, state.control(), priority);
    });
    return call;
  }
  /// delete, warm and stop_warming: calls `verb` for the context.
  template <Async<NamedContext> (Client::*verb)(std::string_view, microseconds, CallControl)>
  PyCall of_context(std::string name, double deadline) {
    PyCall call = begin();
    Call& state = *call.state;
    state.name = std::move(name);
    start<NamedContext>(call, [&state, time = deadline_of(deadline)](Client& client) {
      return (client.*verb)(state.name, time, state.control());
    });
    return call;
  }
  PyCall list_contexts(std::string name, double deadline) {
    PyCall call = begin();
    Call& state = *call.state;
    state.name = std::move(name);
    start<ContextList>(call, [&state, time = deadline_of(deadline)](Client& client) {
      return client.list_contexts(state.name, time, state.control());
    });
    return call;
  }

  /// Uses a client of its own: it may take minutes, and must not delay other calls or closing.
  ArchivedContext export_context(const std::string& name, const std::string& file, bool partial, bool replaces,
                                 const std::string& key_file, double deadline) {
    ContextExportOptions options{.deadline = deadline_of(deadline)};
    options.is_partial = partial;
    options.replaces = replaces;
    options.key_file = key_file;
    return with_files(options, [&](BlockingClient& client) { return client.export_context(name, file, options); });
  }
  ArchivedContext import_context(const std::string& file, const std::string& name, double ttl, bool sliding,
                                 double until, std::optional<std::uint8_t> priority, const std::string& key_file,
                                 double deadline) {
    ContextImportOptions options{.deadline = deadline_of(deadline)};
    options.name = name;
    if (ttl > 0 || until > 0) options.life = context_time(ttl, sliding, until);
    options.priority = priority;
    options.key_file = key_file;
    return with_files(options, [&](BlockingClient& client) { return client.import_context(file, options); });
  }

  /// Never waits: the caller does not need the answer.
  void release(std::uint64_t lease) {
    PyCall call = begin();
    run(call, [lease](Client& client) -> std::pair<error_code, Outcome> {
      client.release(Lease{lease});
      return {};
    });
  }

  PyCall stats(double deadline) {
    PyCall call = begin();
    start<std::vector<NodeStats>>(call, [state = call.state, time = deadline_of(deadline)](Client& client) {
      return client.stats(time, state->control());
    });
    return call;
  }
  PyCall ping(double deadline) {
    PyCall call = begin();
    start<std::vector<std::chrono::nanoseconds>>(call,
                                                 [state = call.state, time = deadline_of(deadline)](Client& client) {
                                                   return client.ping(time, state->control());
                                                 });
    return call;
  }
  PyCall nodes() {
    PyCall call = begin();
    run(call, [](Client& client) -> std::pair<error_code, Outcome> { return {{}, client.nodes()}; });
    return call;
  }
  PyCall metrics_text() {
    PyCall call = begin();
    run(call, [](Client& client) -> std::pair<error_code, Outcome> { return {{}, client.metrics_text()}; });
    return call;
  }
  PyCall numa() {
    PyCall call = begin();
    run(call, [](Client& client) -> std::pair<error_code, Outcome> { return {{}, client.numa()}; });
    return call;
  }
  void tell_prefill_speed(double tokens_per_second) {
    PyCall call = begin();
    run(call, [tokens_per_second](Client& client) -> std::pair<error_code, Outcome> {
      client.tell_prefill_speed(tokens_per_second);
      return {};
    });
  }

  /// The caller owns the result. Ctrl-C ends the wait at once; the unfinished memory is then freed by itself.
  Memory* allocate(std::size_t bytes, bool page_locked) {
    check_open();
    if (io_->is_forked()) throw failure_of(Errc::kForked);
    const auto module = page_locked ? cuda() : nullptr;  // first: an error here spares touching the memory
    const auto allocation = Allocation::begin(io_, bytes);
    try {
      wait_in_steps(*io_, -1, [&](auto time) { return allocation->call().wait(time); });
    } catch (...) {
      const WithoutGil without_gil;
      allocation->abandon();
      throw;
    }
    check(*io_, allocation->call().error());
    check_open();  // otherwise the client was closed meanwhile, and the memory went with it
    auto lent = allocation->memory();
    // Swept here, not when memory is freed: memory that outlives this client never refers to it.
    std::erase_if(memory_, [](const auto& each) { return each.expired(); });
    memory_.push_back(lent);
    auto made = std::make_unique<Memory>(std::move(lent));
    if (module) made->lock_pages(module);
    return made.release();
  }

  PyCall lend(const Memory& memory, double deadline) {
    PyCall call = begin();
    // A region is lent over the sessions of the client that made it, and counts against its limit.
    if (memory.io() != io_) throw bad_request("memory: another client's");
    start<std::size_t>(call, [state = call.state, bytes = memory.bytes(), time = deadline_of(deadline)](
                                 Client& client) { return lend_in_time(client, bytes, time, state->control()); });
    return call;
  }
  bool is_quarantined(const Memory& memory) {
    PyCall call = begin();
    run(call, [bytes = memory.bytes()](Client& client) -> std::pair<error_code, Outcome> {
      return {{}, client.is_quarantined(bytes)};
    });
    return nb::cast<bool>(call.result(-1));
  }

 private:
  /// Runs without the GIL. Checks for signals between two batches.
  template <class Options, class Work>
  ArchivedContext with_files(Options& options, Work work) {
    check_open();
    const bool looks_for_signals = is_main_thread();
    bool is_signalled = false;
    auto next = std::chrono::steady_clock::now() + kSignalInterval;
    options.go_on = [&](const ArchiveProgress&) {
      if (!looks_for_signals || std::chrono::steady_clock::now() < next) return true;
      next = std::chrono::steady_clock::now() + kSignalInterval;
      const nb::gil_scoped_acquire gil;
      is_signalled = PyErr_CheckSignals() != 0;
      return !is_signalled;
    };
    std::optional<Result<ArchivedContext, Failure>> done;
    {
      const WithoutGil without_gil;
      BlockingClient client(config_);
      done.emplace(work(client));
    }
    if (is_signalled) throw nb::python_error();
    if (!*done) throw StatusError{status_of(done->error().code), done->error().text};
    return **done;
  }

  /// As in IoClient, with the GIL held since the check: Python may have closed the client while reading the arguments.
  template <class T, class Make>
  void start(PyCall& call, Make make) {
    check_open();
    io_->start<T>(call.state, std::move(make));
    call.has_started = true;
  }
  template <class Function>
  void run(PyCall& call, Function function) {
    check_open();
    io_->run(call.state, std::move(function));
    call.has_started = true;
  }
  void check_open() const {
    if (is_closed_) throw bad_request("the client is closed");
  }
  static SegmentCallback tell_segments(Call& state) {
    if (state.segment_ends.empty()) return {};
    return {[](void* context, std::size_t, std::size_t block_count) {
              // On the I/O thread, without the GIL: no Python here. Wakes a waiting thread, which reads `segments`.
              static_cast<Call*>(context)->land_segment(block_count);
            },
            &state};
  }
  static void take_tokens(Call& state, nb::handle tokens, nb::handle extras) {
    const Numbers<std::uint32_t> ids(tokens, "token_ids");
    state.token_ids.assign(ids.values().begin(), ids.values().end());
    state.extras = extras_from(extras, "extras");
  }
  static std::span<const std::uint32_t> take_groups(Call& state, nb::handle groups) {
    const Numbers<std::uint32_t> counts(groups, "groups");
    // The C++ client reads an empty list as one name per group; here None means that.
    if (!groups.is_none() && counts.values().empty() && !state.hashes.empty())
      throw bad_request("groups: 0 names in all, " + std::to_string(state.hashes.size()) + " are given");
    state.group_counts.assign(counts.values().begin(), counts.values().end());
    const std::string why = check_groups(state.hashes, state.group_counts, "groups");
    if (!why.empty()) throw bad_request(why);
    return state.group_counts;
  }

  const ClientConfig config_;
  std::shared_ptr<IoClient> io_;
  const nb::object trace_ = nb::module_::import_("kvstore._trace").attr("current");
  std::shared_ptr<Orphans> orphans_ = std::make_shared<Orphans>();
  std::vector<std::weak_ptr<LentMemory>> memory_;
  bool is_closed_ = false;
};

/// A reason is the exception object, not raised: results and errors share one set of classes.
nb::object why_object(const error_code& why, const std::string& reason = {}) {
  if (!why) return nb::none();
  const StatusError failure = failure_of(why, reason);
  return nb::module_::import_("kvstore.errors").attr("error_of")(failure.status, failure.text);
}

template <class To, class From, class Convert>
std::vector<To> each_of(const std::vector<From>& values, Convert convert) {
  std::vector<To> made;
  made.reserve(values.size());
  for (const From& value : values) made.push_back(convert(value));
  return made;
}

std::size_t element_count(nb::handle shape) {
  // A shape may be one number, as NumPy allows.
  if (PyLong_Check(shape.ptr()) != 0) return nb::cast<std::size_t>(shape);
  std::size_t count = 1;
  for (const nb::handle extent : shape) count *= nb::cast<std::size_t>(extent);
  return count;
}

}  // namespace

void bind_client(nb::module_& module) {
  nb::class_<Told<MatchResult>>(module, "MatchResult")
      .def_ro("block_count", &MatchResult::block_count)
      .def_ro("disk_block_count", &MatchResult::disk_block_count)
      .def_prop_ro(
          "disk_seconds",
          [](const Told<MatchResult>& match) { return std::chrono::duration<double>(match.disk_time).count(); })
      .def_prop_ro("why", [](const Told<MatchResult>& match) { return why_object(match.why, match.reason); })
      .def_prop_ro("lease", [](const Told<MatchResult>& match) { return static_cast<std::uint64_t>(match.lease); })
      .def_ro("partial_token_count", &MatchResult::partial_token_count)
      .def_prop_ro("partial_block", [](const Told<MatchResult>& match) {
        return nb::bytes(match.partial_block.bytes.data(), match.partial_block.bytes.size());
      });
  nb::class_<FieldDifference>(module, "FieldDifference")
      .def_ro("field", &FieldDifference::field)
      .def_ro("here", &FieldDifference::here)
      .def_ro("there", &FieldDifference::there);
  nb::class_<MissReport::Other>(module, "OtherNamespace")
      .def_prop_ro("namespace_id", [](const MissReport::Other& other) { return to_hex(other.id.bytes); })
      .def_ro("has_block", &MissReport::Other::has_block)
      .def_ro("block_count", &MissReport::Other::block_count)
      .def_ro("stored_blocks", &MissReport::Other::stored_blocks)
      .def_ro("lookups", &MissReport::Other::lookups)
      .def_ro("empty_lookups", &MissReport::Other::empty_lookups)
      .def_ro("differs", &MissReport::Other::differs);
  const auto in_seconds = [](std::chrono::microseconds time) { return std::chrono::duration<double>(time).count(); };
  nb::class_<NamedContext>(module, "NamedContext")
      .def_ro("name", &NamedContext::name)
      .def_ro("tags", &NamedContext::tags)
      .def_ro("namespace_id", &NamedContext::namespace_id)
      .def_ro("model", &NamedContext::model)
      .def_ro("block_size", &NamedContext::block_size)
      .def_ro("wanted_blocks", &NamedContext::wanted_blocks)
      .def_ro("kept_blocks", &NamedContext::kept_blocks)
      .def_ro("kept_bytes", &NamedContext::kept_bytes)
      .def_prop_ro("why", [](const NamedContext& context) { return why_object(context.why); })
      .def_ro("lost_blocks", &NamedContext::lost_blocks)
      .def_ro("yielded_blocks", &NamedContext::yielded_blocks)
      .def_ro("priority", &NamedContext::priority)
      .def_ro("is_sliding", &NamedContext::is_sliding)
      .def_prop_ro("ttl", [=](const NamedContext& context) { return in_seconds(context.ttl); })
      .def_prop_ro("created", [=](const NamedContext& context) { return in_seconds(context.created); })
      .def_prop_ro("expires", [=](const NamedContext& context) { return in_seconds(context.expires); })
      .def_prop_ro("used",
                   [=](const NamedContext& context) {
                     return context.used.count() == 0 ? nb::object(nb::none()) : nb::cast(in_seconds(context.used));
                   })
      .def_ro("written_tokens", &NamedContext::written_tokens)
      .def_ro("read_tokens", &NamedContext::read_tokens)
      .def_ro("stored_token_seconds", &NamedContext::stored_token_seconds)
      .def_ro("is_warming", &NamedContext::is_warming)
      .def_ro("memory_blocks", &NamedContext::memory_blocks)
      .def_ro("disk_blocks", &NamedContext::disk_blocks);
  nb::class_<ArchivedContext>(module, "ArchivedContext")
      .def_ro("name", &ArchivedContext::name)
      .def_ro("namespace_id", &ArchivedContext::namespace_id)
      .def_ro("blocks", &ArchivedContext::blocks)
      .def_ro("wanted_blocks", &ArchivedContext::wanted_blocks)
      .def_ro("bytes", &ArchivedContext::bytes)
      .def_ro("is_signed", &ArchivedContext::is_signed)
      .def_ro("stored_blocks", &ArchivedContext::stored_blocks)
      .def_ro("context", &ArchivedContext::context);
  nb::class_<ContextList>(module, "ContextList")
      .def_ro("contexts", &ContextList::contexts)
      .def_prop_ro("silent", [](const ContextList& list) {
        nb::dict silent;
        for (const auto& [node, why] : list.silent) silent[nb::cast(node)] = why_object(why);
        return silent;
      });
  nb::class_<Told<MissReport>>(module, "MissReport")
      .def_ro("block_count", &MissReport::block_count)
      .def_ro("disk_block_count", &MissReport::disk_block_count)
      .def_ro("is_whole", &MissReport::is_whole)
      .def_prop_ro("reason", [](const Told<MissReport>& report) { return std::string(miss_kind_name(report.kind)); })
      .def_prop_ro("why", [](const Told<MissReport>& report) { return why_object(report.why, report.reason); })
      .def_ro("node", &MissReport::node)
      .def_prop_ro("left_seconds", [=](const Told<MissReport>& report) { return in_seconds(report.left); })
      .def_prop_ro("idle_seconds", [=](const Told<MissReport>& report) { return in_seconds(report.idle); })
      .def_prop_ro("remembers_seconds", [=](const Told<MissReport>& report) { return in_seconds(report.remembers); })
      .def_ro("stored_blocks", &MissReport::stored_blocks)
      .def_ro("lookups", &MissReport::lookups)
      .def_ro("empty_lookups", &MissReport::empty_lookups)
      .def_ro("others", &MissReport::others)
      .def_prop_ro("text", &MissReport::text);
  nb::class_<Told<GetResult>>(module, "GetResult")
      .def_ro("block_count", &GetResult::block_count)
      .def_ro("corrupt_count", &GetResult::corrupt_count)
      .def_prop_ro("why", [](const Told<GetResult>& got) { return why_object(got.why, got.reason); });
  nb::class_<Told<LoadResult>>(module, "LoadResult")
      .def_prop_ro("found_count", [](const Told<LoadResult>& loaded) { return loaded.match.block_count; })
      .def_prop_ro("disk_block_count", [](const Told<LoadResult>& loaded) { return loaded.match.disk_block_count; })
      .def_prop_ro("block_count", [](const Told<LoadResult>& loaded) { return loaded.get.block_count; })
      .def_prop_ro("corrupt_count", [](const Told<LoadResult>& loaded) { return loaded.get.corrupt_count; })
      .def_prop_ro("why", [](const Told<LoadResult>& loaded) { return why_object(loaded.get.why, loaded.reason); });
  nb::class_<Told<PutResult>>(module, "PutResult")
      .def_ro("stored", &PutResult::stored)
      .def_ro("already_stored", &PutResult::already_stored)
      .def_ro("refused", &PutResult::refused)
      .def_prop_ro("why", [](const Told<PutResult>& put) { return why_object(put.why, put.reason); });
  nb::class_<DropResult>(module, "DropResult")
      .def_ro("block_count", &DropResult::block_count)
      .def_ro("until_restart", &DropResult::until_restart);

  nb::class_<Told<SetMatchResult>>(module, "SetMatchResult")
      .def_prop_ro("held",
                   [](const Told<SetMatchResult>& match) {
                     return numpy_of<std::uint8_t>(
                         each_of<std::uint8_t>(match.held, [](Held held) { return static_cast<std::uint8_t>(held); }));
                   })
      .def_prop_ro("block_bytes",
                   [](const Told<SetMatchResult>& match) { return numpy_of<std::uint32_t>(match.block_bytes); })
      .def_ro("held_count", &SetMatchResult::held_count)
      .def_ro("disk_count", &SetMatchResult::disk_count)
      .def_prop_ro(
          "disk_seconds",
          [](const Told<SetMatchResult>& match) { return std::chrono::duration<double>(match.disk_time).count(); })
      .def_prop_ro("why", [](const Told<SetMatchResult>& match) { return why_object(match.why, match.reason); })
      .def_prop_ro("lease", [](const Told<SetMatchResult>& match) { return static_cast<std::uint64_t>(match.lease); });
  nb::class_<Told<SetGetResult>>(module, "SetGetResult")
      .def_prop_ro(
          "landed",
          [](const Told<SetGetResult>& got) {
            return nb::object(numpy_of<std::uint8_t>(each_of<std::uint8_t>(got.blocks, [](const SetGetBlock& block) {
                                return static_cast<std::uint8_t>(block.has_landed);
                              })).attr("view")("bool"));
          })
      .def_prop_ro("block_bytes",
                   [](const Told<SetGetResult>& got) {
                     return numpy_of<std::uint64_t>(each_of<std::uint64_t>(
                         got.blocks, [](const SetGetBlock& block) { return std::uint64_t{block.block_bytes}; }));
                   })
      .def("why_of",
           [](const Told<SetGetResult>& got, std::size_t i) {
             // One at a time: exceptions for thousands of blocks would cost more than the get did, and few are read.
             if (i >= got.blocks.size()) throw nb::index_error();
             const error_code why = got.blocks[i].why;
             return why_object(why, why == got.why ? got.reason : "");
           })
      .def_ro("landed_count", &SetGetResult::landed_count)
      .def_ro("corrupt_count", &SetGetResult::corrupt_count)
      .def_prop_ro("why", [](const Told<SetGetResult>& got) { return why_object(got.why, got.reason); });
  nb::class_<Told<SetPutResult>>(module, "SetPutResult")
      .def_prop_ro("states",
                   [](const Told<SetPutResult>& put) {
                     return numpy_of<std::uint8_t>(each_of<std::uint8_t>(
                         put.blocks, [](SetPutBlock block) { return static_cast<std::uint8_t>(block); }));
                   })
      .def_ro("stored", &SetPutResult::stored)
      .def_ro("already_stored", &SetPutResult::already_stored)
      .def_ro("conflicts", &SetPutResult::conflicts)
      .def_ro("refused", &SetPutResult::refused)
      .def_prop_ro("why", [](const Told<SetPutResult>& put) { return why_object(put.why, put.reason); });

  // From here on, names without documentation: the package's Python files wrap and document each.
  nb::class_<PyQueue>(module, "ReadyQueue")
      .def(nb::init<>())
      .def("fileno", [](const PyQueue& self) { return self.queue->fd(); })
      .def("drain", [](const PyQueue& self) { return self.queue->drain(); });

  nb::class_<PyCall>(module, "Call")
      .def("done", &PyCall::has_ended)
      .def("wait", &PyCall::wait, nb::arg("seconds"))
      .def("cancel", &PyCall::cancel)
      .def("result", &PyCall::result, nb::arg("seconds"))
      .def("wait_segments", &PyCall::wait_segments, nb::arg("count"), nb::arg("seconds"))
      .def_prop_ro("segments", &PyCall::segments)
      .def("tell", &PyCall::tell, nb::arg("queue"), nb::arg("id"))
      .def("stop_telling", &PyCall::stop_telling, nb::arg("queue"));

  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots), nb::is_weak_referenceable())
      .def_prop_ro("nbytes", [](const Memory& memory) { return memory.bytes().size(); })
      .def_prop_ro("address",
                   [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.bytes().data()); })
      .def_prop_ro("is_page_locked", &Memory::is_page_locked)
      .def("__len__", [](const Memory& memory) { return memory.bytes().size(); })
      .def(
          "array",
          [](nb::object self, nb::handle shape, nb::handle dtype, std::size_t offset) {
            // frombuffer() holds a reference to this object: the memory stays mapped while any view lives.
            const nb::module_ numpy = nb::module_::import_("numpy");
            const nb::object type = numpy.attr("dtype")(dtype);
            const nb::object flat = numpy.attr("frombuffer")(
                self, nb::arg("dtype") = type, nb::arg("count") = element_count(shape), nb::arg("offset") = offset);
            return nb::object(flat.attr("reshape")(shape));
          },
          nb::arg("shape"), nb::arg("dtype") = "uint8", nb::arg("offset") = 0)
      .def(
          "tensor",
          [](nb::object self, nb::handle shape, nb::handle dtype, std::size_t offset) {
            const nb::object flat = nb::module_::import_("torch").attr("frombuffer")(
                self, nb::arg("dtype") = dtype, nb::arg("count") = element_count(shape), nb::arg("offset") = offset);
            return nb::object(flat.attr("reshape")(shape));
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("offset") = 0);

  nb::class_<PyClient>(module, "Client")
      .def(
          "__init__",
          [](PyClient* self, const std::vector<nb::object>& nodes, const std::string& identity, std::size_t connections,
             double connect_timeout, std::size_t calls_max, std::uint64_t region_bytes_max, bool rdma,
             std::vector<std::string> rdma_devices, std::size_t rdma_lanes, bool verify, double busy_poll,
             std::size_t extent_blocks, const nb::dict& tls, const nb::str& token, const std::string& token_file,
             double hedge_share, const std::string& zone, const std::string& numa_nodes, bool follow_cluster,
             std::size_t staging_bytes) {
            ClientConfig config = config_of(nodes, tls, token, token_file);
            config.follow_cluster = follow_cluster;
            config.extent_blocks = extent_blocks;
            config.hedge_share = hedge_share;
            config.zone = zone;
            config.numa_nodes = numa_nodes;
            config.staging_bytes = staging_bytes;
            config.identity = identity;
            config.connections_per_node = connections;
            config.connect_timeout = duration_of(connect_timeout);
            config.calls_max = calls_max;
            config.region_bytes_max = region_bytes_max;
            config.rdma = rdma ? ClientConfig::Rdma::kAuto : ClientConfig::Rdma::kOff;
            config.rdma_devices = std::move(rdma_devices);
            config.rdma_lanes = rdma_lanes;
            config.verify = verify;
            new (self) PyClient(std::move(config), busy_poll);
          },
          nb::kw_only(), nb::arg("nodes"), nb::arg("identity"), nb::arg("connections_per_node"),
          nb::arg("connect_timeout"), nb::arg("calls_max"), nb::arg("region_bytes_max"), nb::arg("rdma"),
          nb::arg("rdma_devices"), nb::arg("rdma_lanes"), nb::arg("verify"), nb::arg("busy_poll"),
          nb::arg("extent_blocks"), nb::arg("tls"), nb::arg("token"), nb::arg("token_file"), nb::arg("hedge_share"),
          nb::arg("zone"), nb::arg("numa_nodes"), nb::arg("follow_cluster"), nb::arg("staging_bytes"))
      .def_prop_ro("is_closed", &PyClient::is_closed)
      .def_prop_ro("is_forked", &PyClient::is_forked)
      .def("close", &PyClient::close)
      .def("open", &PyClient::open, nb::arg("record"), nb::arg("deadline"), nb::arg("waits"))
      .def("wait_open", &PyClient::wait_open, nb::arg("space"), nb::arg("deadline"))
      .def("why", &PyClient::why, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"))
      .def("match", &PyClient::match, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"), nb::arg("lease"),
           nb::arg("prefetch"), nb::arg("token_ids").none(), nb::arg("extras").none(), nb::arg("reuse"),
           nb::arg("at_once"))
      .def("get", &PyClient::get, nb::arg("space"), nb::arg("block_bytes"), nb::arg("hashes"), nb::arg("blocks"),
           nb::arg("rows").none(), nb::arg("deadline"), nb::arg("lease"), nb::arg("segment_ends"),
           nb::arg("memory_only"), nb::arg("at_once"))
      .def("load", &PyClient::load, nb::arg("space"), nb::arg("block_bytes"), nb::arg("hashes"), nb::arg("blocks"),
           nb::arg("rows").none(), nb::arg("deadline"), nb::arg("block_count_min"), nb::arg("segment_ends"),
           nb::arg("memory_only"), nb::arg("reuse"), nb::arg("at_once"))
      .def("put", &PyClient::put, nb::arg("space"), nb::arg("block_bytes"), nb::arg("hashes"), nb::arg("blocks"),
           nb::arg("rows").none(), nb::arg("deadline"), nb::arg("token_ids").none(), nb::arg("extras").none(),
           nb::arg("reuse"), nb::arg("at_once"))
      .def("match_set", &PyClient::match_set, nb::arg("set"), nb::arg("hashes"), nb::arg("groups").none(),
           nb::arg("deadline"), nb::arg("lease"), nb::arg("prefetch"), nb::arg("reuse"), nb::arg("at_once"))
      .def("get_set", &PyClient::get_set, nb::arg("set"), nb::arg("hashes"), nb::arg("groups").none(),
           nb::arg("blocks"), nb::arg("rows").none(), nb::arg("deadline"), nb::arg("lease"), nb::arg("memory_only"),
           nb::arg("at_once"))
      .def("put_set", &PyClient::put_set, nb::arg("set"), nb::arg("hashes"), nb::arg("groups").none(),
           nb::arg("blocks"), nb::arg("rows").none(), nb::arg("deadline"), nb::arg("reuse"), nb::arg("at_once"))
      .def("touch", &PyClient::count<&Client::touch>, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"),
           nb::arg("at_once"))
      .def("pin", &PyClient::count<&Client::retain>, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"),
           nb::arg("at_once"))
      .def("unpin", &PyClient::count<&Client::unretain>, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"),
           nb::arg("at_once"))
      .def("drop", &PyClient::drop, nb::arg("space"), nb::arg("hashes"), nb::arg("deadline"), nb::arg("at_once"))
      .def("create_context", &PyClient::create_context, nb::arg("space"), nb::arg("hashes"), nb::arg("name"),
           nb::arg("ttl"), nb::arg("sliding"), nb::arg("until"), nb::arg("tags"), nb::arg("priority"),
           nb::arg("deadline"))
      .def("extend_context", &PyClient::extend_context, nb::arg("name"), nb::arg("ttl"), nb::arg("sliding"),
           nb::arg("until"), nb::arg("priority").none(), nb::arg("deadline"))
      .def("delete_context", &PyClient::of_context<&Client::delete_context>, nb::arg("name"), nb::arg("deadline"))
      .def("warm_context", &PyClient::of_context<&Client::warm_context>, nb::arg("name"), nb::arg("deadline"))
      .def("stop_warming_context", &PyClient::of_context<&Client::stop_warming_context>, nb::arg("name"),
           nb::arg("deadline"))
      .def("list_contexts", &PyClient::list_contexts, nb::arg("name"), nb::arg("deadline"))
      .def("export_context", &PyClient::export_context, nb::arg("name"), nb::arg("file"), nb::arg("partial"),
           nb::arg("replaces"), nb::arg("key_file"), nb::arg("deadline"))
      .def("import_context", &PyClient::import_context, nb::arg("file"), nb::arg("name"), nb::arg("ttl"),
           nb::arg("sliding"), nb::arg("until"), nb::arg("priority").none(), nb::arg("key_file"), nb::arg("deadline"))
      .def("release", &PyClient::release, nb::arg("lease"))
      .def("stats", &PyClient::stats, nb::arg("deadline"))
      .def("ping", &PyClient::ping, nb::arg("deadline"))
      .def("nodes", &PyClient::nodes)
      .def("metrics_text", &PyClient::metrics_text)
      .def("numa", &PyClient::numa)
      .def("tell_prefill_speed", &PyClient::tell_prefill_speed, nb::arg("tokens_per_second"))
      .def("allocate", &PyClient::allocate, nb::arg("nbytes"), nb::arg("page_locked"), nb::rv_policy::take_ownership)
      .def("lend", &PyClient::lend, nb::arg("memory"), nb::arg("deadline"))
      .def("is_quarantined", &PyClient::is_quarantined, nb::arg("memory"));

  // For atexit: all C++ threads must stop before the interpreter shuts down.
  module.def("abandon_all", [] {
    const auto clients = IoClient::all();
    const WithoutGil without_gil;
    for (const auto& each : clients) each->abandon();
  });
}

}  // namespace kv::python
