// tests/attack/attacker.h: a hostile session that knows the requests: frames as bytes, whole requests, and what came
// back.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "index/namespace_record.h"
#include "tests/e2e/raw_session.h"
#include "tests/transport/frame_bytes.h"
#include "transport/wire_generated.h"

namespace kv::attack {

using Hashes = std::span<const BlockHash>;
using Offsets = std::vector<std::uint64_t>;

inline std::vector<wire::Hash> wire_hashes(Hashes hashes) {
  std::vector<wire::Hash> all(hashes.size());
  if (!hashes.empty()) std::memcpy(static_cast<void*>(all.data()), hashes.data(), hashes.size_bytes());
  return all;
}

/// A handle of the session's own, and the name that each request has to say with it.
struct OpenedSpace {
  std::uint32_t number = 0;
  std::uint64_t check = 0;
};

// -- tables, for frame_bytes() and Attacker::send()
inline auto open_request(const NamespaceRecord& record) {
  return [text = record.text()](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); };
}
inline auto match_request(OpenedSpace space, Hashes hashes, bool lease = false,
                          std::vector<std::uint32_t> token_ids = {}) {
  return [=, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
    return wire::CreateMatchRequestDirect(b, space.number, &all, token_ids.empty() ? nullptr : &token_ids, lease, false,
                                          space.check);
  };
}
inline auto get_request(OpenedSpace space, Hashes hashes, std::uint32_t region = 0, Offsets offsets = {},
                        std::uint64_t lease = 0) {
  return [=, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
    return wire::CreateGetRequestDirect(b, space.number, &all, lease, region, region == 0 ? nullptr : &offsets, nullptr,
                                        2, 0, 0, space.check);
  };
}
inline auto put_request(OpenedSpace space, Hashes hashes, std::uint32_t region = 0, Offsets offsets = {},
                        std::uint64_t deadline_us = 0, std::vector<std::uint32_t> token_ids = {}) {
  return [=, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
    return wire::CreatePutRequestDirect(b, space.number, &all, nullptr, token_ids.empty() ? nullptr : &token_ids,
                                        region, region == 0 ? nullptr : &offsets, deadline_us, 0, space.check);
  };
}
inline auto put_data(std::uint32_t block_count, std::vector<std::uint64_t> checksums) {
  return [=](FlatBufferBuilder& b) { return wire::CreatePutDataDirect(b, block_count, &checksums); };
}
inline auto prefix_request(OpenedSpace space, Hashes hashes) {
  return [=, all = wire_hashes(hashes)](FlatBufferBuilder& b) {
    return wire::CreatePrefixRequestDirect(b, space.number, &all, space.check);
  };
}
inline auto cancel_request(std::uint64_t id) {
  return [=](FlatBufferBuilder& b) { return wire::CreateCancelRequest(b, id); };
}
inline auto release_request(std::uint64_t lease) {
  return [=](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); };
}
inline auto region_add(std::uint64_t bytes) {
  return [=](FlatBufferBuilder& b) { return wire::CreateRegionAddRequest(b, bytes); };
}
inline auto region_remove(std::uint32_t region) {
  return [=](FlatBufferBuilder& b) { return wire::CreateRegionRemoveRequest(b, region); };
}
inline auto stats_request() {
  return [](FlatBufferBuilder& b) { return wire::CreateAdminRequestDirect(b, "/stats.json"); };
}
inline auto ping_request() {
  return [](FlatBufferBuilder& b) { return wire::CreatePingRequest(b); };
}

/// The checksums that blocks of `byte` over and over have under these names.
inline std::vector<std::uint64_t> sums_of(const NamespaceRecord& record, Hashes hashes, std::byte byte) {
  const std::vector<std::byte> block(record.block_bytes(), byte);
  const std::size_t stripes = stripe_count(block.size());
  std::vector<std::uint64_t> sums(hashes.size() * stripes);
  for (std::size_t i = 0; i < hashes.size(); ++i)
    block_checksums(checksum_seed(record.id(), hashes[i]), block, std::span(sums).subspan(i * stripes, stripes));
  return sums;
}

class Attacker : public e2e::RawSession {
 public:
  using e2e::RawSession::RawSession;
  static Attacker greeted(const std::string& endpoint) {
    Attacker attacker(endpoint);
    if (!attacker.send_hello()) throw std::runtime_error("no hello");
    return attacker;
  }

  template <class Build>
  bool send(FrameType type, std::uint64_t id, Build build, std::span<const std::byte> payload = {}) {
    return send_bytes(frame_bytes(type, id, build, payload));
  }
  /// The last frame that answers `id`; what else comes is thrown away. Throws if the node ends the session first.
  Answer last_answer(std::uint64_t id) {
    for (;;) {
      auto answer = read_answer();
      if (!answer) throw std::runtime_error("the node ended the session without an answer");
      if (answer->header.request_id == id && answer->is_last()) return *std::move(answer);
    }
  }
  template <class Build>
  Answer ask(FrameType type, std::uint64_t id, Build build, std::span<const std::byte> payload = {}) {
    if (!send(type, id, build, payload)) throw std::runtime_error("the node takes nothing");
    return last_answer(id);
  }
  OpenedSpace open(const NamespaceRecord& record) {
    const Answer answer = ask(FrameType::kOpen, 2, open_request(record));
    const auto* response = answer.is_error() ? nullptr : read_table<wire::OpenResponse>(answer.table);
    if (response == nullptr) throw std::runtime_error("open: " + answer.error_text());
    return {response->space(), namespace_check(record.id())};
  }
  /// Stores blocks of `byte` over and over; how many of them were stored by it.
  std::uint32_t put(OpenedSpace space, const NamespaceRecord& record, Hashes hashes, std::byte byte,
                    std::vector<std::uint32_t> token_ids = {}, std::uint64_t deadline_us = 0) {
    constexpr std::uint64_t kId = 3;
    send(FrameType::kPut, kId, put_request(space, hashes, 0, {}, deadline_us, std::move(token_ids)));
    auto answer = read_answer();
    if (answer && !answer->is_last()) {
      const auto* want = read_table<wire::PutWant>(answer->table);
      const auto wanted = hashes.subspan(want->first_block(), want->block_count());
      const Bytes payload(wanted.size() * record.block_bytes(), byte);
      send(FrameType::kPutData, kId, put_data(want->block_count(), sums_of(record, wanted, byte)), payload);
      answer = read_answer();
    }
    if (!answer) throw std::runtime_error("put: the node ended the session");
    const auto* response = answer->is_error() ? nullptr : read_table<wire::PutResponse>(answer->table);
    return response == nullptr ? 0 : response->stored();
  }
  /// Lends a descriptor as so many bytes.
  Answer lend(int descriptor, std::uint64_t bytes, std::uint64_t id = 4) {
    send_with_descriptor(frame_bytes(FrameType::kRegionAdd, id, region_add(bytes)), descriptor);
    return last_answer(id);
  }
  /// The handle; throws if it was refused.
  std::uint32_t lent(int descriptor, std::uint64_t bytes) {
    const Answer answer = lend(descriptor, bytes);
    const auto* response = answer.is_error() ? nullptr : read_table<wire::RegionResponse>(answer.table);
    if (response == nullptr) throw std::runtime_error("region_add: " + answer.error_text());
    return response->region();
  }
  /// Throws if the session does not answer any more.
  void ping() {
    if (ask(FrameType::kPing, 99, ping_request()).is_error()) throw std::runtime_error("ping was refused");
  }
};

}  // namespace kv::attack
