// What the threads of a node that belongs to a cluster are told: membership, the mover and the exchange of learning,
// with a client beside. A line of the input is an entry of etcd's list, KEY=VALUE; a line that begins with "map " is a
// map that the node tells its client, "cert " begins the text of certificate files. No exception may reach a thread's
// border, no assertion may fail, and the node's Store stays whole.
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "client/client.h"
#include "store/node/exchange/exchange.h"
#include "store/node/threads/thread_border.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_base.h"
#include "tests/sim/sim_member.h"

namespace {

using namespace kv;

constexpr std::size_t kLinesMax = 24;

/// A file that is nowhere, under its name in /proc.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view text) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    KV_ASSERT(fd_ >= 0 && ::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void read_certificates(std::string_view text) {
  const MemoryFile file(text);
  for (const TlsSide side : {TlsSide::kNode, TlsSide::kClient}) {
    TlsConfig config{.cert_file = file.path(), .key_file = file.path(), .ca_file = file.path()};
    const auto source = TlsSource::open(config, side);
    KV_ASSERT(source || !source.error().text.empty());
    config.crl_file = file.path();
    KV_ASSERT(TlsSource::open(config, side) || true);
  }
}

StoreConfig small_store() {
  StoreConfig store;
  store.arena.capacity_bytes = 1 << 20;
  store.arena.granule_bytes = 4096;
  store.arena.huge_pages = false;
  store.arena.touch = false;
  return store;
}

class World {
 public:
  World() : exchange_(make_exchange()) {
    asio::co_spawn(context_, exchange_->run(), asio::detached);
    ClientConfig config;
    config.nodes = {{.endpoint = "sim://n0"}};
    config.seed = 1;
    client_ = std::make_unique<Client>(context_.get_executor(), config, network_, clock_);
    pace_.run_for(5s);
  }
  ~World() {
    exchange_->stop();
    pace_.run_for(30s);
    client_.reset();
    KV_ASSERT(member_.node().check().empty());
    exchange_.reset();
    member_.kill();
    pace_.run_for(60s);
  }
  void write(std::string_view line) {
    const std::size_t equals = line.find('=');
    const std::string key(line.substr(0, equals));
    const std::string value(equals == std::string_view::npos ? "" : line.substr(equals + 1));
    etcd_.write("/kvstore/" + key, value);
    pace_.run_for(1500ms);
    ping();
  }
  /// The members of the list that is known, under another epoch and with other extents.
  void tell_map(std::string_view text) {
    ClusterView told = *member_.view();
    std::uint64_t epoch = 0;
    std::from_chars(text.data(), text.data() + text.size(), epoch);
    told.epoch = epoch;
    told.extent_blocks = static_cast<std::uint32_t>(text.size() % 5);
    if (text.size() % 7 == 0) told.members.clear();
    member_.node().set_cluster(std::move(told));
    ping();
  }

 private:
  std::unique_ptr<Exchange> make_exchange() {
    ExchangeConfig config;
    config.node_id = "n0";
    config.period = 1s;
    NodeContext& node = member_.node().context();
    return std::make_unique<Exchange>(context_.get_executor(), network_, clock_, node.store, node.cluster,
                                      node.exchange, std::move(config));
  }
  void ping() {
    bool is_over = false;
    asio::co_spawn(context_, client_->learn_cluster(1s), [&](std::exception_ptr thrown, const auto&) {
      KV_ASSERT(!thrown);
      is_over = true;
    });
    pace_.run_for(2s);
    KV_ASSERT(is_over);
  }

  VirtualClock clock_;
  asio::io_context context_{1};
  SimNetwork network_{clock_, 1};
  sim::Pace pace_{context_, clock_};
  sim::SimEtcd etcd_{clock_, context_.get_executor(), 1};
  sim::SimMember member_{
      context_,      network_,      clock_, etcd_, "n0",
      small_store(), {.lease = 3s}, {},     1,     [](std::exception_ptr thrown) { KV_ASSERT(!thrown); }};
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Client> client_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  World world;
  for (std::size_t i = 0; i < kLinesMax && !rest.empty(); ++i) {
    if (rest.starts_with("cert ")) {
      read_certificates(rest.substr(5));
      break;
    }
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.starts_with("map ")) {
      world.tell_map(line.substr(4));
    } else {
      world.write(line);
    }
  }
  for (const NodeThread thread : {NodeThread::kMembership, NodeThread::kMover, NodeThread::kExchange})
    KV_ASSERT(thread_failure_count(thread) == 0);
  return 0;
}
