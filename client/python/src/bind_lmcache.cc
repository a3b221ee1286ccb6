// LMCache's native plugin: batches of keys in, completions by an eventfd out, no Python between.
//
//   {"type": "native_plugin", "module_path": "kvstore.lmcache", "class_name": "Connector",
//    "adapter_params": {"endpoints": "unix:///run/kvstore/kvstore.sock", "weights_epoch": 1}}
//
// A key becomes a block of a set, named by the key's SHA-256. A batch is one call: one round trip to each node.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/assert.h"
#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/calls/client_config.h"
#include "client/python/src/errors.h"
#include "client/python/src/io_client.h"
#include "client/python/src/without_gil.h"

namespace kv::python {
namespace {

/// Python can run wherever this class touches a Python object: reading or releasing memory, growing a list. It may call
/// any function of the same connector again, from the same thread or another.
///   1. A batch being reported or destroyed has left all members.
///   2. Each batch is reported once. If an exception interrupts that, the next drain() reports it.
///   3. close() ends all batches: those in flight are reported as failed, and release their memory at once.
class LmcacheConnector {
 public:
  LmcacheConnector(ClientConfig config, const NamespaceRecord& record, double deadline) {
    if (!(deadline > 0 && deadline < 86400)) throw bad_request("deadline: not in (0, 86400) seconds");
    deadline_ = std::chrono::microseconds(static_cast<std::int64_t>(deadline * 1e6));
    try {
      io_ = IoClient::make(std::move(config), std::chrono::microseconds(0));
    } catch (const std::invalid_argument& error) {
      throw bad_request(error.what());
    }
    // Does not wait for a node: an engine starts while the store is away, and its lookups miss.
    const auto call = std::make_shared<Call>();
    try {
      io_->start<Space>(call, [record](Client& client) { return client.open(record, std::chrono::microseconds(0)); });
    } catch (...) {  // out of memory; the destructor would not run
      io_->close();
      throw;
    }
    {
      const WithoutGil without_gil;
      while (!call->wait(std::chrono::seconds(1))) {
      }
    }
    if (call->error()) {
      io_->close();
      throw failure_of(call->error());
    }
    set_ = std::get<Space>(call->outcome());
  }
  LmcacheConnector(const LmcacheConnector&) = delete;
  LmcacheConnector& operator=(const LmcacheConnector&) = delete;
  ~LmcacheConnector() { close(); }

  int event_fd() const { return queue_->fd(); }

  std::uint64_t submit_get(const std::vector<std::string>& keys, const nb::list& views) {
    Pending pending = prepare(Operation::kGet, keys);
    Call& state = *pending.call;
    state.blocks = sized_blocks_from(views, nb::none(), keys.size(), /*is_written=*/true, pending.holds);
    SetGetOptions options{};
    options.deadline = deadline_;
    options.control = state.control();
    return launch<SetGetResult>(std::move(pending), [set = set_, &state, options](Client& client) {
      return client.get_set(set, state.hashes, state.blocks, options);
    });
  }
  std::uint64_t submit_set(const std::vector<std::string>& keys, const nb::list& views) {
    Pending pending = prepare(Operation::kSet, keys);
    Call& state = *pending.call;
    state.read_from(sized_blocks_from(views, nb::none(), keys.size(), /*is_written=*/false, pending.holds));
    SetPutOptions options{};
    options.deadline = deadline_;
    options.control = state.control();
    return launch<SetPutResult>(std::move(pending), [set = set_, &state, options](Client& client) {
      return client.put_set(set, state.hashes, state.sources, options);
    });
  }
  std::uint64_t submit_exists(const std::vector<std::string>& keys) {
    Pending pending = prepare(Operation::kExists, keys);
    Call& state = *pending.call;
    SetMatchOptions options{};
    options.deadline = deadline_;
    options.control = state.control();
    return launch<SetMatchResult>(std::move(pending), [set = set_, &state, options](Client& client) {
      return client.match_set(set, state.hashes, options);
    });
  }
  std::uint64_t submit_delete(const std::vector<std::string>& keys) {
    Pending pending = prepare(Operation::kDelete, keys);
    Call& state = *pending.call;
    return launch<DropResult>(std::move(pending), [set = set_, &state, deadline = deadline_](Client& client) {
      return client.drop(set, state.hashes, deadline, state.control());
    });
  }

  /// [(id, success, error text, a flag for each key)] of the ended batches.
  nb::list drain() {
    check_process();
    for (const std::uint64_t id : queue_->drain()) note_ended(id);
    nb::list completions;
    Batches told = std::exchange(ended_, {});  // 1
    try {
      for (const auto& [id, batch] : told) completions.append(completion(id, batch));
    } catch (...) {
      ended_.merge(told);  // 2
      queue_->expect();
      queue_->push(0);
      throw;
    }
    return completions;
  }

  void close() {
    if (!io_ || is_closed_) return;
    is_closed_ = true;
    run_without_gil([&] { io_->close(); });  // cancels the calls in flight
    if (io_->is_forked()) return;
    std::vector<Holds> memory;
    memory.reserve(pending_.size());
    Batches left = std::exchange(pending_, {});
    for (auto& [id, batch] : left) memory.push_back(std::move(batch.holds));
    ended_.merge(left);  // 3
  }

