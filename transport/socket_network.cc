// transport/socket_network.cc: streams over TCP and Unix sockets.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/busy_poll.h"
#include "transport/both_families.h"
#include "transport/connect_first.h"
#include "transport/forked.h"
#include "transport/resolver.h"
#include "transport/stream.h"
#include "transport/tls/tls.h"

namespace kv {
namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
using Socket = asio::generic::stream_protocol::socket;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

/// Whether a client may keep its new descriptor: a high number leaves few for health answers and files.
bool leaves_descriptors(int descriptor) {
  constexpr rlim_t kSpareMax = 96;  // the admin server's connections, and a third more
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(descriptor) < limit.rlim_cur - std::min(kSpareMax, limit.rlim_cur / 8);
}

/// The wait of one read, for a thread that spins. Keeps the context from running out of work, as a reactor wait does.
template <class Handler>
class ReadWait final : public SpinWait {
 public:
  ReadWait(Socket& socket, Handler handler)
      : socket_(socket),
        executor_(asio::prefer(asio::get_associated_executor(handler, socket.get_executor()),
                               asio::execution::outstanding_work.tracked)),
        handler_(std::move(handler)) {}

  bool is_over() override {
    pollfd entry{socket_.native_handle(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  }
  void complete(error_code error) override {
    asio::dispatch(executor_, [handler = std::move(handler_), error]() mutable { std::move(handler)(error); });
  }
  void leave_to_reactor() override { socket_.async_wait(Socket::wait_read, std::move(handler_)); }

 private:
  Socket& socket_;
  asio::any_io_executor executor_;
  Handler handler_;
};

/// Calls sendmsg and recvmsg itself and leaves only the waiting to Asio. So whole blocks move in as few calls as the
/// socket buffer allows (Asio's composed operations stop at 64 KiB), and descriptors can go along.
class SocketStream final : public Stream {
 public:
  SocketStream(Socket socket, std::unique_ptr<ClosedInChild> in_child, bool is_unix, std::string peer,
               Protection protection, std::string peer_group = "", std::optional<User> user = std::nullopt)
      : socket_(std::move(socket)),
        spin_watch_(asio::use_service<SpinWatch>(asio::query(socket_.get_executor(), asio::execution::context))),
        in_child_(std::move(in_child)),
        is_unix_(is_unix),
        protection_(protection),
        user_(user),
        peer_(std::move(peer)),
        peer_group_(std::move(peer_group)) {
    boost::system::error_code ignored;
    socket_.native_non_blocking(true, ignored);
    const int on = 1, buffer_bytes = 4 << 20;
    if (is_unix_) {
      // Unix sockets do not size their buffers automatically; the kernel caps this at net.core.wmem_max.
      ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    } else {
      // FrameWriter gathers small frames itself; Nagle's algorithm would only delay the last of each batch.
      ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
  }

  ~SocketStream() override { close(); }

  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override {
    std::array<iovec, kBuffersMax> vectors;
    msghdr message = gather(to, vectors);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    if (is_unix_) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
    }
    const ssize_t count =
        retry([&] { return ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
    if (count < 0) return failure();
    // Descriptors may come with any byte. Each is owned at once, so that none leaks, wanted or not.
    if (is_unix_) {
      for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        // The padding of `control` has room for a second one, and the kernel uses it.
        const std::size_t fd_count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < fd_count; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
          Descriptor descriptor(fd);
          // Closes a second untaken one, and one whose number leaves too few spare descriptors; then none has come.
          if (!received_ && leaves_descriptors(fd)) received_ = std::move(descriptor);
        }
      }
    }
    if (count == 0) return error_code(asio::error::eof);
    return static_cast<std::size_t>(count);
  }

  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override {
    std::array<iovec, kBuffersMax> vectors;
    msghdr message = gather(from, vectors);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (to_send_ >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &to_send_, sizeof to_send_);
    }
    const ssize_t count =
        retry([&] { return ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
    if (count < 0) return failure();  // the descriptor goes with the next try
    to_send_ = -1;
    return static_cast<std::size_t>(count);
  }

  Async<void> wait_readable() override {
    if (!spin_watch_.has_room()) co_return co_await wait(Socket::wait_read);
    const auto initiate = [this](auto handler) {
      spin_watch_.add(std::make_unique<ReadWait<decltype(handler)>>(socket_, std::move(handler)), this);
    };
    const auto [error] = co_await asio::async_initiate<decltype(kAwait), void(error_code)>(initiate, kAwait);
    if (error) co_return error;
    co_return Result<void>();
  }
  Async<void> wait_writable() override { co_return co_await wait(Socket::wait_write); }

  /// Shuts the connection down as well: it ends even if another process holds the descriptor.
  void close() override {
    if (!socket_.is_open()) return;
    in_child_.reset();                         // first: the number may soon be another file's
    if (auto wait = spin_watch_.take(this)) {  // completes on the executor, not within this call
      asio::post(socket_.get_executor(), [wait = std::move(wait)] { wait->complete(asio::error::operation_aborted); });
    }
    ::shutdown(socket_.native_handle(), SHUT_RDWR);
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  bool can_pass_descriptors() const override { return is_unix_; }
  void send_descriptor(int fd) override { to_send_ = fd; }
  Descriptor take_descriptor() override { return std::move(received_); }
  std::string peer() const override { return peer_; }
  std::string peer_group() const override { return peer_group_.empty() ? peer_ : peer_group_; }
  Protection protection() const override { return protection_; }
  std::optional<User> peer_user() const override { return user_; }

 private:
  static constexpr std::size_t kBuffersMax = 64;

  /// Further buffers are left for the next call: try_read and try_write may always move less than given.
  template <class Buffers>
  static msghdr gather(const Buffers& buffers, std::array<iovec, kBuffersMax>& vectors) {
    msghdr message{};
    message.msg_iov = vectors.data();
    for (const auto& buffer : buffers) {
      if (message.msg_iovlen == vectors.size()) break;
      vectors[message.msg_iovlen++] = {const_cast<void*>(static_cast<const void*>(buffer.data())), buffer.size()};
    }
    return message;
  }
  template <class Call>
  static ssize_t retry(Call call) {
    ssize_t count;
    do {
      count = call();
    } while (count < 0 && errno == EINTR);
    return count;
  }
  static error_code failure() {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return asio::error::would_block;
    return last_errno();
  }
  Async<void> wait(Socket::wait_type what) {
    const auto [error] = co_await socket_.async_wait(what, kAwait);
    if (error) co_return error;
    co_return Result<void>();
  }

  Socket socket_;
  SpinWatch& spin_watch_;
  std::unique_ptr<ClosedInChild> in_child_;
  bool is_unix_;
  const Protection protection_;
  const std::optional<User> user_;
  std::string peer_, peer_group_;
  Descriptor received_;
  int to_send_ = -1;
};

/// A peer whose machine fails sends no end: without probes, an idle connection to it would stay for ever, with all of
/// the session's resources. The kernel breaks the connection after a minute of silence.
void notice_a_silent_peer(Socket& socket) {
  constexpr int kProbeAfterSeconds = 30, kProbeEverySeconds = 10, kSilentPeerSeconds = 60;
  const auto set = [&](int level, int option, int value) {
    // Best effort: a kernel without an option keeps its default.
    (void)::setsockopt(socket.native_handle(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEverySeconds);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kSilentPeerSeconds * 1000);
}

using GenericEndpoint = asio::generic::stream_protocol::endpoint;

/// Requires: an address of TCP.
asio::ip::tcp::endpoint tcp_of(const GenericEndpoint& endpoint) {
  asio::ip::tcp::endpoint tcp;
  tcp.resize(endpoint.size());
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return tcp;
}

/// For a connected socket, by its address, since a name may lead anywhere.
Stream::Protection protection_of(const GenericEndpoint& remote) {
  using Protection = Stream::Protection;
  if (remote.protocol().family() == AF_UNIX) return Protection::kLocal;
  if (remote.size() > asio::ip::tcp::endpoint().capacity()) return Protection::kNone;
  return unmapped(tcp_of(remote).address()).is_loopback() ? Protection::kLocal : Protection::kNone;
}

/// Without a lookup, which may block. An error: the host is a name. "localhost" means both loopback addresses.
Result<std::vector<GenericEndpoint>> resolve_numeric(const Endpoint& endpoint) {
  if (endpoint.scheme == Endpoint::Scheme::kUnix) {
    return std::vector{GenericEndpoint(asio::local::stream_protocol::endpoint(endpoint.host))};
  }
  const auto at = [port = static_cast<unsigned short>(std::stoi(endpoint.port))](const asio::ip::address& address) {
    return GenericEndpoint(asio::ip::tcp::endpoint(address, port));
  };
  if (endpoint.host == "localhost") {
    return std::vector{at(asio::ip::address_v4::loopback()), at(asio::ip::address_v6::loopback())};
  }
  boost::system::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  if (error) return error;
  return std::vector{at(address)};
}

class SocketListener final : public Listener {
 public:
  SocketListener(Acceptor acceptor, Endpoint endpoint)
      : acceptor_(std::move(acceptor)), endpoint_(std::move(endpoint)) {}
  ~SocketListener() override { close(); }

  Async<std::unique_ptr<Stream>> accept(asio::any_io_executor executor) override {
    const bool is_unix = endpoint_.scheme == Endpoint::Scheme::kUnix;
    Socket socket(executor);
    const auto [error] = co_await acceptor_.async_accept(socket, kAwait);
    if (error) co_return error;
    if (!leaves_descriptors(socket.native_handle())) co_return error_code(asio::error::no_descriptors);
    // Asio's accept has no flag for this. A fork and exec in between would leak the socket; ClosedInChild covers forks.
    (void)::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    auto in_child = std::make_unique<ClosedInChild>(socket.native_handle());
    std::string peer = endpoint_.to_string(), group = peer;
    std::optional<Stream::User> user;
    auto protection = Stream::Protection::kLocal;
    if (is_unix) {
      ucred credentials{};
      socklen_t length = sizeof credentials;
      if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) {
        user = Stream::User{credentials.uid, credentials.gid};
        group = "unix:uid=" + std::to_string(credentials.uid);
        peer = "unix:pid=" + std::to_string(credentials.pid) + ",uid=" + std::to_string(credentials.uid);
      }
    } else {
      notice_a_silent_peer(socket);
      boost::system::error_code ignored;
      const auto remote = socket.remote_endpoint(ignored);
      protection = ignored ? Stream::Protection::kNone : protection_of(remote);
      if (!ignored) {
        const asio::ip::tcp::endpoint tcp = tcp_of(remote);
        group = "tcp:" + unmapped(tcp.address()).to_string();
        peer = group + ":" + std::to_string(tcp.port());
      }
    }
    co_return std::unique_ptr<Stream>(std::make_unique<SocketStream>(
        std::move(socket), std::move(in_child), is_unix, std::move(peer), protection, std::move(group), user));
  }

  void close() override {
    if (!acceptor_.is_open()) return;
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    if (endpoint_.scheme == Endpoint::Scheme::kUnix) ::unlink(endpoint_.host.c_str());
  }
  Endpoint endpoint() const override { return endpoint_; }

 private:
  Acceptor acceptor_;
  Endpoint endpoint_;
};

/// Only a dead process's socket file may be taken over. bind() does not distinguish them, so this connects.
bool is_stale(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  asio::io_context context;
  asio::local::stream_protocol::socket probe(context);
  boost::system::error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  return error == asio::error::connection_refused;
}

/// TLS is a separate network around this one (transport/tls/tls_network.h).
bool is_spoken(const Endpoint& endpoint) {
  return endpoint.scheme == Endpoint::Scheme::kTcp || endpoint.scheme == Endpoint::Scheme::kUnix;
}

class SocketNetwork final : public Network {
 public:
  explicit SocketNetwork(std::shared_ptr<Resolver> resolver) : resolver_(std::move(resolver)) {}

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, asio::any_io_executor executor) override {
    if (!is_spoken(endpoint)) return error_code(Errc::kUnsupported);
    const auto addresses = resolve_numeric(endpoint);
    if (!addresses) return addresses.error();
    GenericEndpoint address = addresses->front();
    const bool is_unix = endpoint.scheme == Endpoint::Scheme::kUnix;
    if (is_unix && is_stale(endpoint.host)) ::unlink(endpoint.host.c_str());
    boost::system::error_code error;
    Acceptor acceptor(executor);
    if (is_unix) {
      acceptor.open(address.protocol(), error);
    } else {
      asio::ip::tcp::endpoint tcp = tcp_of(address);
      open_for(acceptor, tcp, error);
      address = tcp;
    }
    if (error) return error;
    // A restart must not wait for the connections of the previous run (TIME_WAIT).
    if (!is_unix) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    acceptor.bind(address, error);
    if (error) return error;
    // Before listen(): clients cannot connect earlier, so none slips in by wider permissions.
    if (is_unix && ::chmod(endpoint.host.c_str(), 0660) != 0) return last_errno();
    acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) return error;
    Endpoint real = endpoint;
    if (!is_unix) {
      const auto local = acceptor.local_endpoint(error);
      if (error) return error;
      real.port = std::to_string(tcp_of(local).port());
    }
    return std::unique_ptr<Listener>(std::make_unique<SocketListener>(std::move(acceptor), real));
  }

  Async<std::unique_ptr<Stream>> connect(Endpoint endpoint, asio::any_io_executor executor) override {
    if (endpoint.scheme == Endpoint::Scheme::kTls) co_return error_code(TlsErrc::kNotConfigured);
    if (!is_spoken(endpoint)) co_return error_code(Errc::kUnsupported);
    auto addresses = resolve_numeric(endpoint);
    if (!addresses) {  // a name
      const auto found = co_await resolver_->resolve(endpoint.host, endpoint.port, executor);
      if (!found) co_return found.error();
      const auto ordered = alternate_families(*found);
      addresses = std::vector<GenericEndpoint>(ordered.begin(), ordered.end());
    }
    const std::function<Async<std::unique_ptr<Stream>>(std::size_t)> connect =
        [endpoint, at = *addresses, executor](std::size_t i) { return connect_to(at[i], endpoint, executor); };
    co_return co_await connect_first(addresses->size(), connect, clock_, executor);
  }

 private:
  static Async<std::unique_ptr<Stream>> connect_to(GenericEndpoint address, Endpoint endpoint,
                                                   asio::any_io_executor executor) {
    const auto protocol = address.protocol();
    const int fd = ::socket(protocol.family(), protocol.type() | SOCK_CLOEXEC, protocol.protocol());
    if (fd < 0) co_return last_errno();
    Socket socket(executor);
    auto in_child = std::make_unique<ClosedInChild>(fd);  // destroyed, and so forgotten, before the socket is closed
    boost::system::error_code assigned;
    socket.assign(protocol, fd, assigned);
    if (assigned) {
      in_child.reset();
      ::close(fd);
      co_return assigned;
    }
    const auto [error] = co_await socket.async_connect(address, kAwait);
    if (error) co_return error;
    const bool is_unix = endpoint.scheme == Endpoint::Scheme::kUnix;
    if (!is_unix) notice_a_silent_peer(socket);
    co_return std::unique_ptr<Stream>(std::make_unique<SocketStream>(std::move(socket), std::move(in_child), is_unix,
                                                                     endpoint.to_string(), protection_of(address)));
  }

  SteadyClock clock_;
  std::shared_ptr<Resolver> resolver_;
};

}  // namespace

Network& socket_network() {
  static SocketNetwork network(std::make_shared<Resolver>());
  return network;
}

std::unique_ptr<Network> make_socket_network(std::shared_ptr<Resolver> resolver) {
  return std::make_unique<SocketNetwork>(std::move(resolver));
}

}  // namespace kv
