// tests/transport/frame_bytes.h: frames as bytes, good ones and ones that were spoiled.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "transport/frames/frame.h"

namespace kv {

using flatbuffers::FlatBufferBuilder;
using Bytes = std::vector<std::byte>;

/// The bytes of a frame, as a well-behaved client sends them.
template <class Build>
Bytes frame_bytes(FrameType type, std::uint64_t id, Build build, std::span<const std::byte> payload = {},
                  std::uint16_t flags = 0) {
  FlatBufferBuilder builder;
  builder.Finish(build(builder));
  const auto table = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  FrameHeader header;
  header.type = type;
  header.request_id = id;
  header.flags = flags;
  header.payload_bytes = payload.size();
  Bytes bytes(kFrameHeaderBytes);
  encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
  bytes.insert(bytes.end(), table.begin(), table.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// Changes some numbers in the table of `frame`, gives it another request id, and makes its checksum right again, so
/// that what is behind it is reached.
inline void mangle(Bytes& frame, std::uint64_t id, std::mt19937_64& random) {
  const std::size_t table_bytes = frame.size() - kFrameHeaderBytes;
  for (std::size_t i = 0, changes = 1 + random() % 4; i < changes; ++i) {
    const std::uint64_t values[] = {random(), 0, UINT64_MAX, 1, 0x7FFFFFFF, 0x80000000};
    const std::uint64_t value = values[random() % std::size(values)];
    const std::size_t width = std::size_t{1} << (random() % 4);
    if (width > table_bytes) continue;
    std::memcpy(frame.data() + kFrameHeaderBytes + random() % (table_bytes - width + 1), &value, width);
  }
  FrameHeader header;
  header.type = static_cast<FrameType>(frame[5]);
  header.request_id = id;
  encode_frame_header(header, std::span(frame).subspan(kFrameHeaderBytes),
                      std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
}

}  // namespace kv