 private:
  enum class Operation { kGet, kSet, kExists, kDelete };
  struct Pending {
    Operation operation;
    CallPtr call = std::make_shared<Call>();
    Holds holds = {};
  };
  using Batches = std::map<std::uint64_t, Pending>;

  void note_ended(std::uint64_t id) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;  // reported by close(), or id 0: a wake-up
    KV_ASSERT(found->second.call->is_done());
    ended_.insert(pending_.extract(found));
  }

  void check_process() const {
    if (io_->is_forked()) throw failure_of(Errc::kForked);
  }
  Pending prepare(Operation operation, const std::vector<std::string>& keys) const {
    check_process();
    if (is_closed_) throw bad_request("the connector is closed");
    if (keys.empty()) throw bad_request("keys: none");
    Pending pending{operation};
    pending.call->hashes.reserve(keys.size());
    for (const std::string& key : keys) {
      pending.call->hashes.push_back(sha256(std::as_bytes(std::span<const char>(key.data(), key.size()))));
    }
    return pending;
  }
  template <class T, class Make>
  std::uint64_t launch(Pending pending, Make make) {
    const std::uint64_t id = ++last_;
    const CallPtr call = pending.call;
    if (is_closed_) throw bad_request("the connector is closed");  // by Python code that ran meanwhile
    KV_ASSERT(call->tell(queue_, id));                             // before the start, so that its end is not missed
    const auto entry = pending_.emplace(id, std::move(pending)).first;
    try {
      io_->start<T>(call, std::move(make));
    } catch (...) {  // out of memory: it has not begun, and its id is unused
      const auto refused = pending_.extract(entry);
      throw;
    }
    return id;
  }

  static nb::object completion(std::uint64_t id, const Pending& pending) {
    const Call& call = *pending.call;
    const std::size_t count = call.hashes.size();
    std::vector<bool> flags(count, false);
    // A batch abandoned with the process has no answer.
    const error_code failed = call.is_done() ? call.error() : error_code(Errc::kCancelled);
    error_code error = failed;
    std::string text;
    if (!error && pending.operation == Operation::kGet) {
      const auto& got = std::get<SetGetResult>(call.outcome());
      for (std::size_t i = 0; i < count; ++i) {
        flags[i] = got.blocks[i].has_landed && got.blocks[i].block_bytes == call.blocks[i].size();
      }
      error = got.why;
    } else if (!error && pending.operation == Operation::kSet) {
      const auto& put = std::get<SetPutResult>(call.outcome());
      for (std::size_t i = 0; i < count; ++i) {
        flags[i] = put.blocks[i] == SetPutBlock::kStored || put.blocks[i] == SetPutBlock::kAlreadyStored;
      }
      error = put.why;
      if (!error && put.conflicts > 0) text = "a key is stored with other bytes";
    } else if (!error && pending.operation == Operation::kExists) {
      const auto& match = std::get<SetMatchResult>(call.outcome());
      for (std::size_t i = 0; i < count; ++i) flags[i] = match.held[i] != Held::kNowhere;
      error = match.why;
    } else if (!error) {
      flags.assign(count, true);
    }
    if (error) text = failure_of(error).text;
    // A missing block does not fail a lookup or a load. A partly stored batch is a failed store.
    const bool is_store = pending.operation == Operation::kSet;
    const bool is_good =
        !failed && error != Errc::kCancelled && (!is_store || std::ranges::find(flags, false) == flags.end());
    nb::list bools;
    for (const bool flag : flags) bools.append(flag);
    return nb::make_tuple(id, is_good, text, bools);
  }

  std::shared_ptr<IoClient> io_;
  std::shared_ptr<ReadyQueue> queue_ = std::make_shared<ReadyQueue>();
  Space set_{};
  std::chrono::microseconds deadline_{};
  Batches pending_, ended_;  ///< Under way; ended but not yet reported.
  std::uint64_t last_ = 0;
  bool is_closed_ = false;
};

}  // namespace

void bind_lmcache(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<LmcacheConnector>(module, "LmcacheConnector")
      .def(
          "__init__",
          [](LmcacheConnector* self, const NamespaceRecord& record, double deadline, std::size_t connections,
             std::size_t staging_bytes, const std::vector<nb::object>& nodes, const nb::dict& tls, const nb::str& token,
             const std::string& token_file) {
            ClientConfig config = config_of(nodes, tls, token, token_file);
            config.identity = "lmcache";
            config.connections_per_node = connections;
            config.staging_bytes = staging_bytes;
            new (self) LmcacheConnector(std::move(config), record, deadline);
          },
          "record"_a, "deadline"_a, "connections"_a, "staging_bytes"_a, nb::kw_only(), "nodes"_a, "tls"_a, "token"_a,
          "token_file"_a)
      .def("event_fd", &LmcacheConnector::event_fd)
      .def("submit_batch_get", &LmcacheConnector::submit_get, "keys"_a, "memoryviews"_a)
      .def("submit_batch_set", &LmcacheConnector::submit_set, "keys"_a, "memoryviews"_a)
      .def("submit_batch_exists", &LmcacheConnector::submit_exists, "keys"_a)
      .def("submit_batch_delete", &LmcacheConnector::submit_delete, "keys"_a)
      .def("drain_completions", &LmcacheConnector::drain)
      .def("close", &LmcacheConnector::close);
}

}  // namespace kv::python
