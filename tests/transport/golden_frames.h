// tests/transport/golden_frames.h: one frame of every operation, request and answer; their bytes are golden/NAME.hex.
// From the first release on those never change: a peer of the version before must read them (docs/compatibility.md).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "tests/transport/frame_bytes.h"
#include "transport/frames/frame.h"
#include "transport/wire_generated.h"

namespace kv::golden {

constexpr std::uint16_t kRequest = 0, kAnswer = kFrameResponse, kPart = kFrameResponse | kFrameMore,
                        kFailure = kFrameResponse | kFrameError;

struct Frame {
  FrameType type;
  std::uint16_t flags;
  std::uint64_t request_id;
  std::string payload;
  std::function<flatbuffers::Offset<void>(FlatBufferBuilder&)> build;
  std::function<void(std::span<const std::byte>)> check;  ///< The decoded table says what was built.
};

class Frames {
 public:
  /// `name` begins with the operation and a dot. `build` makes the table, `check` looks at it.
  template <class Table, class Build, class Check>
  void add(const std::string& name, std::uint16_t flags, std::uint64_t request_id, Build build, Check check,
           std::string payload = "") {
    by_name[name] = {type_of(name),
                     flags,
                     request_id,
                     std::move(payload),
                     [build](FlatBufferBuilder& builder) { return build(builder).Union(); },
                     [check](std::span<const std::byte> bytes) {
                       const auto* table = read_table<Table>(bytes);
                       ASSERT_NE(table, nullptr);
                       check(*table);
                     }};
  }

  std::map<std::string, Frame> by_name;

 private:
  static FrameType type_of(const std::string& name) {
    for (int type = 1; type <= kFrameTypeMax; ++type) {
      if (name.starts_with(std::string(frame_type_name(static_cast<FrameType>(type))) + ".")) {
        return static_cast<FrameType>(type);
      }
    }
    KV_ASSERT(false);
    return {};
  }
};

inline wire::Hash hash_from(std::uint8_t first) {
  std::array<std::uint8_t, 32> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  wire::Hash hash;
  std::memcpy(&hash, bytes.data(), sizeof hash);
  return hash;
}

inline const std::vector<wire::Hash> kHashes = {hash_from(1), hash_from(101)};
inline const std::vector<std::uint32_t> kPositions = {3, 9};
inline const std::vector<std::uint64_t> kOffsets = {0, 131072};
constexpr std::uint64_t kCheck = 0x0706050403020100;

inline auto empty(FlatBufferBuilder& builder) { return wire::CreateEmptyResponse(builder); }
inline constexpr auto nothing_more = [](const auto&) {};

void add_chain_frames(Frames& frames);
void add_set_frames(Frames& frames);
void add_context_frames(Frames& frames);
void add_session_frames(Frames& frames);

}  // namespace kv::golden
