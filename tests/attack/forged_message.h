// tests/attack/forged_message.h: any request with any table, behind a right header unless the header is what is wrong.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/attack/attacker.h"

namespace kv::attack {

/// What is wrong with a message.
enum class Forgery {
  kNothing,
  kEmptyTable,
  kCutTable,
  kGarbageTable,
  kTableOfAnotherRequest,
  kHugeCounts,    ///< Vectors that say they have more than there is.
  kChangedWords,  ///< As mangle().
  kPayload,       ///< Where most requests have none, and not what is due where one has.
  kResponseFlag,
  kMoreFlag,
  kErrorFlag,
  kUnknownFlag,
  kOldVersion,
  kNewVersion,
  kChecksum,
  kHugeTableBytes,    ///< The header claims them; they do not come.
  kHugePayloadBytes,  ///< The same.
};
inline constexpr int kForgeryCount = static_cast<int>(Forgery::kHugePayloadBytes) + 1;

/// Every type of request, and some numbers that are none.
inline std::vector<std::uint8_t> all_types() {
  std::vector<std::uint8_t> types;
  for (int type = 0; type <= kFrameTypeMax + 1; ++type) types.push_back(static_cast<std::uint8_t>(type));
  types.insert(types.end(), {99, 0x80, 0xFF});
  return types;
}

/// What a right message may name.
struct Scene {
  NamespaceRecord record;
  OpenedSpace space;
  OpenedSpace set = {};
  std::uint32_t region = 0;
  std::vector<BlockHash> chain;
  std::uint64_t lease = 0, id_in_flight = 0;
};

/// As a client that keeps the rules sends it. For hello and for what is no request: a hello's.
inline Bytes right_frame(std::uint8_t type, const Scene& scene, std::uint64_t id) {
  const auto frame_type = static_cast<FrameType>(type);
  const Offsets offsets(scene.chain.size());
  switch (frame_type) {
    case FrameType::kOpen: return frame_bytes(frame_type, id, open_request(scene.record));
    case FrameType::kMatch:
      if (id % 2 == 0) {  // the same of a client that knows of hot roots
        return frame_bytes(frame_type, id, [&, all = wire_hashes(scene.chain)](FlatBufferBuilder& b) {
          return wire::CreateMatchRequestDirect(b, scene.space.number, &all, nullptr, true, false, scene.space.check,
                                                nullptr, 8, static_cast<std::uint32_t>(all.size()), 1);
        });
      }
      return frame_bytes(frame_type, id, match_request(scene.space, scene.chain, true, {1, 2, 3}));
    case FrameType::kClusterMap:
      return frame_bytes(frame_type, id, [](FlatBufferBuilder& b) { return wire::CreateClusterMapRequest(b); });
    case FrameType::kContext:
      return frame_bytes(frame_type, id, [&, all = wire_hashes(scene.chain)](FlatBufferBuilder& b) {
        return wire::CreateContextRequestDirect(b, static_cast<std::uint8_t>(1 + id % 4), "x", scene.space.number,
                                                scene.space.check, &all, nullptr, nullptr, 1'000'000);
      });
    case FrameType::kHotRoots:
      return frame_bytes(frame_type, id, [&](FlatBufferBuilder& b) {
        return wire::CreateHotRootsRequest(b, scene.space.number, scene.space.check);
      });
    case FrameType::kGet:
      return frame_bytes(frame_type, id, get_request(scene.space, scene.chain, scene.region, offsets, scene.lease));
    case FrameType::kPut:
      return frame_bytes(frame_type, id, put_request(scene.space, scene.chain, scene.region, offsets, 1000));
    case FrameType::kPutData: return frame_bytes(frame_type, id, put_data(1, {1, 2, 3}));
    case FrameType::kCancel: return frame_bytes(frame_type, id, cancel_request(scene.id_in_flight));
    case FrameType::kRelease: return frame_bytes(frame_type, id, release_request(scene.lease));
    case FrameType::kTouch:
    case FrameType::kRetain:
    case FrameType::kUnretain:
    case FrameType::kDrop: return frame_bytes(frame_type, id, prefix_request(scene.space, scene.chain));
    case FrameType::kRegionAdd: return frame_bytes(frame_type, id, region_add(4096));
    case FrameType::kRegionRemove: return frame_bytes(frame_type, id, region_remove(scene.region));
    case FrameType::kAdmin:
      if (id % 2 == 0) return frame_bytes(frame_type, id, stats_request());
      return frame_bytes(frame_type, id, [&](FlatBufferBuilder& b) {
        if (id % 4 == 1) return wire::CreateAdminRequestDirect(b, "/drain", "node=node&drain=true");
        return wire::CreateAdminRequestDirect(b, "/erase", "tenant=x");
      });
    case FrameType::kPing: return frame_bytes(frame_type, id, ping_request());
    case FrameType::kSetMatch:
      return frame_bytes(frame_type, id, [&, all = wire_hashes(scene.chain)](FlatBufferBuilder& b) {
        const std::vector<std::uint32_t> groups = {static_cast<std::uint32_t>(scene.chain.size())};
        return wire::CreateSetMatchRequestDirect(b, scene.set.number, &all, true, true, scene.set.check, &groups);
      });
    case FrameType::kSetGet:
      return frame_bytes(frame_type, id, [&, all = wire_hashes(scene.chain)](FlatBufferBuilder& b) {
        const std::vector<std::uint32_t> rooms(scene.chain.size(), 100),
            groups = {static_cast<std::uint32_t>(scene.chain.size())};
        return wire::CreateSetGetRequestDirect(b, scene.set.number, &all, scene.lease, scene.region,
                                               scene.region == 0 ? nullptr : &offsets, &rooms, 2, 0, 0, scene.set.check,
                                               &groups);
      });
    case FrameType::kSetPut:
      return frame_bytes(frame_type, id, [&, all = wire_hashes(scene.chain)](FlatBufferBuilder& b) {
        const std::vector<std::uint32_t> lengths(scene.chain.size(), 100),
            groups = {static_cast<std::uint32_t>(scene.chain.size())};
        return wire::CreateSetPutRequestDirect(b, scene.set.number, &all, &lengths, scene.region,
                                               scene.region == 0 ? nullptr : &offsets, 1000, 0, scene.set.check,
                                               &groups);
      });
    case FrameType::kVerbsConnect:
      return frame_bytes(frame_type, id, [](FlatBufferBuilder& b) {
        const std::vector<std::uint8_t> gid(16, 1);
        const std::vector<flatbuffers::Offset<wire::LaneOffer>> offers = {
            wire::CreateLaneOffer(b, 0, wire::CreateQueuePairEndDirect(b, 5, 6, 0, &gid, 1024, 1))};
        return wire::CreateVerbsConnectRequestDirect(b, &offers);
      });
    default:
      return frame_bytes(frame_type, id, [](FlatBufferBuilder& b) {
        return wire::CreateHelloRequestDirect(b, kWireVersion, kWireVersion, "forger");
      });
  }
}

/// The message of `type` with something wrong with it. Whatever is random comes from `random`.
inline Bytes forge(std::uint8_t type, Forgery forgery, const Scene& scene, std::uint64_t id, std::mt19937_64& random) {
  const Bytes frame = right_frame(type, scene, id);
  Bytes table(frame.begin() + kFrameHeaderBytes, frame.end());
  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.request_id = id;
  Bytes payload;
  switch (forgery) {
    case Forgery::kEmptyTable: table.clear(); break;
    case Forgery::kCutTable: table.resize(random() % table.size()); break;
    case Forgery::kGarbageTable:
      table.resize(random() % 300);
      for (auto& byte : table) byte = static_cast<std::byte>(random());
      break;
    case Forgery::kTableOfAnotherRequest: {
      const Bytes other = right_frame(static_cast<std::uint8_t>(1 + random() % kFrameTypeMax), scene, id);
      table.assign(other.begin() + kFrameHeaderBytes, other.end());
      break;
    }
    case Forgery::kHugeCounts: {
      const std::array<std::uint32_t, 4> counts = {0xFFFFFFFF, 0x7FFFFFFF, 0x08000000, 100'000};
      for (std::size_t at = 0; at + 4 <= table.size(); at += 4) {
        std::uint32_t word;
        std::memcpy(&word, table.data() + at, 4);
        if (word != 0 && word == scene.chain.size()) std::memcpy(table.data() + at, &counts[random() % 4], 4);
      }
      break;
    }
    case Forgery::kChangedWords: {
      Bytes mangled = frame;
      mangle(mangled, id, random);
      table.assign(mangled.begin() + kFrameHeaderBytes, mangled.end());
      break;
    }
    case Forgery::kPayload: payload.resize(1 + random() % 5000); break;
    case Forgery::kResponseFlag: header.flags = kFrameResponse; break;
    case Forgery::kMoreFlag: header.flags = kFrameMore; break;
    case Forgery::kErrorFlag: header.flags = kFrameError | kFrameResponse; break;
    case Forgery::kUnknownFlag: header.flags = static_cast<std::uint16_t>(8u << random() % 13); break;
    case Forgery::kOldVersion: header.version = 0; break;
    case Forgery::kNewVersion: header.version = kFrameVersion + 1; break;
    default: break;
  }
  header.payload_bytes = forgery == Forgery::kHugePayloadBytes ? ~std::uint64_t{0} >> random() % 20 : payload.size();
  Bytes bytes(kFrameHeaderBytes);
  const std::span<std::byte, kFrameHeaderBytes> head(bytes.data(), kFrameHeaderBytes);
  encode_frame_header(header, table, head);
  if (forgery == Forgery::kChecksum) bytes[20] ^= std::byte{0x40};
  if (forgery == Forgery::kHugeTableBytes) {
    const auto claimed = static_cast<std::uint32_t>(0xFFFFFFFF >> random() % 7);
    std::memcpy(bytes.data() + 16, &claimed, sizeof claimed);
  }
  bytes.insert(bytes.end(), table.begin(), table.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

}  // namespace kv::attack
