#include "base/result.h"

#include <cerrno>
#include <ostream>

#include "base/error_words.h"

namespace kv {
namespace {

std::string words_of(int value) {
  switch (static_cast<Errc>(value)) {
    case Errc::kOutOfMemory: return "out of memory: nothing evictable is left";
    case Errc::kStaleLease: return "the lease has ended";
    case Errc::kCorruptBlock: return "block checksum mismatch";
    case Errc::kBadFrame: return "malformed frame";
    case Errc::kBadRequest: return "bad request";
    case Errc::kUnsupported: return "not supported by the peer";
    case Errc::kNoNamespace: return "unknown namespace";
    case Errc::kMismatch: return "the two sides disagree";
    case Errc::kTooLarge: return "over a limit";
    case Errc::kBusy: return "busy: a limit is reached";
    case Errc::kUnavailable: return "node unavailable";
    case Errc::kNoRegion: return "no such region";
    case Errc::kQuarantined: return "memory is quarantined";
    case Errc::kCancelled: return "cancelled";
    case Errc::kNotFound: return "not found";
    case Errc::kDiskFailed: return "the disk failed";
    case Errc::kNotAdmitted: return "not admitted: what the cache holds is worth more";
    case Errc::kOverQuota: return "a limit of the tenant is reached";
    case Errc::kPermissionDenied: return "permission denied by the node's policy";
    case Errc::kForked: return "the client belongs to the parent process: after fork() the child makes its own";
    case Errc::kDraining: return "the node is draining";
  }
  return "unknown kvstore error " + std::to_string(value);
}

}  // namespace

const boost::system::error_category& errc_category() noexcept {
  static const ErrorWords category("kvstore", &words_of, 0x6B7673746F726531);  // "kvstore1" in ASCII
  return category;
}

std::ostream& operator<<(std::ostream& out, const Failure& failure) {
  return out << failure.code << " (" << failure.text << ")";
}

void throw_exception_from_error(const Failure& failure, const boost::source_location& where) {
  boost::throw_with_location(boost::system::system_error(failure.code, failure.text), where);
}

/// Call right after the system call: nearly everything in between may change errno.
error_code last_errno() noexcept { return {errno, boost::system::system_category()}; }

}  // namespace kv
