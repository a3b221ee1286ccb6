// transport/frames/frame.h: the fixed header before every message, and its values.
//
//   0        4     5      6       8            16            20         24              32
//   | magic  | ver | type | flags | request id | table bytes | checksum | payload bytes | FlatBuffers table | payload |
//     "KVS1"                                                               all little endian
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace kv {

inline constexpr std::size_t kFrameHeaderBytes = 32;
inline constexpr std::uint32_t kFrameMagic = 0x3153564B;  ///< "KVS1" in memory order.
inline constexpr std::uint8_t kFrameVersion = 1;          ///< Version of the header's layout, in every frame.
inline constexpr std::uint8_t kWireVersion = 1;           ///< Version of tables and rules (docs/compatibility.md).

inline constexpr std::size_t kInstanceBytes = 16;  ///< Of HelloResponse.instance.

/// The request that a frame asks or answers. The value travels; append only.
enum class FrameType : std::uint8_t {
  kHello = 1,
  kOpen = 2,
  kMatch = 3,
  kGet = 4,
  kPut = 5,
  kPutData = 6,
  kCancel = 7,
  kRelease = 8,
  kTouch = 9,
  kRetain = 10,
  kUnretain = 11,
  kDrop = 12,
  kRegionAdd = 13,
  kRegionRemove = 14,
  kAdmin = 15,  ///< Questions of people and tools, as on the admin port.
  kPing = 16,
  kVerbsConnect = 17,  ///< Only to a node whose hello offers lanes.
  kSetMatch = 18,
  kSetGet = 19,
  kSetPut = 20,
  kHotRoots = 21,
  kClusterMap = 22,
  kContext = 23,
};
inline constexpr std::uint8_t kFrameTypeMax = 23;

inline constexpr std::size_t kHotBlocksMax = 4096;              ///< In one HotRootsResponse.
inline constexpr std::uint32_t kHotNodesMax = 4096;             ///< Of MatchRequest.nodes.
inline constexpr std::size_t kClusterNodesMax = 4096;           ///< In one ClusterMapResponse.
inline constexpr std::size_t kContextsPerAnswer = 128;          ///< In one ContextResponse.
inline constexpr std::size_t kContextHashesPerAnswer = 8192;    ///< The same.
inline constexpr std::size_t kAdminQuestionBytesMax = 8 << 10;  ///< Path and query of an AdminRequest.
inline constexpr std::size_t kAdminAnswerBytesMax = 8 << 20;    ///< AdminResponse.json.
const char* frame_type_name(FrameType type);                    ///< As in metrics: "hello", "put_data", ...

/// `act` of wire::ContextRequest. docs/wire.md lists the fields of each.
enum class ContextAct : std::uint8_t {
  kCreate = 1,
  kList = 2,
  kExtend = 3,
  kDelete = 4,
  kWarm = 5,
  kStopWarming = 6,
  kTell = 7
};

/// Flags of a frame. Unknown bits are an error.
enum FrameFlags : std::uint16_t {
  kFrameResponse = 1,  ///< From the node.
  kFrameMore = 2,      ///< More frames answer the same request.
  kFrameError = 4,     ///< The table is wire::Error; ends the request.
};
inline constexpr std::uint16_t kFrameFlagsAll = 7;

struct FrameHeader {
  FrameType type{};
  std::uint8_t version = kFrameVersion;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;
  std::uint32_t table_bytes = 0;
  std::uint64_t payload_bytes = 0;
};

/// Limits of a receiver, checked before it allocates or reads anything further.
struct FrameLimits {
  std::uint32_t table_bytes_max = 4 * 1024;  ///< Before hello; raised after.
  std::uint64_t payload_bytes_max = 0;       ///< Raised after hello; each request's handler checks the exact length.
};

/// Decodes and checks a header. Errors: kBadFrame (magic, unknown flag), kUnsupported (version, type), kTooLarge;
/// the text names the field, its value and the limit.
Result<FrameHeader, Failure> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                                 const FrameLimits& limits);
/// Encodes `header` (table_bytes is taken from `table`) with the checksum: the low 32 bits of XXH3-64 of the table,
/// seeded with the XXH3-64 of the header whose checksum field is 0.
void encode_frame_header(const FrameHeader& header, std::span<const std::byte> table,
                         std::span<std::byte, kFrameHeaderBytes> bytes);
bool frame_checksum_ok(std::span<const std::byte, kFrameHeaderBytes> header, std::span<const std::byte> table);

/// FlatBuffers verifies that a vector lies inside the table, but not that elements of 8 bytes lie at multiples of 8.
template <class Table>
bool vectors_are_aligned(const Table& table) {
  const auto is_aligned = [](const auto* vector) {
    return vector == nullptr || vector->size() == 0 || reinterpret_cast<std::uintptr_t>(vector->data()) % 8 == 0;
  };
  bool aligned = true;
  if constexpr (requires { table.offsets(); }) aligned = aligned && is_aligned(table.offsets());
  if constexpr (requires { table.segment_ends(); }) aligned = aligned && is_aligned(table.segment_ends());
  if constexpr (requires { table.checksums(); }) aligned = aligned && is_aligned(table.checksums());
  return aligned;  // the only vectors of 8-byte elements in wire.fbs
}

/// The table of a frame as `Table` (wire_generated.h), or nullptr if it fails verification. Valid as long as the bytes.
/// Requires: the bytes begin at a multiple of 8, as FrameReader provides.
template <class Table>
const Table* read_table(std::span<const std::byte> table) {
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(table.data()), table.size(), /*max_depth=*/8,
                                 /*max_tables=*/100'000);
  if (!verifier.VerifyBuffer<Table>(nullptr)) return nullptr;
  const Table* const root = flatbuffers::GetRoot<Table>(table.data());
  return vectors_are_aligned(*root) ? root : nullptr;
}

}  // namespace kv
