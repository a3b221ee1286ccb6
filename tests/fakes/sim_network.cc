#include "tests/fakes/sim_network.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "base/assert.h"
#include "base/event.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {

/// One direction of a stream: chunks with their arrival times.
struct SimNetwork::Pipe {
  struct Chunk {
    TimePoint arrives;
    std::vector<std::byte> bytes;
    Descriptor fd;
  };

  Pipe(const asio::any_io_executor& executor_of_reader, const asio::any_io_executor& executor_of_writer, Clock& clock)
      : readable(executor_of_reader), writable(executor_of_writer), alarm(clock.make_alarm(executor_of_reader)) {}

  std::deque<Chunk> chunks;
  std::size_t offset = 0;  ///< Of the first chunk, already read.
  std::size_t bytes = 0;
  bool ended = false;  ///< The writer closed; queued bytes can still be read.
  TimePoint last_arrival{};
  Event readable, writable;
  std::unique_ptr<Alarm> alarm;
};

/// Both directions of a connection; shared by its ends. Ordered by number, so that every run visits them alike.
struct SimNetwork::Link : std::enable_shared_from_this<SimNetwork::Link> {
  Link(SimNetwork& net, std::string from, std::string name, const asio::any_io_executor& client,
       const asio::any_io_executor& server)
      : network(net),
        client_host(std::move(from)),
        host(std::move(name)),
        to_server(server, client, net.clock_),
        to_client(client, server, net.clock_) {
    network.links_[number] = this;
  }
  ~Link() { network.links_.erase(number); }

  /// Arrivals of this direction are held back, including its end.
  bool is_held(const Pipe& pipe) const {
    const bool is_out = &pipe == &to_server;
    return network.frozen_.contains(host) || network.frozen_.contains(client_host) ||
           network.is_cut(is_out ? client_host : host, is_out ? host : client_host);
  }
  bool is_of(const std::string& name) const { return host == name || client_host == name; }
  void break_now() {
    broken = true;
    for (Pipe* pipe : {&to_server, &to_client}) {
      pipe->chunks.clear();
      pipe->alarm->disarm();
      pipe->readable.set();
      pipe->writable.set();
    }
  }
  /// Wakes the reader if the first chunk is here, or arms the alarm for its arrival.
  void schedule(Pipe& pipe) {
    if (broken || is_held(pipe)) return;
    if (pipe.chunks.empty()) {
      if (pipe.ended) pipe.readable.set();
      return;
    }
    if (pipe.chunks.front().arrives <= network.clock_.now()) {
      pipe.readable.set();
      return;
    }
    pipe.alarm->arm(pipe.chunks.front().arrives, [self = weak_from_this(), &pipe] {
      if (const auto link = self.lock()) link->schedule(pipe);
    });
  }

  SimNetwork& network;
  const std::uint64_t number = network.link_count_++;
  const std::string client_host;  ///< Empty: an unnamed client.
  const std::string host;
  Pipe to_server, to_client;
  bool broken = false;
};

class SimNetwork::SimStream final : public Stream {
 public:
  SimStream(std::shared_ptr<Link> link, bool is_client) : link_(std::move(link)), is_client_(is_client) {}
  ~SimStream() override { close(); }

  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override {
    if (closed_) return error_code(asio::error::operation_aborted);
    if (link_->broken) return error_code(asio::error::connection_reset);
    Pipe& pipe = in();
    std::size_t total = 0;
    for (const asio::mutable_buffer& buffer : to) {
      auto* target = static_cast<std::byte*>(buffer.data());
      std::size_t room = buffer.size();
      // Only arrived chunks: each becomes readable whole, at its time, and in order.
      while (room > 0 && !link_->is_held(pipe) && !pipe.chunks.empty() &&
             pipe.chunks.front().arrives <= link_->network.clock_.now()) {
        Pipe::Chunk& chunk = pipe.chunks.front();
        if (chunk.fd && pipe.offset == 0 && !received_) received_ = std::move(chunk.fd);
        const std::size_t n = std::min(room, chunk.bytes.size() - pipe.offset);
        std::memcpy(target, chunk.bytes.data() + pipe.offset, n);
        target += n;
        room -= n;
        total += n;
        KV_ASSERT(pipe.bytes >= n);
        pipe.offset += n;
        pipe.bytes -= n;
        if (pipe.offset == chunk.bytes.size()) {
          pipe.chunks.pop_front();
          pipe.offset = 0;
        }
      }
    }
    if (total > 0) {
      pipe.writable.set();
      return total;
    }
    if (pipe.ended && pipe.chunks.empty() && !link_->is_held(pipe)) return error_code(asio::error::eof);
    return error_code(asio::error::would_block);
  }

  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override {
    if (closed_) return error_code(asio::error::operation_aborted);
    SimNetwork& network = link_->network;
    if (!link_->broken && network.chance(network.faults_.break_probability)) link_->break_now();
    if (link_->broken || peer_has_closed()) return error_code(asio::error::connection_reset);
    Pipe& pipe = out();
    if (pipe.bytes >= network.faults_.capacity_bytes || network.chance(network.faults_.full_probability))
      return error_code(asio::error::would_block);
    // Of random size, as a kernel takes what fits: this exposes a writer that assumes whole writes.
    Pipe::Chunk chunk;
    const std::size_t limit =
        std::min(network.faults_.capacity_bytes - pipe.bytes,
                 std::uniform_int_distribution<std::size_t>(1, network.faults_.chunk_bytes_max)(network.random_));
    for (const asio::const_buffer& buffer : from) {
      const auto* bytes = static_cast<const std::byte*>(buffer.data());
      const std::size_t n = std::min(buffer.size(), limit - chunk.bytes.size());
      chunk.bytes.insert(chunk.bytes.end(), bytes, bytes + n);
    }
    const std::size_t count = chunk.bytes.size();
    KV_ASSERT(count > 0);
    if (network.chance(network.faults_.flip_probability)) {
      const std::size_t bit = std::uniform_int_distribution<std::size_t>(0, 8 * count - 1)(network.random_);
      chunk.bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    }
    Duration delay = network.random_delay();
    if (network.chance(network.faults_.stall_probability)) {
      delay +=
          Duration(std::uniform_int_distribution<Duration::rep>(0, network.faults_.stall_max.count())(network.random_));
    }
    // Never before the previous chunk: a stream keeps its order.
    chunk.arrives = pipe.last_arrival = std::max(pipe.last_arrival, network.clock_.now() + delay);
    if (to_send_ >= 0) chunk.fd = Descriptor(::dup(to_send_));
    to_send_ = -1;
    pipe.bytes += count;
    pipe.chunks.push_back(std::move(chunk));
    link_->schedule(pipe);
    return count;
  }

