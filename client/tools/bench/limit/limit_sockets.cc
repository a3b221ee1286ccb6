#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include "base/assert.h"
#include "client/tools/bench/limit/limit.h"
#include "client/tools/bench/limit/raw_server.h"
#include "client/tools/bench/touched_memory.h"

namespace kv {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

enum class Kind { kTcp, kUnix, kTls };

struct Bench {
  explicit Bench(const LimitShape& s)
      : shape(s), memory_bytes(std::max(s.memory_bytes, s.block_bytes)), server(memory_bytes), memory(memory_bytes) {}
  int connect(bool is_tcp) const { return is_tcp ? server.connect_tcp() : server.connect_unix(); }
  int connect(Kind kind) const { return kind == Kind::kTls ? server.connect_for_tls() : connect(kind == Kind::kTcp); }

  LimitShape shape;
  std::size_t memory_bytes;
  RawServer server;  // forks, so it comes before this side's own memory
  TouchedMemory memory;
};

[[noreturn]] void fail() { throw std::runtime_error("the raw server went away"); }

/// Each connection has a thread: 64 bytes request a batch, which lands in random blocks of memory.
LimitSample measure_stream(const Bench& bench, Kind kind, std::size_t connection_count) {
  const LimitShape& shape = bench.shape;
  // Each thread has its own places: two that received into one place would race, and share its cache lines.
  const std::size_t place_count_all = bench.memory_bytes / shape.block_bytes;
  KV_ASSERT(place_count_all > 0 && connection_count > 0);
  const std::size_t place_count = std::max<std::size_t>(1, place_count_all / connection_count);
  struct Result {
    std::size_t batches = 0;
    LatencyHistogram latency;
    bool ok = true;
  };
  std::vector<Result> results(connection_count);
  std::vector<int> fds(connection_count);
  for (int& fd : fds) fd = bench.connect(kind);
  std::vector<std::unique_ptr<RawTls::Connection>> encrypted;
  for (std::size_t i = 0; kind == Kind::kTls && i < fds.size(); ++i) {
    encrypted.push_back(std::make_unique<RawTls::Connection>(bench.server.tls(), fds[i], /*is_server=*/false));
    if (!encrypted.back()->is_up()) fail();
  }
  const SteadyTime start = std::chrono::steady_clock::now();
  const auto receive = [&](std::size_t thread) {
    QuickRandom random(100 + thread);
    Result& result = results[thread];
    const RawRequest request{sizeof(RawRequest), shape.block_bytes, shape.batch, 0, {}};
    for (SteadyTime asked = start; asked - start < shape.duration && result.ok;) {
      RawTls::Connection* const tls = encrypted.empty() ? nullptr : encrypted[thread].get();
      result.ok = tls != nullptr ? tls->send_all(&request, sizeof request)
                                 : send_all(fds[thread], &request, sizeof request, false);
      for (std::size_t i = 0; i < shape.batch && result.ok; ++i) {
        const std::size_t place = (thread * place_count + random.below(place_count)) % place_count_all;
        KV_ASSERT((place + 1) * shape.block_bytes <= bench.memory.bytes().size());
        std::byte* to = bench.memory.bytes().data() + place * shape.block_bytes;
        result.ok = tls != nullptr ? tls->receive_all(to, shape.block_bytes)
                                   : receive_all(fds[thread], to, shape.block_bytes, false);
      }
      const SteadyTime now = std::chrono::steady_clock::now();
      result.latency.record(now - asked);
      ++result.batches;
      asked = now;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < connection_count; ++i) threads.emplace_back(receive, i);
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  LimitSample sample;
  std::size_t batches = 0;
  for (const Result& result : results) {
    if (!result.ok) fail();
    batches += result.batches;
    sample.latency.add(result.latency);
  }
  encrypted.clear();
  for (const int fd : fds) ::close(fd);
  sample.calls_per_second = static_cast<double>(batches) / seconds;
  sample.bytes_per_second = sample.calls_per_second * static_cast<double>(shape.batch * shape.block_bytes);
  return sample;
}

/// One request at a time: `request_bytes` there, `answer_bytes` back. Both sides are otherwise idle, so this is the
/// lower bound for a round trip of any protocol over these sockets.
LimitSample measure_ping(const Bench& bench, bool is_tcp, bool spin, std::size_t request_bytes,
                         std::size_t answer_bytes) {
  const int fd = bench.connect(is_tcp);
  KV_ASSERT(request_bytes >= sizeof(RawRequest) && request_bytes <= kRawRequestBytesMax);
  std::vector<std::byte> request(request_bytes), answer(answer_bytes);
  const RawRequest head{request_bytes, answer_bytes, 1, spin, {}};
  std::memcpy(request.data(), &head, sizeof head);
  LimitSample sample;
  const SteadyTime start = std::chrono::steady_clock::now();
  SteadyTime asked = start;
  while (asked - start < bench.shape.duration) {
    if (!send_all(fd, request.data(), request.size(), spin) || !receive_all(fd, answer.data(), answer.size(), spin)) {
      fail();
    }
    const SteadyTime now = std::chrono::steady_clock::now();
    sample.latency.record(now - asked);
    asked = now;
  }
  ::close(fd);
  sample.calls_per_second =
      static_cast<double>(sample.latency.count()) / std::chrono::duration<double>(asked - start).count();
  sample.bytes_per_second = sample.calls_per_second * static_cast<double>(answer_bytes);
  return sample;
}

/// Many small requests in flight: one thread with epoll keeps `depth` requests on each of `connection_count`
/// connections. One thread, since a node's I/O thread serves many connections as well.
LimitSample measure_pipelined(const Bench& bench, bool is_tcp, std::size_t connection_count, std::size_t depth,
                              std::size_t answer_bytes) {
  const RawRequest request{sizeof(RawRequest), answer_bytes, 1, 0, {}};
  KV_ASSERT(answer_bytes > 0 && depth > 0);
  // Sent in one piece, as a client under load does.
  const std::vector<RawRequest> requests(depth, request);
  std::vector<std::byte> sink(depth * answer_bytes);
  std::vector<std::size_t> received(connection_count, 0);  // bytes of incomplete answers
  std::vector<int> fds(connection_count);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < connection_count; ++i) {
    fds[i] = bench.connect(is_tcp);
    epoll_event event{EPOLLIN, {.u64 = i}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event);
    if (!send_all(fds[i], requests.data(), depth * sizeof request, false)) fail();
  }
  std::uint64_t answered = 0;
  const SteadyTime start = std::chrono::steady_clock::now();
  SteadyTime now = start;
  std::array<epoll_event, 64> events;
  while (now - start < bench.shape.duration) {
    // A second at most, so that a dead server ends the case.
    const int ready = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 1000);
    for (int i = 0; i < ready; ++i) {
      const std::size_t connection = events[static_cast<std::size_t>(i)].data.u64;
      const ssize_t got = ::recv(fds[connection], sink.data(), sink.size(), MSG_DONTWAIT);
      if (got == 0) fail();
      if (got < 0) continue;
      received[connection] += static_cast<std::size_t>(got);
      const std::size_t complete = received[connection] / answer_bytes;  // an answer may come in pieces
      received[connection] %= answer_bytes;
      KV_ASSERT(complete <= depth);  // as many as were requested; `requests` holds no more to repeat
      answered += complete;
      if (complete > 0 && !send_all(fds[connection], requests.data(), complete * sizeof request, false)) fail();
    }
    now = std::chrono::steady_clock::now();
  }
  for (const int fd : fds) ::close(fd);
  ::close(epoll);
  LimitSample sample;
  sample.calls_per_second = static_cast<double>(answered) / std::chrono::duration<double>(now - start).count();
  sample.bytes_per_second = sample.calls_per_second * static_cast<double>(answer_bytes);
  return sample;
}

}  // namespace

