// base/: what every other folder needs. Start here.
//
// Independent of blocks, store, wire and devices. It stays tiny: code shared by only two folders lies in the lower of
// the two. Files, in reading order:
//   result.h     errors, with or without a text, and the one way to return them (this file)
//   error_words.h  the texts of a family of errors
//   assert.h     KV_ASSERT: stops a bug at its first sign, in release builds too
//   clock.h      injected time: the machine's, or a simulation's
//   event.h      one coroutine wakes another on the same executor
//   owner.h      keeps memory that other code works with
//   back_off.h   when to retry after a failure
//   numa.h       NUMA nodes: their memory and processors, and how to stay on some of them
//   busy_poll.h  spins before sleeps: for events, and for a lock
//   checksum.h   the checksum that travels with every block
//   descriptor.h an owned file descriptor
//   kernel_files.h  values of the kernel's small files in /proc and /sys
//   text/        printable.h: foreign text, made safe for a log or a terminal; numbers, hex digits and lists as text, and back
//   secret/      secret.h: text to keep out of memory dumps and logs: from secret_file.h, secret_command.h
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
  kBadFrame = 4,      ///< The peer's bytes are not a frame. The session is over; reconnect.
  kBadRequest = 5,    ///< A field has a forbidden value. A bug in the caller; do not retry.
  kUnsupported = 6,   ///< The peer lacks this version, request or feature. Do without it.
  kNoNamespace = 7,   ///< The namespace handle is unknown to this node. Open the namespace again.
  kMismatch = 8,      ///< Two sides describe one thing differently, such as a namespace record. Fix the configuration.
  kTooLarge = 9,      ///< A length or count is over its limit. Split the request.
  kBusy = 10,         ///< A limit on sessions, leases or queues is reached. Back off, then retry.
  kUnavailable = 11,  ///< The node cannot be reached, or its circuit breaker is open. Recompute.
  kNoRegion = 12,     ///< The region is unknown, too small, or its memory cannot be lent. Add it again.
  kQuarantined = 13,  ///< A timed-out transfer may still touch this memory. Use other memory.
  kDraining = 14,     ///< The node is shutting down. Recompute.
  kCancelled = 15,    ///< The caller gave up the request; its memory is its own again.
  kNotFound = 16,     ///< The disk tier does not, or no longer, have the key. A miss: recompute.
  kDiskFailed = 17,   ///< The disk tier could not be read or written. Recompute; look at the disk.
  kNotAdmitted = 18,  ///< The blocks that would have to go are worth more to the cache. Do not retry.
  /// The node's policy denies this client the right. Do without; a person has to change the policy.
  kPermissionDenied = 19,
  kOverQuota = 20,  ///< A limit of the client's tenant is reached. Recompute; ask again later.

  // From kErrcLocal on: only in this process, never on the wire.
  kForked = 1003,  ///< The client belongs to the parent, and this process is a child of fork(). Make a new client.
};
inline constexpr int kErrcLocal = 1000;  ///< A peer that sends this code or a higher one breaks the protocol.

const boost::system::error_category& errc_category() noexcept;
inline error_code make_error_code(Errc e) noexcept { return {static_cast<int>(e), errc_category()}; }

/// An error with its text: which field or device, the value found, the allowed values. For infrequent calls whose
/// failures a person fixes: configuration, opening, connecting, a peer's message. Calls made for each block, piece or
/// message return the bare code, which does not allocate.
struct Failure {
  Failure() = default;  ///< Success. Boost's result makes one where it holds a value.
  Failure(error_code error) : code(error), text(error.message()) {}
  Failure(Errc error) : Failure(make_error_code(error)) {}
  Failure(error_code error, std::string words) : code(error), text(std::move(words)) {}

  friend bool operator==(const Failure& failure, const error_code& other) { return failure.code == other; }
  friend std::ostream& operator<<(std::ostream& out, const Failure& failure);

  error_code code;   ///< To act on. Passing on only this is explicit: `.error().code`.
  std::string text;  ///< To show. Never empty in an error.
};
/// Thrown by value().
[[noreturn]] void throw_exception_from_error(const Failure& failure, const boost::source_location& where);

/// A value, or the error that prevented it. A miss is a value. `E` is the bare code, or a Failure.
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
