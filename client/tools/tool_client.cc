#include "client/tools/tool_client.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdlib>

#include "base/assert.h"
#include "client/cluster/cluster_map.h"
#include "client/tools/options.h"

namespace kv {
namespace {

constexpr const char* kDefaultUnix = "unix:///run/kvstore/kvstore.sock";
constexpr const char* kDefaultTcp = "tcp://127.0.0.1:7400";

bool is_unix(const std::string& endpoint) { return endpoint.starts_with("unix://"); }
bool is_tls(const std::string& endpoint) { return endpoint.starts_with("tls://"); }
bool needs_unix(const std::string& transport) { return transport == "unix" || transport == "shm"; }

bool default_socket_exists() {
  struct stat status {};
  return ::stat(kDefaultUnix + 7, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

const char* transport_name(Transport transport) {
  switch (transport) {
    case Transport::kTcp: return "tcp";
    case Transport::kTls: return "tls";
    case Transport::kUnix: return "unix";
    case Transport::kShm: return "shm";
    case Transport::kVerbs: return "verbs";
  }
  return "?";
}

void add_node_options(CLI::App& app, ConnectionOptions& options, bool with_transport) {
  app.add_option("-e,--endpoint", options.endpoints,
                 "A node: tcp://HOST:PORT, tls://HOST:PORT or unix://PATH; repeat or separate by commas for several. "
                 "Default: " +
                     std::string(kDefaultUnix) + " if it is there, else " + kDefaultTcp)
      ->delimiter(',')
      ->allow_extra_args(false)  // a word behind the URL belongs to the command
      ->envname("KVSTORE_ENDPOINTS")
      ->type_name("URL");
  app.add_option(
         "--extent-blocks", options.extent_blocks,
         "One block of a chain in so many begins an extent, which lies on one node. Equal on all clients of a list")
      ->check(CLI::Range(std::size_t{1}, ClusterMap::kExtentBlocksLimit))
      ->capture_default_str();
  app.add_option("--hedge-share", options.hedge_share,
                 "With several nodes: at most this share of reads is asked of a second node as well, where "
                 "the first is late; 0: none is")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--zone", options.zone,
                 "Where this program is: of nodes that have the same, those of this zone are asked. Default: any")
      ->envname("KVSTORE_ZONE")
      ->type_name("NAME");
  add_duration_option(app, "--deadline", options.deadline, "Deadline of each call");
  const auto add_tls = [&](const char* name, const char* variable, std::string& to, const char* about) {
    app.add_option(name, to, about)->envname(variable)->group("TLS, for tls:// endpoints");
  };
  add_tls("--tls-cert", "KVSTORE_TLS_CERT", options.tls.cert_file, "PEM file of this program's certificate");
  add_tls("--tls-key", "KVSTORE_TLS_KEY", options.tls.key_file, "PEM file of its key");
  add_tls("--tls-ca", "KVSTORE_TLS_CA", options.tls.ca_file, "PEM file of who signed the nodes' certificates");
  add_tls("--tls-crl", "KVSTORE_TLS_CRL", options.tls.crl_file, "PEM file of revoked certificates");
  add_tls("--tls-server-name", "KVSTORE_TLS_SERVER_NAME", options.tls.server_name,
          "Whom nodes must prove to be: a DNS name, address or URI (default: the endpoint's host)");
  app.add_option("--tls-names", options.tls.node_names,
                 "With a token: names that nodes' certificates may have of which only a cluster's map tells, such as "
                 "*.kvstore.example.org, with commas between; beside the hosts of the endpoints that are given")
      ->delimiter(',')
      ->envname("KVSTORE_TLS_NAMES")
      ->type_name("NAME")
      ->group("TLS, for tls:// endpoints");
  app.add_option("--token-file", options.token_file,
                 "File with a token by which the nodes' policy knows this program; KVSTORE_TOKEN has the token itself")
      ->envname("KVSTORE_TOKEN_FILE")
      ->type_name("FILE");
  if (with_transport) {
    app.add_option(
           "--transport", options.transport,
           "tcp, tls or unix: bytes in the socket; shm: the node copies into memory lent to it over the Unix socket; "
           "verbs: RDMA, set up over TCP or TLS. Default: shm for a Unix endpoint, tls for a tls:// one, else tcp")
        ->check(CLI::IsMember({"tcp", "tls", "unix", "shm", "verbs"}))
        ->type_name("NAME");
    app.add_option(
           "--rdma-device", options.rdma_devices,
           "With verbs: a device to use, such as mlx5_0, or mlx5_0@10.0.0.1; may be repeated. Default: the nearest")
        ->type_name("NAME");
    app.add_option("--rdma-lanes", options.rdma_lanes,
                   "With verbs: queue pairs of one connection. Default: one for each device")
        ->check(CLI::Range(0, 32));
    app.add_option("--rdma-messages", options.rdma_messages,
                   "With verbs: small requests of one connection on their way by SEND; 0: they go through the socket")
        ->check(CLI::Range(0, 64));
    app.add_option(
           "--numa-nodes", options.numa_nodes,
           "Memory and threads of this program on these NUMA nodes, such as 1 or 0-1, or where a PCI device is, "
           "such as pci:0000:3b:00.0. Default: anywhere")
        ->type_name("NODES");
  }
}

/// The default is this machine's node: its socket if there is one, since shared memory is faster, else its TCP port. A
/// transport that does not fit an endpoint is refused here; the client would only be slow.
Transport complete(ConnectionOptions& options) {
  if (options.endpoints.empty()) {
    const bool want_unix = options.transport.empty() ? default_socket_exists() : needs_unix(options.transport);
    options.endpoints.push_back(want_unix ? kDefaultUnix : kDefaultTcp);
  }
  for (const std::string& endpoint : options.endpoints) {
    const auto parsed = parse_endpoint(endpoint);
    if (!parsed) throw CLI::ValidationError("--endpoint", parsed.error().text);
    const bool fits =
        options.transport.empty() ||
        (is_unix(endpoint) == needs_unix(options.transport) &&
         (options.transport == "verbs" || is_unix(endpoint) || is_tls(endpoint) == (options.transport == "tls")));
    if (!fits) {
      throw CLI::ValidationError("--transport", options.transport + " does not go with the endpoint " + endpoint +
                                                    "; tcp needs tcp://, tls needs tls://, verbs one of the two, unix "
                                                    "and shm need unix://");
    }
  }
  if (options.deadline <= std::chrono::microseconds(0)) throw CLI::ValidationError("--deadline", "must be more than 0");
  for (const Transport each :
       {Transport::kTcp, Transport::kTls, Transport::kUnix, Transport::kShm, Transport::kVerbs}) {
    if (options.transport == transport_name(each)) return each;
  }
  const bool all_unix = std::all_of(options.endpoints.begin(), options.endpoints.end(), is_unix);
  const bool all_tls = std::all_of(options.endpoints.begin(), options.endpoints.end(), is_tls);
  return all_unix ? Transport::kShm : all_tls ? Transport::kTls : Transport::kTcp;
}

const char* token_of_environment(const ConnectionOptions& options) {
  const char* const token = options.token_file.empty() ? std::getenv("KVSTORE_TOKEN") : nullptr;
  return token == nullptr || *token == '\0' ? nullptr : token;
}

ClientConfig client_config(const ConnectionOptions& options, std::string identity) {
  ClientConfig config = options;
  for (const std::string& endpoint : options.endpoints) config.nodes.push_back({.endpoint = endpoint});
  if (const char* const token = token_of_environment(options)) config.token = Secret(token);
  config.identity = std::move(identity);
  config.rdma = options.transport == "verbs" ? ClientConfig::Rdma::kAuto : ClientConfig::Rdma::kOff;
  return config;
}

std::string describe(const error_code& error) {
  if (!error) return "none";
  if (error == asio::error::timed_out) return "the deadline passed";
  return error.message();
}

ToolClient::ToolClient(ClientConfig config, Duration busy_poll)
    : busy_poll_(context_, busy_poll), client_(std::make_unique<Client>(context_.get_executor(), std::move(config))) {
  // The client leaves its caller's threads alone; this one is the tool's. Before this thread touches memory of its own.
  const NumaChoice& numa = client_->numa_place().choice;
  if (!numa.processors.empty()) static_cast<void>(keep_to_processors(numa.processors));
}

void check_all_answer(const ConnectionOptions& options) {
  ToolClient client(client_config(options, "kvstore-bench observer"));
  const auto times = client.run(client->ping(options.deadline));
  std::string silent;
  const std::vector<NodeStatus> nodes = client->nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (times && i < times->size() && (*times)[i].count() >= 0) continue;
    const std::string why = nodes[i].last_error_text.empty() ? describe(nodes[i].last_error) : nodes[i].last_error_text;
    silent += (silent.empty() ? "" : "; ") + nodes[i].name + " does not answer: " + why;
  }
  if (!silent.empty()) throw std::runtime_error(silent);
}

/// Two steps: open() without waiting only registers the record with the client, and wait_open() reports whether a node
/// accepted it. open() alone succeeds while all nodes are away, which is right for a worker and wrong for a person.
Result<Space> ToolClient::open(const NamespaceRecord& record, std::chrono::microseconds deadline) {
  const auto space = run(client_->open(record, 0us));
  if (!space) return space;
  const auto opened = run(client_->wait_open(*space, deadline));
  if (!opened) return opened.error();
  return space;
}

ToolClient::~ToolClient() {
  KV_ASSERT(std::this_thread::get_id() == thread_);
  // The client must be destroyed on its executor. The coroutines of its sessions end after that, while their executor
  // still exists; the bound keeps an endless one from hanging the tool.
  asio::post(context_, [this] { client_.reset(); });
  for (int i = 0; i < 1000 && context_.poll() > 0; ++i) {
  }
}

void ToolClient::run_all(std::vector<asio::awaitable<void>> tasks) {
  std::exception_ptr failure;
  std::size_t running = tasks.size();
  for (auto& task : tasks) {
    asio::co_spawn(context_, std::move(task), [&](std::exception_ptr thrown) {
      if (thrown && !failure) failure = thrown;
      --running;
    });
  }
  run_until_zero(running);
  if (failure) std::rethrow_exception(failure);
}

/// One event at a time until the count is zero: a client's timers, always pending, would keep run() going.
void ToolClient::run_until_zero(const std::size_t& running) {
  KV_ASSERT(std::this_thread::get_id() == thread_);
  while (running > 0) busy_poll_.run_some();
}

}  // namespace kv
