#include "transport/frames/frame.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"

namespace kv {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little endian and copied as they lie");

constexpr std::size_t kChecksumOffset = 20;

// Fields are copied one by one: a struct would bring padding, and the bytes need not be aligned.

template <class T>
T load(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void store(std::span<std::byte, kFrameHeaderBytes> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::uint32_t checksum(std::span<const std::byte, kFrameHeaderBytes> header, std::span<const std::byte> table) {
  // The header's own hash seeds the table's, which covers both in two short passes without joining them.
  std::array<std::byte, kFrameHeaderBytes> copy;
  std::memcpy(copy.data(), header.data(), copy.size());
  std::memset(copy.data() + kChecksumOffset, 0, 4);
  const std::uint64_t seed = XXH3_64bits(copy.data(), copy.size());
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(table.data(), table.size(), seed));
}

}  // namespace

const char* frame_type_name(FrameType type) {
  static constexpr auto kNames = std::to_array<const char*>(
      {"unknown", "hello",         "open",      "match",    "get",     "put",        "put_data",      "cancel",
       "release", "touch",         "retain",    "unretain", "drop",    "region_add", "region_remove", "admin",
       "ping",    "verbs_connect", "set_match", "set_get",  "set_put", "hot_roots",  "cluster_map",   "context"});
  static_assert(kNames.size() == kFrameTypeMax + 1);
  const auto i = static_cast<std::size_t>(type);
  return kNames[i < kNames.size() ? i : 0];
}

Result<FrameHeader, Failure> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                                 const FrameLimits& limits) {
  const auto fail = [](Errc code, std::string what) { return Failure(code, std::move(what)); };
  // Lengths are checked before the caller allocates memory or waits for these bytes, the checksum later.
  if (load<std::uint32_t>(bytes, 0) != kFrameMagic) {
    return fail(Errc::kBadFrame, "magic: " + std::to_string(load<std::uint32_t>(bytes, 0)) + ", must be 'KVS1'");
  }
  FrameHeader header;
  header.version = load<std::uint8_t>(bytes, 4);
  header.flags = load<std::uint16_t>(bytes, 6);
  header.request_id = load<std::uint64_t>(bytes, 8);
  header.table_bytes = load<std::uint32_t>(bytes, 16);
  header.payload_bytes = load<std::uint64_t>(bytes, 24);
  const auto type = load<std::uint8_t>(bytes, 5);
  header.type = static_cast<FrameType>(type);
  if (header.version != kFrameVersion) {
    return fail(Errc::kUnsupported, "version: " + std::to_string(header.version) +
                                        " of the frame, known here: " + std::to_string(kFrameVersion));
  }
  if (type == 0 || type > kFrameTypeMax) {
    return fail(Errc::kUnsupported,
                "type: " + std::to_string(type) + ", known here: 1.." + std::to_string(kFrameTypeMax));
  }
  if ((header.flags & ~kFrameFlagsAll) != 0) {
    return fail(Errc::kBadFrame, "flags: " + std::to_string(header.flags) + ", known bits: 7");
  }
  if (header.table_bytes > limits.table_bytes_max) {
    return fail(Errc::kTooLarge, "table_bytes: " + std::to_string(header.table_bytes) + ", at most " +
                                     std::to_string(limits.table_bytes_max));
  }
  if (header.payload_bytes > limits.payload_bytes_max) {
    return fail(Errc::kTooLarge, "payload_bytes: " + std::to_string(header.payload_bytes) + ", at most " +
                                     std::to_string(limits.payload_bytes_max));
  }
  return header;
}

/// Bytes 20 to 23, the checksum, are written last. Both sides compute it with these four bytes as zeros.
void encode_frame_header(const FrameHeader& header, std::span<const std::byte> table,
                         std::span<std::byte, kFrameHeaderBytes> bytes) {
  KV_ASSERT(table.size() <= 0xFFFFFFFF);  // flags as given: tests write refused ones
  store(bytes, 0, kFrameMagic);
  store(bytes, 4, header.version);
  store(bytes, 5, static_cast<std::uint8_t>(header.type));
  store(bytes, 6, header.flags);
  store(bytes, 8, header.request_id);
  store(bytes, 16, static_cast<std::uint32_t>(table.size()));
  store(bytes, 24, header.payload_bytes);
  store(bytes, kChecksumOffset, checksum(bytes, table));  // it covers all the others
}

bool frame_checksum_ok(std::span<const std::byte, kFrameHeaderBytes> header, std::span<const std::byte> table) {
  return checksum(header, table) == load<std::uint32_t>(header, kChecksumOffset);
}

}  // namespace kv
