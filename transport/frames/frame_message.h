// transport/frames/frame_message.h: whole frames in one message, for transports of messages (verbs/verbs_messages.h).
//
//   | header 32 | table | 0 to a multiple of 8 | header 32 | table | 0 ...       frames as transport/frames/frame.h draws them
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/frames/frame.h"
#include "transport/frames/frame_reader.h"

namespace kv {

inline constexpr std::uint32_t kMessageBytesMax = 8 * 1024;  ///< Fixed, the same on both sides.
inline constexpr std::uint32_t kMessageCountMax = 64;        ///< Most messages that a side may offer to have in flight.
/// Bound on a get by message, over all blocks: they go right before its answer, and other answers wait for them.
inline constexpr std::uint32_t kMessageGetBytesMax = 256 * 1024;

/// Bytes of a frame with such a table in a message.
constexpr std::size_t message_frame_bytes(std::size_t table_bytes) {
  return (kFrameHeaderBytes + table_bytes + 7) / 8 * 8;
}
/// Requires header.payload_bytes == 0.
void append_frame(std::vector<std::byte>& message, const FrameHeader& header, std::span<const std::byte> table);
/// Takes the first frame off `message`, which begins at a multiple of 8; its table lies in the message. Errors: as
/// decode_frame_header; kBadFrame for a wrong checksum, a truncated frame, or padding that is not 0.
Result<FrameReader::Frame, Failure> take_frame(std::span<const std::byte>& message);

}  // namespace kv