  Async<void> wait_readable() override {
    Pipe& pipe = in();
    pipe.readable.reset();
    link_->schedule(pipe);
    if (!closed_ && !link_->broken) co_await pipe.readable.wait();
    if (closed_) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }
  Async<void> wait_writable() override {
    Pipe& pipe = out();
    pipe.writable.reset();
    if (!closed_ && !link_->broken && !peer_has_closed() && pipe.bytes >= link_->network.faults_.capacity_bytes) {
      co_await pipe.writable.wait();
    }
    if (closed_) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }

  void close() override {
    if (closed_) return;
    closed_ = true;
    // Our own waits end; the peer reads the bytes in flight and then the end.
    in().readable.set();
    out().writable.set();
    out().ended = true;
    link_->schedule(out());
    // The peer's writes fail from now on, as after a reset; it can still read the bytes sent to it.
    in().chunks.clear();
    in().offset = in().bytes = 0;
    in().writable.set();
  }

  bool can_pass_descriptors() const override { return link_->network.passes_descriptors_; }
  void send_descriptor(int fd) override { to_send_ = fd; }
  Descriptor take_descriptor() override { return std::move(received_); }
  std::string peer() const override { return "sim:" + link_->host; }
  Protection protection() const override { return link_->network.protection_; }

 private:
  Pipe& in() { return is_client_ ? link_->to_client : link_->to_server; }
  Pipe& out() { return is_client_ ? link_->to_server : link_->to_client; }
  bool peer_has_closed() { return in().ended && !link_->is_held(in()); }

  std::shared_ptr<Link> link_;
  bool is_client_;
  bool closed_ = false;
  Descriptor received_;
  int to_send_ = -1;
};

class SimNetwork::SimListener final : public Listener {
 public:
  SimListener(SimNetwork& network, Endpoint endpoint, asio::any_io_executor executor)
      : network_(network), endpoint_(std::move(endpoint)), executor_(executor), ready_(executor) {}
  ~SimListener() override { close(); }

  Async<std::unique_ptr<Stream>> accept(asio::any_io_executor) override {
    while (!closed_ && waiting_.empty()) {
      ready_.reset();
      co_await ready_.wait();
    }
    if (closed_) co_return error_code(asio::error::operation_aborted);
    auto stream = std::move(waiting_.front());
    waiting_.pop_front();
    co_return stream;
  }
  void close() override {
    if (closed_) return;
    closed_ = true;
    waiting_.clear();
    ready_.set();
    network_.listeners_.erase(endpoint_.host);
  }
  Endpoint endpoint() const override { return endpoint_; }

  const asio::any_io_executor& executor() const { return executor_; }
  void add(std::unique_ptr<Stream> stream) {
    waiting_.push_back(std::move(stream));
    ready_.set();
  }

 private:
  SimNetwork& network_;
  Endpoint endpoint_;
  asio::any_io_executor executor_;
  Event ready_;
  std::deque<std::unique_ptr<Stream>> waiting_;
  bool closed_ = false;
};

