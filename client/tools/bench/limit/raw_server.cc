#include "client/tools/bench/limit/raw_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "client/tools/bench/touched_memory.h"

namespace kv {
namespace {

using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails on a Unix socket, which has no such delay
}

/// Answers requests until the peer closes. Buffered, so that pipelined requests share one recv().
void serve(int fd, std::span<const std::byte> memory, std::uint64_t seed) {
  set_no_delay(fd);
  QuickRandom random(seed);
  std::vector<std::byte> buffer(2 * kRawRequestBytesMax);
  std::size_t begin = 0, end = 0;
  bool spin = false;
  // Moved to the front only when needed: a move per request would cost more than the recv() that it saves.
  const auto fill_to = [&](std::size_t want) {
    if (begin + want > buffer.size()) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      begin = 0;
    }
    KV_ASSERT(begin <= end && begin + want <= buffer.size());  // recv() writes behind `end`
    while (end - begin < want) {
      const ssize_t got = ::recv(fd, buffer.data() + end, buffer.size() - end, spin ? MSG_DONTWAIT : 0);
      if (got > 0) {
        end += static_cast<std::size_t>(got);
      } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        return false;
      }
    }
    return true;
  };
  for (;;) {
    if (!fill_to(sizeof(RawRequest))) break;
    RawRequest request;
    std::memcpy(&request, buffer.data() + begin, sizeof request);
    // Only this program connects, but every process of the host may use the abstract name and the port.
    if (request.request_bytes < sizeof request || request.request_bytes > kRawRequestBytesMax ||
        request.block_bytes > memory.size() || !fill_to(request.request_bytes)) {
      break;
    }
    begin += request.request_bytes;
    if (begin == end) begin = end = 0;
    // For later requests: the client sets it in its first one.
    spin = request.spin != 0;
    const std::size_t place_count = memory.size() / std::max<std::size_t>(request.block_bytes, 1);
    bool is_sent = true;
    for (std::uint64_t i = 0; i < request.block_count && is_sent; ++i) {
      is_sent =
          // From a random place: a repeated block would come from the cache, faster than in any store.
          send_all(fd, memory.data() + random.below(place_count) * request.block_bytes, request.block_bytes, spin);
    }
    if (!is_sent) break;
  }
  ::close(fd);
}

/// The same over TLS: one request at a time, as streams do.
void serve_tls(int fd, const RawTls& tls, std::span<const std::byte> memory, std::uint64_t seed) {
  set_no_delay(fd);
  {
    QuickRandom random(seed);
    RawTls::Connection connection(tls, fd, /*is_server=*/true);
    RawRequest request;
    bool is_good = connection.is_up();
    while (is_good && connection.receive_all(&request, sizeof request)) {
      if (request.request_bytes != sizeof request || request.block_bytes > memory.size()) break;
      const std::size_t place_count = memory.size() / std::max<std::size_t>(request.block_bytes, 1);
      for (std::uint64_t i = 0; i < request.block_count && is_good; ++i)
        is_good =
            connection.send_all(memory.data() + random.below(place_count) * request.block_bytes, request.block_bytes);
    }
  }
  ::close(fd);
}

/// The forked process, from its first to its last instruction. It never returns: the stack above belongs to the
/// parent's program, whose destructors must not run twice.
[[noreturn]] void run_server(int tcp, int unix_fd, int tls_fd, const RawTls& tls, std::size_t memory_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // or this process would outlive a killed parent
  const TouchedMemory memory(memory_bytes);
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  const auto accept_all = [&memory, &tls, tls_fd](int listener) {
    for (std::uint64_t seed = 1;; ++seed) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      // A thread per connection is the fastest form of a bare server on few connections, free of dispatch.
      const std::span<const std::byte> bytes = memory.bytes();
      if (fd < 0) continue;
      if (listener == tls_fd) {
        std::thread([=, &tls] { serve_tls(fd, tls, bytes, seed); }).detach();
      } else {
        std::thread(serve, fd, bytes, seed).detach();
      }
    }
  };
  std::thread(accept_all, unix_fd).detach();
  std::thread(accept_all, tls_fd).detach();
  accept_all(tcp);
  ::_exit(0);
}

/// A connected socket, which the caller closes.
template <class Protocol>
int connect_to(const typename Protocol::endpoint& endpoint) {
  asio::io_context context;
  typename Protocol::socket socket(context);
  socket.connect(endpoint);
  const int fd = socket.release();
  set_no_delay(fd);
  return fd;
}

}  // namespace

RawServer::RawServer(std::size_t memory_bytes)
    : unix_endpoint_('\0' + ("kvstore-bench-" + std::to_string(::getpid()))) {
  asio::io_context context;
  const Tcp::endpoint any_port(asio::ip::address_v4::loopback(), 0);
  Tcp::acceptor tcp(context, any_port, /*reuse_addr=*/false), tls(context, any_port, /*reuse_addr=*/false);
  Local::acceptor local(context, unix_endpoint_, /*reuse_addr=*/false);
  tcp_endpoint_ = tcp.local_endpoint();
  tls_endpoint_ = tls.local_endpoint();
  // A process, not a thread, like a node: the bound includes the cost of switching between address spaces.
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0)  // all listen already: a connect() cannot come too early
    run_server(tcp.native_handle(), local.native_handle(), tls.native_handle(), tls_, memory_bytes);
}

RawServer::~RawServer() {
  // Killed without a request: it has no state to lose, and might hang in a send().
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int RawServer::connect_tcp() const { return connect_to<Tcp>(tcp_endpoint_); }
int RawServer::connect_for_tls() const { return connect_to<Tcp>(tls_endpoint_); }
int RawServer::connect_unix() const { return connect_to<Local>(unix_endpoint_); }

bool send_all(int fd, const void* from, std::size_t bytes, bool spin) {
  const auto* next = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0));
    if (sent > 0) {
      next += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

bool receive_all(int fd, void* to, std::size_t bytes, bool spin) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, next, bytes, spin ? MSG_DONTWAIT : MSG_WAITALL);
    if (got > 0) {
      next += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
  }
  return true;
}

}  // namespace kv
