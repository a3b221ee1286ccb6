// store/node/session/session_limits.h: what one session may ask for, and how long each thing may take.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kv {

/// Told to the client at hello, as far as it can act on it.
struct SessionLimits {
  std::uint32_t table_bytes_max = 4 << 20;
  std::uint64_t payload_bytes_max = 1ull << 30;  ///< Of one PutData; and so of a block.
  std::uint32_t requests_max = 1024;             ///< Gets being moved and puts, in flight.
  std::uint64_t region_bytes_max = 64ull << 30;  ///< Lent by one session.
  std::uint32_t region_count_max = 256;
  std::uint64_t queued_bytes_max = 64 << 20;  ///< Answers not yet taken by the client; then no further request is read.
  Duration hello_timeout = 10s;
  Duration frame_timeout = 5s;   ///< For a header and table to arrive, and for each further 64 KiB of payload.
  Duration write_timeout = 30s;  ///< Without the client taking a byte.
  /// A client that takes less a second of what is queued for it, over write_timeout, loses its session; 0: no bound.
  std::uint64_t read_rate_min = 1 << 20;
  /// Behind the end of the client's certificate: until then the session ends when nothing is under way, then at once.
  Duration certificate_grace = 300s;
  Duration get_timeout = 120s;  ///< From request to last byte; then it is ended as if cancelled.
  // Of a get whose bytes follow its answer: what goes into one frame, is queued ahead of the socket, is pinned ahead.
  std::uint64_t inline_frame_bytes = 8 << 20;  ///< At least one block.
  std::uint64_t inline_ahead_bytes = 16 << 20;
  std::uint64_t inline_window_bytes = 64 << 20;  ///< Or 1/16 of what was asked for, if that is more.
  Duration put_timeout = 30s;                    ///< From offer to last byte; staged memory is freed then.
  Duration put_wait_max = 5s;                    ///< For memory, whatever the client asks for.
  Duration spill_wait = 50ms;                    ///< A put waits so long for the disk before blocks are lost for it.
  Duration drop_wait = 2s;  ///< For the disk to keep a drop; then the answer says that it holds until the next start.
  Duration disk_timeout = 2s;  ///< For each block of a get that is on disk; then the answer ends before it.
};

}  // namespace kv
