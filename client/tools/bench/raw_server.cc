#include "client/tools/bench/raw_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "client/tools/bench/touched_memory.h"

namespace kv {
namespace {

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

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

template <class Address>
const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

sockaddr_un unix_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_ASSERT(name.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading 0: the abstract namespace
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int listen_on_loopback(std::uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw_errno("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(fd, as_sockaddr(address), length) != 0 || ::listen(fd, 128) != 0) throw_errno("listen on 127.0.0.1");
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) throw_errno("getsockname");
  *port = ntohs(address.sin_port);
  return fd;
}

int connect_to_loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, as_sockaddr(address), sizeof address) != 0) throw_errno("connect to 127.0.0.1");
  set_no_delay(fd);
  return fd;
}

}  // namespace

RawServer::RawServer(std::size_t memory_bytes) : unix_name_("kvstore-bench-" + std::to_string(::getpid())) {
  const int tcp = listen_on_loopback(&port_), tls_fd = listen_on_loopback(&tls_port_);
  const int unix_fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (unix_fd < 0) throw_errno("socket");
  socklen_t length = 0;
  const sockaddr_un local = unix_address(unix_name_, &length);
  if (::bind(unix_fd, as_sockaddr(local), length) != 0 || ::listen(unix_fd, 128) != 0) throw_errno("listen");
  // A process, not a thread, like a node: the bound includes the cost of switching between address spaces.
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("fork");
  if (pid_ == 0)
    run_server(tcp, unix_fd, tls_fd, tls_, memory_bytes);  // all listen already: a connect() cannot come too early
  ::close(tcp);
  ::close(tls_fd);
  ::close(unix_fd);
}

RawServer::~RawServer() {
  // Killed without a request: it has no state to lose, and might hang in a send().
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int RawServer::connect_tcp() const { return connect_to_loopback(port_); }
int RawServer::connect_for_tls() const { return connect_to_loopback(tls_port_); }

int RawServer::connect_unix() const {
  socklen_t length = 0;
  const sockaddr_un address = unix_address(unix_name_, &length);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, as_sockaddr(address), length) != 0) throw_errno("connect");
  return fd;
}

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
