// client/tools/bench/limit/raw_server.h: a bare socket server, the reference for a store on the same sockets.
#pragma once

#include <sys/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "client/tools/bench/limit/raw_tls.h"

namespace kv {

/// The first 64 bytes of every request, padded with zeros up to request_bytes.
struct RawRequest {
  std::uint64_t request_bytes;  ///< 64 to kRawRequestBytesMax.
  std::uint64_t block_bytes;    ///< Of the answer's blocks.
  std::uint64_t block_count;    ///< In the answer: each is one send() from a random place of the server's memory.
  std::uint64_t spin;  ///< 1: this connection's thread polls its socket from now on, instead of sleeping in recv().
  std::uint64_t unused[4];
};
static_assert(sizeof(RawRequest) == 64);
inline constexpr std::size_t kRawRequestBytesMax = 64 * 1024;

/// A forked process, as a node is, with a blocking thread per connection: TCP on a loopback port, a Unix socket, and
/// TLS on another port. It sends the requested bytes, without index, checksum or lock.
class RawServer {
 public:
  /// Requires a process with one thread. Throws std::system_error.
  explicit RawServer(std::size_t memory_bytes);
  ~RawServer();  ///< Kills the process and waits for it.
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  /// A connected blocking socket, TCP_NODELAY; the caller closes it. Throws std::system_error.
  int connect_tcp() const;
  int connect_unix() const;
  int connect_for_tls() const;  ///< The socket alone; RawTls::Connection shakes hands.
  const RawTls& tls() const { return tls_; }

 private:
  pid_t pid_ = -1;
  RawTls tls_;
  asio::ip::tcp::endpoint tcp_endpoint_, tls_endpoint_;
  asio::local::stream_protocol::endpoint unix_endpoint_;  ///< In the abstract namespace, which needs no clean-up.
};

/// Send or receive exactly `bytes`; `spin` polls instead of sleeping. False once the peer is gone.
bool send_all(int fd, const void* from, std::size_t bytes, bool spin);
bool receive_all(int fd, void* to, std::size_t bytes, bool spin);

}  // namespace kv
