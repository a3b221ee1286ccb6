#include "transport/verbs/verbs.h"

#include <algorithm>

#include "base/error_words.h"

namespace kv::verbs {
namespace {

std::string status_words(int value) {
  if (value < 0 || value >= kStatusCount) return "unknown completion status " + std::to_string(value);
  return std::string(name_of(static_cast<Status>(value)));
}

std::string count_text(const char* field, std::uint64_t value, std::uint64_t minimum, std::uint64_t maximum) {
  return std::string(field) + ": " + std::to_string(value) + ", allowed are " + std::to_string(minimum) + " to " +
         std::to_string(maximum);
}

/// `over`: the error for a value above the maximum.
Result<void, Failure> check_count(const char* field, std::uint64_t value, std::uint64_t minimum, std::uint64_t maximum,
                                  Errc over = Errc::kBadRequest) {
  if (value >= minimum && value <= maximum) return {};
  return Failure(value < minimum ? Errc::kBadRequest : over, count_text(field, value, minimum, maximum));
}

}  // namespace

std::string_view name_of(Status status) {
  static constexpr std::array<std::string_view, kStatusCount> kNames = {
      "success",
      "local length error",
      "local queue pair error",
      "local EE context error",
      "local protection error",
      "flushed",
      "memory window bind error",
      "bad response",
      "local access error",
      "remote invalid request",
      "remote access error",
      "remote operation error",
      "retries exceeded: the peer does not answer",
      "retries exceeded: the peer had no receive posted",
      "local RDD violation",
      "remote invalid RD request",
      "remote aborted",
      "invalid EE context number",
      "invalid EE context state",
      "fatal device error",
      "response timeout",
      "general error",
  };
  return static_cast<std::uint8_t>(status) < kStatusCount ? kNames[static_cast<std::uint8_t>(status)]
                                                          : "unknown status";
}

const boost::system::error_category& status_category() noexcept {
  static const ErrorWords category("verbs", &status_words, 0x6B7673745F776373);  // "kvst_wcs" in ASCII
  return category;
}

void Outstanding::end_first() {
  KV_ASSERT(!batches_.empty() && count_ >= batches_.front());  // else a completion came without a batch
  count_ -= batches_.front();
  batches_.pop_front();
}

Result<void, Failure> check_access(std::uint64_t bytes, std::uint64_t bytes_max, Access access) {
  if (bytes == 0) return Failure(Errc::kBadRequest, "bytes: 0, memory to register must not be empty");
  if (bytes > bytes_max) return Failure(Errc::kTooLarge, count_text("bytes", bytes, 1, bytes_max));
  if (access.remote_write && !access.local_write) {
    return Failure(Errc::kBadRequest, "access: remote_write without local_write");
  }
  return {};
}

Result<void, Failure> check_options(const QueuePairOptions& options, const DeviceInfo& device) {
  const DeviceLimits& limits = device.limits;
  for (const auto& checked : {
           check_count("request_count_max", options.request_count_max, 1, limits.request_count_max, Errc::kTooLarge),
           check_count("receive_count_max", options.receive_count_max, 0, limits.request_count_max, Errc::kTooLarge),
           check_count("piece_count_max", options.piece_count_max, 1, limits.piece_count_max, Errc::kTooLarge),
       }) {
    if (!checked) return checked;
  }
  if (std::ranges::find(device.ports, options.port, &PortInfo::number) != device.ports.end()) return {};
  return Failure(Errc::kBadRequest, "port: " + std::to_string(options.port) + ", " + device.name + " has no such port");
}

Result<void, Failure> check_path(const QueuePairAddress& peer, const Path& path, const DeviceLimits& limits) {
  constexpr std::uint64_t kMax24 = (1 << 24) - 1;  // queue pair and packet sequence numbers have 24 bits on the wire
  for (const auto& checked : {
           check_count("peer.number", peer.number, 0, kMax24),
           check_count("peer.first_psn", peer.first_psn, 0, kMax24),
           check_count("first_psn", path.first_psn, 0, kMax24),
           check_count("read_count", path.read_count, 1, limits.read_count_max),
           check_count("timeout_exponent", path.timeout_exponent, 1, 31),
           check_count("retry_count", path.retry_count, 1, 6),
           check_count("not_ready_retry_count", path.not_ready_retry_count, 0, 6),
       }) {
    if (!checked) return checked;
  }
  if (is_mtu(path.mtu_bytes)) return {};
  return Failure(Errc::kBadRequest, "mtu_bytes: " + std::to_string(path.mtu_bytes) + std::string(kMtusAllowed));
}

/// Shared, so that the fake refuses the same requests as a device. Two bits of the id are for providers (pack_id).
Result<void> check_batch(std::span<const Request> batch, std::uint64_t id, std::uint32_t piece_count_max,
                         std::uint32_t inline_bytes_max) {
  if (batch.empty() || id >> 62 != 0) return Errc::kBadRequest;
  for (const Request& request : batch) {
    if (request.pieces.size() > piece_count_max) return Errc::kBadRequest;
    std::uint64_t bytes = 0;
    for (const Piece& piece : request.pieces) bytes += piece.bytes;
    if (bytes > 1u << 31) return Errc::kBadRequest;  // the standard's limit for one message
    if (request.is_inline && (request.opcode == Opcode::kRead || bytes > inline_bytes_max)) return Errc::kBadRequest;
  }
  return {};
}

}  // namespace kv::verbs
