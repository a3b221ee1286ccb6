// transport/: moves bytes between processes. Start here.
//
// Independent of the block index, the store and CUDA. Files, in reading order:
//   endpoint.h        tcp://, tls://, unix:// and sim:// addresses
//   stream.h          a byte stream: TCP or Unix socket (socket_network.cc), or simulated (this file)
//   wire.fbs          the tables of requests and answers
//   frames/           frame.h: the header before every table
//                     frame_reader.h: stream -> frames; payload goes straight into its destination
//                     frame_writer.h: frames -> stream; payload leaves straight from its source
//                     block_sink.h: lands blocks from a stream, verified stripe by stripe
//                     frame_message.h: frames without a stream, in messages (verbs/verbs_messages.h)
//   shared_memory.h   a region of kind memfd, both sides
//   tls/tls.h         TLS over any stream, a folder of its own: certificates, handshakes, peer identity
//   verbs/verbs.h     RDMA, a folder of its own: devices, registered memory, moves, messages
//   ibverbs/          verbs.h on libibverbs, as a module that is loaded on demand
// and beside the path:
//   resolver.h        host names -> addresses; connect_first.h: a connection to one of several
//   token.h           secrets that identify a client to a node; slow_calls.h: slow calls, away from event loops
//   forked.h          limits for a child of fork()
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "transport/endpoint.h"

namespace kv {

class SlowCalls;

/// A connected byte stream. Reads and writes never block and never suspend: they move the bytes that fit now, and the
/// wait calls suspend until another try may succeed. So the fast path allocates no memory, and no operation holds the
/// caller's memory while a coroutine sleeps: buffers may be given up at any suspension point. Thread safety: none; all
/// calls on one executor. One reader and one writer coroutine may wait at the same time.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Returns the bytes moved, at least 1. Errors: would_block, eof (peer closed), else the stream is broken.
  virtual Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) = 0;
  virtual Result<std::size_t> try_write(std::span<const asio::const_buffer> from) = 0;
  /// Completes when another try may succeed or fail; may be spurious. Errors: operation_aborted after close().
  virtual Async<void> wait_readable() = 0;
  virtual Async<void> wait_writable() = 0;
  /// Ends pending waits with operation_aborted. Later calls fail. Idempotent.
  virtual void close() = 0;

  /// An encrypting stream accepts bytes before the socket does, and holds back the rest that the socket refused. Held
  /// bytes count as written: they leave with the next try_write or try_flush, or with close() if there is room.
  virtual std::size_t held_bytes() const { return 0; }
  /// Sends held bytes. Errors: would_block while some are left, else the stream is broken.
  virtual Result<void> try_flush() { return {}; }

  /// Whether handshake() comes before the first read or write.
  virtual bool needs_handshake() const { return false; }
  /// Each side proves its identity. Has no deadline of its own: close() ends it. Errors: why one side refuses the
  /// other, in words for a person (transport/tls/tls.h); then the stream is broken. `helpers`, which outlives the
  /// stream, does the arithmetic (about 1 ms with elliptic-curve certificates); null: the caller's thread does.
  virtual Async<void> handshake(SlowCalls* helpers) {
    (void)helpers;
    co_return Result<void>();
  }
  /// Proved names, each "uri:NAME" or "dns:NAME"; printable. Empty before handshake() and without proof.
  virtual std::vector<std::string> peer_names() const { return {}; }
  /// Earliest expiry in the certificate chain that the peer has shown; nullopt: no certificate.
  virtual std::optional<std::chrono::system_clock::time_point> peer_certificate_end() const { return std::nullopt; }

  /// How the bytes are protected from eavesdroppers.
  enum class Protection : std::uint8_t {
    kNone,   ///< Unprotected: anyone on the network may read them.
    kLocal,  ///< The kernel: a Unix socket, or loopback.
    kTls     ///< Encryption, and peer_names() are proved.
  };
  virtual Protection protection() const { return Protection::kNone; }
  /// The process that connected, as the kernel reports it for an accepted Unix socket. Its group is the primary one.
  struct User {
    std::uint32_t uid = 0, gid = 0;
  };
  virtual std::optional<User> peer_user() const { return std::nullopt; }

  /// Unix sockets pass descriptors along with the bytes: one goes with the first byte of the next try_write. A receiver
  /// keeps one until it is taken, and closes any further ones.
  virtual bool can_pass_descriptors() const { return false; }
  virtual void send_descriptor(int fd) { (void)fd; }             ///< Borrowed until the next successful try_write.
  virtual Descriptor take_descriptor() { return Descriptor(); }  ///< Empty if none has come.

  virtual std::string peer() const = 0;  ///< For logs.
  /// Limits count peers by this group, which the peer cannot choose: a Unix user, or an address.
  virtual std::string peer_group() const { return peer(); }
};

class Listener {
 public:
  virtual ~Listener() = default;
  /// The next connection, on `executor`. Errors: operation_aborted after close(); EMFILE and such: pause and retry.
  virtual Async<std::unique_ptr<Stream>> accept(asio::any_io_executor executor) = 0;
  virtual void close() = 0;
  virtual Endpoint endpoint() const = 0;  ///< With the real port if 0 was requested.
};

/// Creates streams: from the operating system, or the simulation. Outlives them and its listeners.
class Network {
 public:
  virtual ~Network() = default;
  /// Errors: system errors of bind and listen; kUnsupported for a scheme outside this network.
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, asio::any_io_executor executor) = 0;
  /// A stream on `executor`, which also runs this. Without a deadline: cancelling it gives operation_aborted.
  virtual Async<std::unique_ptr<Stream>> connect(Endpoint endpoint, asio::any_io_executor executor) = 0;
};

class Resolver;

/// Sockets of this host. Literal addresses and "localhost" are used without a lookup. Sockets are closed in a child of
/// fork() and at exec(), and shut down when closed here.
Network& socket_network();
/// The same with the given resolver.
std::unique_ptr<Network> make_socket_network(std::shared_ptr<Resolver> resolver);

}  // namespace kv
