// client/tools/tool_client.h: a Client on the calling thread, for every tool. The folder holds the two programs for
// people, which use the client library as a worker does. Shared files, in reading order:
//
//   options.h             sizes and durations as people write them
//   text_table.h          tables for people; numbers, sizes and times as text
//   json_text.h           documents for scripts
//   progress_line.h       one line that is rewritten, while a person waits
//   latency_histogram.h   durations of calls
//   tool_client.h         a client on the calling thread, and the options that name nodes
//   node_stats.h          what nodes say about themselves
//
// The subfolders:
//   ctl/     ctl.h      kvstorectl: inspects nodes and changes the blocks they keep
//   bench/   bench.cc   kvstore-bench: speed of a node, with every byte checked
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/busy_poll.h"
#include "client/client.h"

namespace CLI {
class App;
}

namespace kv {

/// kTcp, kTls, kUnix: in the socket. kShm: copied by the node into lent memory. kVerbs: RDMA into registered memory.
enum class Transport { kTcp, kTls, kUnix, kShm, kVerbs };
const char* transport_name(Transport transport);

/// A client's configuration as a command line gives it. A tool's own threads keep to numa_nodes too.
struct ConnectionOptions : ClientConfig {
  std::vector<std::string> endpoints;       ///< At least one after complete().
  std::string transport;                    ///< "tcp", "tls", "unix", "shm", "verbs"; empty: by the endpoints.
  std::chrono::microseconds deadline = 5s;  ///< Of each call.
};

/// --endpoint (environment KVSTORE_ENDPOINTS), --extent-blocks, --hedge-share, --zone (KVSTORE_ZONE), --deadline,
/// --tls-... (KVSTORE_TLS_...) and --token-file (KVSTORE_TOKEN_FILE); with `with_transport` also --transport
/// and --numa-nodes.
void add_node_options(CLI::App& app, ConnectionOptions& options, bool with_transport);
/// Fills in defaults and checks that the options fit together. Throws CLI::ValidationError.
Transport complete(ConnectionOptions& options);
ClientConfig client_config(const ConnectionOptions& options, std::string identity);
/// KVSTORE_TOKEN, unless a token file was named. Not a flag, since others on the machine see flags.
const char* token_of_environment(const ConnectionOptions& options);

/// An error as a part of a sentence. A missed deadline is named as that: "Connection timed out" would mislead.
std::string describe(const error_code& error);
/// The result of a call. Throws std::runtime_error if there is none, with the reason behind `about`.
template <class T>
T answer_of(Result<T> result, const std::string& about = "") {
  if (!result) throw std::runtime_error((about.empty() ? "" : about + ": ") + describe(result.error()));
  return *std::move(result);
}

/// Asks each node once after a measurement, since a dead node invalidates the numbers. Throws std::runtime_error with
/// the name and the reason of nodes that do not answer within the deadline.
void check_all_answer(const ConnectionOptions& options);

/// Owns an io_context and a Client on it. Calls run on the calling thread, so that latencies exclude thread hops; a
/// back-off or a reconnect waits for the next call. From its construction on the thread keeps to the processors of
/// ClientConfig::numa_nodes. Thread safety: none; made, used and destroyed on one thread.
class ToolClient {
 public:
  /// With `busy_poll` > 0 the thread polls for events, and sleeps after that long without one.
  explicit ToolClient(ClientConfig config, Duration busy_poll = Duration(0));
  ~ToolClient();

  Client* operator->() { return client_.get(); }
  Client& operator*() { return *client_; }

  /// Returns once a node has opened the namespace, and fails if all are away, unlike a worker's open().
  Result<Space> open(const NamespaceRecord& record, std::chrono::microseconds deadline);

  /// Runs one call to its end.
  template <class T>
  Result<T> run(Async<T> call);
  /// Runs coroutines side by side to their ends. Rethrows the first exception.
  void run_all(std::vector<asio::awaitable<void>> tasks);

 private:
  void run_until_zero(const std::size_t& running);

  const std::thread::id thread_ = std::this_thread::get_id();
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  BusyPoll busy_poll_;
  std::unique_ptr<Client> client_;
};

template <class T>
Result<T> ToolClient::run(Async<T> call) {
  std::optional<Result<T>> result;
  std::exception_ptr failure;
  std::size_t running = 1;
  asio::co_spawn(context_, std::move(call), [&](std::exception_ptr thrown, Result<T> value) {
    failure = thrown;
    result.emplace(std::move(value));
    running = 0;
  });
  run_until_zero(running);
  if (failure) std::rethrow_exception(failure);
  return *std::move(result);
}

}  // namespace kv
