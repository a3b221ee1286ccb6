#include "transport/frames/frame_message.h"

#include <algorithm>

#include "base/assert.h"

namespace kv {

/// Padded to 8 bytes, so that the next frame's table is aligned in place: FlatBuffers reads it without another copy.
void append_frame(std::vector<std::byte>& message, const FrameHeader& header, std::span<const std::byte> table) {
  KV_ASSERT(header.payload_bytes == 0 && message.size() % 8 == 0);
  const std::size_t begin = message.size();
  message.resize(begin + message_frame_bytes(table.size()));  // new bytes are 0, so is the padding
  encode_frame_header(header, table,
                      std::span<std::byte, kFrameHeaderBytes>(message.data() + begin, kFrameHeaderBytes));
  std::ranges::copy(table, message.begin() + static_cast<std::ptrdiff_t>(begin + kFrameHeaderBytes));
}

/// Checks fields in the order of their use. A peer wrote all of them; asserts cover our own buffers only.
Result<FrameReader::Frame, Failure> take_frame(std::span<const std::byte>& message) {
  if (message.size() < kFrameHeaderBytes) return Failure(Errc::kBadFrame, "a message ends within a frame header");
  const std::span<const std::byte, kFrameHeaderBytes> head(message.data(), kFrameHeaderBytes);
  const auto header = decode_frame_header(head, {.table_bytes_max = kMessageBytesMax, .payload_bytes_max = 0});
  if (!header) return header.error();
  // Small enough not to overflow: decode_frame_header() has held table_bytes to kMessageBytesMax.
  const std::size_t bytes = message_frame_bytes(header->table_bytes);
  if (bytes > message.size()) {
    return Failure(Errc::kBadFrame, "table_bytes: " + std::to_string(header->table_bytes) + ", the message has " +
                                        std::to_string(message.size() - kFrameHeaderBytes));
  }
  KV_ASSERT(reinterpret_cast<std::uintptr_t>(message.data()) % 8 == 0);  // FlatBuffers reads in place
  const auto table = message.subspan(kFrameHeaderBytes, header->table_bytes);
  const auto padding = message.subspan(kFrameHeaderBytes + table.size(), bytes - kFrameHeaderBytes - table.size());
  if (!frame_checksum_ok(head, table)) {
    return Failure(Errc::kBadFrame, "checksum: header and table do not match it");
  }
  // The checksum does not cover the padding. Refusing nonzero bytes today leaves them free for a later meaning.
  if (std::ranges::any_of(padding, [](std::byte each) { return each != std::byte{0}; })) {
    return Failure(Errc::kBadFrame, "padding: not 0");
  }
  message = message.subspan(bytes);
  return FrameReader::Frame{*header, table};
}

}  // namespace kv
