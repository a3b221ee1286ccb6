// base/: what every other folder needs, and nothing else. Start here.
//
// Knows no block, no store, no wire and no device. Stays tiny: what only two folders share lives in the lower of the
// two. Files, in reading order:
//   result.h     errors, bare or with words, and the one way to return them (this file)
//   assert.h     KV_ASSERT: stops a bug where it is first seen, in release builds too
//   clock.h      time that is handed in: the machine's, or a simulation's
//   event.h      one coroutine wakes another on the same executor
//   owner.h      keeps memory that somebody else works with
//   back_off.h   when to try again what has failed
//   numa.h       which memory and processors belong together, and how to stay with some of them
//   busy_poll.h  spins before sleeps: for events, and for a lock
//   checksum.h   the checksum that travels with every block
//   printable.h  foreign text, made safe for a log or a terminal
//   secret.h     text that must not stay in memory, nor get into a log: from secret_file.h, secret_command.h
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/result.hpp>
#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>

namespace kv {

namespace asio = boost::asio;
using boost::system::error_code;

/// Failures a caller acts on. A new one needs a caller that would act differently. The values travel on the wire
/// (docs/wire.md): append, never renumber. A deadline that passed is asio::error::timed_out.
enum class Errc {
  kOutOfMemory = 1,   ///< Nothing evictable is left in that tier. Shed load.
  kStaleLease = 2,    ///< The lease ended before the call. Look the blocks up again.
  kCorruptBlock = 3,  ///< Checksum mismatch. Drop the block, recompute it.
  kBadFrame = 4,      ///< The peer's bytes are no frame. The session is over; reconnect.
  kBadRequest = 5,    ///< A field holds a value that is not allowed. A bug in the caller; do not retry.
  kUnsupported = 6,   ///< A version, request or feature that the peer does not speak. Do without it.
  kNoNamespace = 7,   ///< The namespace handle is unknown to this node. Open the namespace again.
  kMismatch = 8,      ///< Two sides describe one thing differently: a namespace record, say. Fix the configuration.
  kTooLarge = 9,      ///< A length or count is over its limit. Split the request.
  kBusy = 10,         ///< A limit on sessions, leases or queues is reached. Back off, then retry.
  kUnavailable = 11,  ///< The node cannot be reached, or its circuit breaker is open. Recompute.
  kNoRegion = 12,     ///< The region is unknown, too small, or its memory cannot be lent. Add it again.
  kQuarantined = 13,  ///< A timed-out transfer may still touch this memory. Use other memory.
  kDraining = 14,     ///< The node is shutting down and takes no new work. Recompute.
  kCancelled = 15,    ///< The caller gave the request up; its memory is its own again.
  kNotFound = 16,     ///< The disk tier has nothing under that key, or no longer. A miss: recompute.
  kDiskFailed = 17,   ///< The disk tier could not be read or written. Recompute; look at the disk.
  kNotAdmitted = 18,  ///< What would have to go for the block is worth more to the cache. Do not retry.
  /// The node's policy does not give this client the right. Do without; a person has to mend it.
  kPermissionDenied = 19,
  kOverQuota = 20,  ///< A limit of the client's tenant is reached. Recompute; ask again later.

  // Of this process only, never on the wire: from kErrcLocal on.
  kForked = 1003,  ///< The client belongs to the parent, and this process is a child of fork(). Make a new client.
};
inline constexpr int kErrcLocal = 1000;  ///< A peer that sends this code or a higher one breaks the protocol.

const boost::system::error_category& errc_category() noexcept;
inline error_code make_error_code(Errc e) noexcept { return {static_cast<int>(e), errc_category()}; }

/// An error with the words that go with it: which field or device, what was found there, what is allowed. For calls
/// that are made now and then and fail for a reason that a person mends: configuration, opening, connecting, what a
/// peer sent. What is called for each block, piece or message returns the bare code, which allocates nothing.
struct Failure {
  Failure() = default;  ///< No error. Boost's result makes one where it holds a value.
  Failure(error_code error) : code(error), text(error.message()) {}
  Failure(Errc error) : Failure(make_error_code(error)) {}
  Failure(error_code error, std::string words) : code(error), text(std::move(words)) {}

  friend bool operator==(const Failure& failure, const error_code& other) { return failure.code == other; }
  friend std::ostream& operator<<(std::ostream& out, const Failure& failure);

  error_code code;   ///< To act on. To pass on only this is said in so many words: `.error().code`.
  std::string text;  ///< To show. Of an error, never empty.
};
/// What value() throws.
[[noreturn]] void throw_exception_from_error(const Failure& failure, const boost::source_location& where);

/// A value or the error that kept us from finding it out. A miss is a value. `E` is the bare code, or a Failure.
template <class T, class E = error_code>
struct [[nodiscard]] Result : boost::system::result<T, E> {
  using boost::system::result<T, E>::result;
};
template <class T>
using Async = asio::awaitable<Result<T>>;

/// The last `errno` as an error.
error_code last_errno() noexcept;

}  // namespace kv

namespace boost::system {
template <>
struct is_error_code_enum<kv::Errc> : std::true_type {};
}  // namespace boost::system