std::vector<LimitCase> socket_limits(const LimitShape& shape) {
  constexpr std::size_t kSmallAnswer = 4096, kMatchRequest = 64 + 256 * 32, kHeader = 64;
  auto bench = std::make_shared<Bench>(shape);
  std::vector<LimitCase> cases;
  for (const auto& [kind, name, about] : {std::tuple(Kind::kTcp, "tcp", ""), std::tuple(Kind::kUnix, "unix", ""),
                                          std::tuple(Kind::kTls, "tls", ", OpenSSL on the bare socket")}) {
    for (const std::size_t count : shape.connection_counts) {
      cases.push_back({std::string(name) + "_stream_" + std::to_string(count),
                       std::string("blocking thread per connection, 64 B asks for a batch") + about, true,
                       [=, kind = kind] { return measure_stream(*bench, kind, count); }});
    }
  }
  for (const bool is_tcp : {true, false}) {
    const std::string kind = is_tcp ? "tcp" : "unix";
    for (const bool spin : {false, true}) {
      const std::string how = spin ? "_spin" : "";
      const std::string about = spin ? ", both sides polling" : ", blocking";
      cases.push_back({kind + "_ping_4k_answer" + how, "64 B there, 4 KiB back" + about, false,
                       [=] { return measure_ping(*bench, is_tcp, spin, kHeader, kSmallAnswer); }});
      cases.push_back({kind + "_ping_8k_request" + how, "256 hashes there, 64 B back" + about, false,
                       [=] { return measure_ping(*bench, is_tcp, spin, kMatchRequest, kHeader); }});
    }
    cases.push_back({kind + "_pipelined_4k", "16 connections, 4 requests in flight each, 4 KiB back", false,
                     [=] { return measure_pipelined(*bench, is_tcp, 16, 4, kSmallAnswer); }});
  }
  return cases;
}

}  // namespace kv