/// A view of the network that names the origin of its streams.
class SimNetwork::Host final : public Network {
 public:
  Host(SimNetwork& network, std::string name) : network_(network), name_(std::move(name)) {}
  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, asio::any_io_executor executor) override {
    return network_.listen(endpoint, std::move(executor));
  }
  Async<std::unique_ptr<Stream>> connect(Endpoint endpoint, asio::any_io_executor executor) override {
    return network_.connect_from(name_, std::move(endpoint), std::move(executor));
  }

 private:
  SimNetwork& network_;
  const std::string name_;
};

SimNetwork::SimNetwork(VirtualClock& clock, std::uint64_t seed) : clock_(clock), random_(seed) {}
SimNetwork::~SimNetwork() = default;

Result<std::unique_ptr<Listener>> SimNetwork::listen(const Endpoint& endpoint, asio::any_io_executor executor) {
  if (endpoint.scheme != Endpoint::Scheme::kSim) return error_code(Errc::kUnsupported);
  if (listeners_.contains(endpoint.host)) return error_code(asio::error::address_in_use);
  auto listener = std::make_unique<SimListener>(*this, endpoint, std::move(executor));
  listeners_[endpoint.host] = listener.get();
  return std::unique_ptr<Listener>(std::move(listener));
}

Network& SimNetwork::from(const std::string& name) {
  auto& host = hosts_[name];
  if (!host) host = std::make_unique<Host>(*this, name);
  return *host;
}

Async<std::unique_ptr<Stream>> SimNetwork::connect(Endpoint endpoint, asio::any_io_executor executor) {
  return connect_from("", std::move(endpoint), std::move(executor));
}

bool SimNetwork::is_unreachable(const std::string& from, const std::string& to) const {
  return frozen_.contains(to) || frozen_.contains(from) || is_cut(from, to) || is_cut(to, from);
}

Async<std::unique_ptr<Stream>> SimNetwork::connect_from(std::string from, Endpoint endpoint,
                                                        asio::any_io_executor executor) {
  if (endpoint.scheme != Endpoint::Scheme::kSim) co_return error_code(Errc::kUnsupported);
  Event arrived(executor);
  const auto alarm = clock_.make_alarm(executor);
  // A round trip. Asio cancellation ends the wait as well, with the event unset.
  alarm->arm(clock_.now() + 2 * random_delay(), [&] { arrived.set(); });
  co_await arrived.wait();
  if (!arrived.is_set()) co_return error_code(asio::error::operation_aborted);
  while (is_unreachable(from, endpoint.host)) {  // a SYN into a black hole: the caller's deadline ends the wait
    arrived.reset();
    alarm->arm(clock_.now() + 100ms, [&] { arrived.set(); });
    co_await arrived.wait();
    if (!arrived.is_set()) co_return error_code(asio::error::operation_aborted);
  }
  const auto listener = listeners_.find(endpoint.host);
  if (listener == listeners_.end() || killed_.contains(endpoint.host)) {
    co_return error_code(asio::error::connection_refused);
  }
  const auto link = std::make_shared<Link>(*this, from, endpoint.host, executor, listener->second->executor());
  listener->second->add(std::make_unique<SimStream>(link, false));
  co_return std::unique_ptr<Stream>(std::make_unique<SimStream>(link, true));
}

void SimNetwork::kill(const std::string& name) {
  killed_.insert(name);
  for (const auto& [number, link] : links_) {
    if (link->is_of(name)) link->break_now();
  }
}
void SimNetwork::revive(const std::string& name) { killed_.erase(name); }
void SimNetwork::freeze(const std::string& name) { frozen_.insert(name); }
void SimNetwork::thaw(const std::string& name) {
  frozen_.erase(name);
  reschedule_all();
}
void SimNetwork::cut(const std::string& from, const std::string& to) { cuts_.insert({from, to}); }
void SimNetwork::mend_all() {
  cuts_.clear();
  reschedule_all();
}
/// Held streams stay as they are. Writers check again: their peer may be gone.
void SimNetwork::reschedule_all() {
  for (const auto& [number, link] : links_) {
    for (Pipe* pipe : {&link->to_server, &link->to_client}) {
      link->schedule(*pipe);
      pipe->writable.set();
    }
  }
}

/// By the seed's random numbers, over links in order: every run breaks the same one.
void SimNetwork::break_one() {
  if (links_.empty()) return;
  const std::size_t index = std::uniform_int_distribution<std::size_t>(0, links_.size() - 1)(random_);
  std::next(links_.begin(), static_cast<std::ptrdiff_t>(index))->second->break_now();
}

std::size_t SimNetwork::stream_count() const { return 2 * links_.size(); }

Duration SimNetwork::random_delay() {
  return Duration(
      std::uniform_int_distribution<Duration::rep>(faults_.delay_min.count(), faults_.delay_max.count())(random_));
}

bool SimNetwork::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

}  // namespace kv
