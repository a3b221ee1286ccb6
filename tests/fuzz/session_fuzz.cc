// A client that has said hello and then does as its bytes say: any table for any operation behind a right checksum, raw
// bytes, requests that are nearly right, in any order and at any time. Afterwards nothing is left of it.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/session/session.h"
#include "tests/fakes/verbs_fake.h"
#include "tests/fuzz/input.h"
#include "tests/node/limits_change.h"
#include "tests/transport/sim_world.h"
#include "transport/frames/frame_message.h"
#include "transport/shared_memory.h"
#include "transport/verbs/verbs_messages.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {
namespace {

using flatbuffers::FlatBufferBuilder;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBlockBytes = 4096;

/// What lives longer than one input: the metrics are costly to make, and the memory to lend costs system calls.
struct Lasting {
  NodeMetrics metrics{"fuzz"};
  std::unique_ptr<SharedMemory> memory = SharedMemory::create(16 * kBlockBytes).value();
  NamespaceRecord record = [] {
    return NamespaceRecord::from_fields({{"model", "m"}, {"block_size", "2"}, {"block_bytes", "4096"}}).value();
  }();
  NamespaceRecord set = [] {
    return NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "4096"}}).value();
  }();
};
Lasting& lasting() {
  spdlog::set_level(spdlog::level::off);
  static Lasting instance;
  return instance;
}

/// The client's end of a lane for messages.
class MessageEnd {
 public:
  MessageEnd(SimWorld& world, verbs::FakeVerbs& verbs)
      : world_(world), devices_(verbs::open_devices(verbs, {.names = {"fake1"}}).value().devices) {
    auto queue = devices_[0].device->create_completion_queue(256).value();
    loop_ = std::make_unique<verbs::CompletionLoop>(world.io.get_executor(), std::move(queue));
    messages_ = verbs::VerbsMessages::create(*devices_[0].domain, loop_->queue(),
                                             {.count = 16, .remote = {.remote_write = true}})
                    .value();
    messages_->attach(
        *loop_, world_.clock, [](std::span<const std::byte>) {}, [](error_code) {});
    asio::co_spawn(world.io, loop_->run(), asio::detached);
  }
  ~MessageEnd() {
    messages_.reset();
    loop_->stop();
    world_.run_for(1ms);
  }
  verbs::QueuePairAddress address() const {
    return address_of(devices_[0].attach().value(), messages_->queue_pair().number(), kPsn);
  }
  void connect(const verbs::QueuePairAddress& node) {
    const auto path = path_to(devices_[0].attach().value(), kPsn, node);
    KV_ASSERT(messages_->queue_pair().connect(node, path));
  }
  void send(std::span<const std::byte> message) { (void)messages_->send(message); }

 private:
  static constexpr std::uint32_t kPsn = 5;
  SimWorld& world_;
  std::vector<verbs::OpenDevice> devices_;
  std::unique_ptr<verbs::CompletionLoop> loop_;
  std::unique_ptr<verbs::VerbsMessages> messages_;
};

constexpr std::uint32_t kMessageLane = 2;

class HostileClient {
 public:
  HostileClient(SimWorld& world, Stream& stream, verbs::FakeVerbs& verbs, Input& input, bool is_set)
      : world_(world),
        stream_(stream),
        verbs_(verbs),
        input_(input),
        is_set_(is_set),
        record_(is_set ? lasting().set : lasting().record) {}

  void run() {
    frame(FrameType::kHello,
          [&](FlatBufferBuilder& b) { return wire::CreateHelloRequest(b, kWireVersion, kWireVersion); });
    open(record_.text());
    if (input_.flag()) connect_messages();
    while (!input_.empty()) step();
    flush();
  }
  /// Reads and forgets what the node says.
  void read_some() {
    std::byte scratch[4096];
    const asio::mutable_buffer buffer = asio::buffer(scratch);
    while (stream_.try_read(std::span(&buffer, 1))) {
    }
  }

 private:
  static BlockHash name(std::size_t chain, std::size_t index) {
    BlockHash hash;
    std::memset(hash.bytes.data(), static_cast<int>(1 + chain * 40 + index), hash.bytes.size());
    return hash;
  }
  std::vector<BlockHash> chain() {
    const std::size_t which = input_.below(3), shared = input_.below(8), count = input_.below(9);
    std::vector<BlockHash> hashes;
    for (std::size_t i = 0; i < count; ++i) hashes.push_back(name(i < shared ? 0 : which, i));
    return hashes;
  }
  static std::vector<wire::Hash> to_wire(const std::vector<BlockHash>& hashes) {
    std::vector<wire::Hash> all(hashes.size());
    if (!hashes.empty()) std::memcpy(static_cast<void*>(all.data()), hashes.data(), 32 * hashes.size());
    return all;
  }
  /// Of a put as many as hashes, of a match one more; none, or a count that is wrong.
  std::vector<wire::ExtraDigest> extras(std::size_t hash_count) {
    std::vector<wire::ExtraDigest> all(input_.below(4) == 0 ? hash_count + input_.below(3) : 0);
    for (auto& each : all) {
      const std::array<std::uint8_t, 16> bytes{static_cast<std::uint8_t>(input_.below(2))};
      each = wire::ExtraDigest(bytes);
    }
    return all;
  }
  std::vector<std::uint32_t> small_numbers(std::size_t count_max) {
    std::vector<std::uint32_t> all(input_.below(count_max + 1));
    for (auto& each : all) each = static_cast<std::uint32_t>(input_.below(4));
    return all;
  }
  std::vector<std::uint64_t> offsets(std::size_t count) {
    std::vector<std::uint64_t> all(input_.below(8) == 0 ? input_.below(9) : count);
    for (auto& each : all) each = input_.below(16) == 0 ? input_.number(8) : input_.below(64) * 1024;
    return all;
  }
  std::uint32_t space() {
    check_ = namespace_check(record_.id());
    if (input_.below(8) != 0) return 1;
    const auto any = static_cast<std::uint32_t>(input_.number(4));
    if (any % 2 == 1) check_ = any;
    return any % 3;
  }
  std::uint32_t region() { return input_.flag() ? 0 : static_cast<std::uint32_t>(input_.below(4)); }
  std::uint64_t id() { return input_.below(6); }

  void raw(FrameType type, std::uint16_t flags, std::uint64_t request_id, std::span<const std::byte> table,
           std::size_t payload_bytes) {
    FrameHeader header;
    header.type = type;
    header.flags = flags;
    header.request_id = request_id;
    header.payload_bytes = payload_bytes;
    if (messages_ && payload_bytes == 0 && input_.below(3) == 0) {
      Bytes message;
      append_frame(message, header, table);
      if (input_.below(16) == 0) message[input_.below(message.size())] ^= std::byte{1};
      if (input_.below(16) == 0) message.resize(input_.below(2 * message.size()) + 1);
      return messages_->send(message);
    }
    Bytes head(kFrameHeaderBytes);
    encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(head.data(), kFrameHeaderBytes));
    out_.insert(out_.end(), head.begin(), head.end());
    out_.insert(out_.end(), table.begin(), table.end());
  }
  template <class Build>
  void frame(FrameType type, Build build, std::uint64_t request_id = 0, std::span<const std::byte> payload = {}) {
    FlatBufferBuilder builder;
    builder.Finish(build(builder));
    raw(type, 0, request_id, std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())), payload.size());
    out_.insert(out_.end(), payload.begin(), payload.end());
  }
  void open(const std::string& record) {
    frame(FrameType::kOpen, [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, record.c_str()); });
  }
  void flush() {
    const asio::const_buffer rest = asio::buffer(out_);
    std::size_t at = 0;
    for (int i = 0; i < 64 && at < out_.size(); ++i) {
      const asio::const_buffer part = rest + at;
      const auto count = stream_.try_write(std::span(&part, 1));
      if (count) at += *count;
      if (!count && count.error() != asio::error::would_block) break;
      world_.run_for(1ms);
      if (reads_) read_some();
    }
    out_.clear();
  }

  /// Properly: what comes over it later is what this is about.
  void connect_messages() {
    auto made = std::make_unique<MessageEnd>(world_, verbs_);
    frame(FrameType::kVerbsConnect, [&](FlatBufferBuilder& b) {
      const std::vector<flatbuffers::Offset<wire::LaneOffer>> offers = {
          wire::CreateLaneOffer(b, kMessageLane, verbs::encode(b, made->address()), 4)};
      return wire::CreateVerbsConnectRequestDirect(b, &offers);
    });
    const asio::const_buffer rest = asio::buffer(out_);
    KV_ASSERT(stream_.try_write(std::span(&rest, 1)).value() == out_.size());
    out_.clear();
    FrameReader reader(stream_);
    reader.set_limits({1 << 20, 1 << 20});
    while (true) {
      const auto answer = world_.await(reader.next()).value();
      KV_ASSERT(answer);
      if (answer->header.type != FrameType::kVerbsConnect) continue;
      const auto* const lane = (*read_table<wire::VerbsConnectResponse>(answer->table)->lanes())[0];
      made->connect(verbs::decode(lane->end()).value());
      messages_ = std::move(made);
      return;
    }
  }

  void context(const std::vector<wire::Hash>& hashes) {
    frame(
        FrameType::kContext,
        [&](FlatBufferBuilder& b) {
          constexpr const char* kNames[] = {nullptr, "", "a", "b", "a b", "\xff"};
          const auto name = [&] { return kNames[input_.below(std::size(kNames))]; };
          std::vector<flatbuffers::Offset<flatbuffers::String>> tags;
          for (std::size_t i = input_.below(3); i > 0; --i)
            tags.push_back(b.CreateString(input_.flag() ? "tag" : "\n"));
          const auto counts = input_.below(4) == 0 ? small_numbers(3) : std::vector<std::uint32_t>();
          const std::uint32_t handle = space();
          const auto positions = input_.below(4) == 0 ? small_numbers(3) : std::vector<std::uint32_t>();
          const std::uint64_t ttl_us = input_.below(4) == 0 ? input_.number(8) : input_.below(3) * 1'000'000;
          return wire::CreateContextRequestDirect(
              b, static_cast<std::uint8_t>(input_.below(9)), name(), handle, check_, &hashes,
              counts.empty() ? nullptr : &counts, &tags, ttl_us, input_.below(8) == 0 ? input_.number(8) : 0,
              input_.flag(), input_.below(8) == 0 ? name() : nullptr,
              input_.flag() ? 255 : static_cast<std::uint8_t>(input_.below(12)),
              static_cast<std::uint32_t>(input_.below(4)), positions.empty() ? nullptr : &positions,
              static_cast<std::uint32_t>(input_.below(4)));
        },
        id());
  }

  void step() {
    if (out_.size() > 100'000) flush();
    switch (input_.below(23)) {
      case 0: {
        const auto type = static_cast<FrameType>(input_.byte());
        const auto flags = static_cast<std::uint16_t>(input_.below(8) == 0 ? input_.number(2) : 0);
        const std::uint64_t request_id = id();
        Bytes table(8 * ((input_.below(400) + 7) / 8));
        const auto given = input_.bytes(table.size());
        std::copy(given.begin(), given.end(), table.begin());
        const std::size_t payload = input_.below(8) == 0 ? input_.below(9000) : 0;
        raw(type, flags, request_id, table, payload);
        out_.resize(out_.size() + payload);
        return;
      }
      case 1: {
        if (input_.below(8) != 0) return;  // it ends the session
        const auto bytes = input_.bytes(input_.below(100));
        out_.insert(out_.end(), bytes.begin(), bytes.end());
        return;
      }
      case 2:
      case 3: {
        flush();
        return world_.run_for(input_.below(8) == 0 ? input_.below(40) * 1s : input_.below(100) * 100us);
      }
      case 4: {
        const auto hashes = to_wire(chain());
        if (is_set_) return set_match(hashes);
        if (input_.below(16) == 0) {
          return frame(
              FrameType::kClusterMap, [](FlatBufferBuilder& b) { return wire::CreateClusterMapRequest(b); }, id());
        }
        if (input_.below(8) == 0) {
          return frame(
              FrameType::kAdmin,
              [&](FlatBufferBuilder& b) {
                constexpr const char* kPaths[] = {
                    nullptr,         "",       "/stats.json", "/slowlog.json",   "/slowlog/reset",
                    "/learned.json", "/drain", "/erase",      "/status/now.json"};
                constexpr const char* kQueries[] = {nullptr,   "",         "after=00", "node=node&drain=true",
                                                    "tenant=", "tenant=a", "share=a",  "tenant=a%0Ab",
                                                    "a&b"};
                const char* const path = kPaths[input_.below(std::size(kPaths))];
                return wire::CreateAdminRequestDirect(b, path, kQueries[input_.below(std::size(kQueries))]);
              },
              id());
        }
        if (input_.below(8) == 0) return context(hashes);
        if (input_.below(8) == 0) {
          return frame(
              FrameType::kHotRoots,
              [&](FlatBufferBuilder& b) {
                const std::uint32_t handle = space();
                return wire::CreateHotRootsRequest(b, handle, check_);
              },
              id());
        }
        const auto tokens = small_numbers(20);
        // Most often right; a node believes none of them.
        const wire::Trace trace;
        const auto nodes = static_cast<std::uint32_t>(input_.below(8) == 0 ? input_.number(4) : input_.below(9));
        const auto beginning = static_cast<std::uint32_t>(input_.below(hashes.size() + 2));
        const auto hot_blocks = static_cast<std::uint32_t>(input_.below(beginning + 2));
        return frame(
            FrameType::kMatch,
            [&](FlatBufferBuilder& b) {
              const auto with = extras(hashes.size());
              const std::uint32_t handle = space();
              return wire::CreateMatchRequestDirect(b, handle, &hashes, &tokens, input_.flag(), false, check_,
                                                    with.empty() ? nullptr : &with, nodes, beginning, hot_blocks, 0, 0,
                                                    0, 0, false, /*why=*/nodes == 8, nodes == 7 ? &trace : nullptr);
            },
            id());
      }
      case 5:
      case 6: {
        const auto hashes = to_wire(chain());
        const auto where = offsets(hashes.size());
        const std::uint32_t to = region();
        if (is_set_) return set_get(hashes, to, where);
        const std::vector<std::uint64_t> ends(input_.below(8) == 0 ? 1 : 0, input_.below(2) == 0 ? kBlockBytes : 777);
        return frame(
            FrameType::kGet,
            [&](FlatBufferBuilder& b) {
              const std::uint32_t handle = space();
              return wire::CreateGetRequestDirect(
                  b, handle, &hashes, input_.below(5), to, to == 0 ? nullptr : &where, &ends, 2, 0,
                  static_cast<std::uint32_t>(input_.below(4)), check_, nullptr,
                  input_.below(4) == 0 ? static_cast<std::uint32_t>(input_.below(4)) : 0);
            },
            id());
      }
      case 7:
      case 8: {
        const auto hashes = to_wire(chain());
        const auto where = offsets(hashes.size());
        if (is_set_) return set_put(hashes, region(), where);
        const auto positions = input_.below(8) == 0 ? small_numbers(9) : std::vector<std::uint32_t>();
        const auto tokens = input_.below(4) == 0 ? small_numbers(18) : std::vector<std::uint32_t>();
        const std::uint32_t from = region();
        const std::uint64_t deadline_us = input_.below(4) == 0 ? input_.below(100) * 1000 : 0;
        return frame(
            FrameType::kPut,
            [&](FlatBufferBuilder& b) {
              const auto with = extras(hashes.size());
              const std::uint32_t handle = space();
              return wire::CreatePutRequestDirect(
                  b, handle, &hashes, &positions, &tokens, from, from == 0 ? nullptr : &where, deadline_us,
                  static_cast<std::uint32_t>(input_.below(4)), check_, with.empty() ? nullptr : &with);
            },
            id());
      }
      case 9:
      case 10:
      case 11: return put_data();
      case 12: {
        const std::uint64_t which = id();
        return frame(
            FrameType::kCancel, [&](FlatBufferBuilder& b) { return wire::CreateCancelRequest(b, which); }, 99);
      }
      case 13: {
        const std::uint64_t lease = input_.below(5);
        return frame(
            FrameType::kRelease, [&](FlatBufferBuilder& b) { return wire::CreateReleaseRequest(b, lease); }, id());
      }
      case 14: {
        constexpr FrameType kTypes[] = {FrameType::kTouch, FrameType::kRetain, FrameType::kUnretain, FrameType::kDrop};
        const auto hashes = to_wire(chain());
        return frame(
            kTypes[input_.below(4)],
            [&](FlatBufferBuilder& b) {
              const std::uint32_t handle = space();
              return wire::CreatePrefixRequestDirect(b, handle, &hashes, check_);
            },
            id());
      }
      case 15: {
        flush();
        if (input_.below(4) != 0) stream_.send_descriptor(lasting().memory->fd());
        const std::uint64_t bytes = input_.below(8) == 0 ? input_.number(8) : 16 * kBlockBytes;
        frame(
            FrameType::kRegionAdd, [&](FlatBufferBuilder& b) { return wire::CreateRegionAddRequest(b, bytes); }, id());
        return flush();
      }
      case 16: {
        const auto which = static_cast<std::uint32_t>(input_.below(4));
        return frame(
            FrameType::kRegionRemove, [&](FlatBufferBuilder& b) { return wire::CreateRegionRemoveRequest(b, which); },
            id());
      }
      case 17: {
        const auto text = input_.take(input_.below(100));
        return open(input_.flag() ? record_.text() + "x.a=b\n"
                                  : std::string(reinterpret_cast<const char*>(text.data()), text.size()));
      }
      case 18:
        return frame(
            FrameType::kAdmin,
            [&](FlatBufferBuilder& b) {
              return wire::CreateAdminRequestDirect(b, is_set_  ? "/slowlog.json"
                                                       : reads_ ? "/slowlog/reset"
                                                                : "/stats.json");
            },
            id());
      case 19:
      case 20: return connect_lanes();
      case 21: return add_verbs_region();
      default: reads_ = !reads_;
    }
  }
  /// Most often a right cut of so many names, or none.
  std::vector<std::uint32_t> groups(std::size_t count) {
    std::vector<std::uint32_t> all;
    if (input_.below(4) == 0) return all;
    for (std::size_t left = count; left > 0; left -= all.back())
      all.push_back(static_cast<std::uint32_t>(1 + input_.below(left)));
    if (input_.below(8) == 0) all.push_back(static_cast<std::uint32_t>(input_.number(4)));
    return all;
  }
  void set_match(const std::vector<wire::Hash>& hashes) {
    const std::vector<std::uint32_t> cut = groups(hashes.size());
    frame(
        FrameType::kSetMatch,
        [&](FlatBufferBuilder& b) {
          const std::uint32_t handle = space();
          return wire::CreateSetMatchRequestDirect(b, handle, &hashes, input_.flag(), input_.flag(), check_, &cut);
        },
        id());
  }
  /// Most often whole blocks; else some shorter, or a list of another length.
  std::vector<std::uint32_t> lengths(std::size_t count) {
    std::vector<std::uint32_t> all(input_.below(8) == 0 ? input_.below(9) : count, kBlockBytes);
    if (input_.below(4) == 0) {
      for (auto& each : all) each = static_cast<std::uint32_t>(input_.below(kBlockBytes + 2));
    }
    return all;
  }
  void set_get(const std::vector<wire::Hash>& hashes, std::uint32_t to, const std::vector<std::uint64_t>& where) {
    const std::vector<std::uint32_t> rooms = lengths(hashes.size()), cut = groups(hashes.size());
    frame(
        FrameType::kSetGet,
        [&](FlatBufferBuilder& b) {
          const std::uint32_t handle = space();
          return wire::CreateSetGetRequestDirect(b, handle, &hashes, input_.below(5), to, to == 0 ? nullptr : &where,
                                                 &rooms, 2, 0, static_cast<std::uint32_t>(input_.below(4)), check_,
                                                 &cut);
        },
        id());
  }
  void set_put(const std::vector<wire::Hash>& hashes, std::uint32_t from, const std::vector<std::uint64_t>& where) {
    const std::vector<std::uint32_t> of_blocks = lengths(hashes.size()), cut = groups(hashes.size());
    const std::uint64_t deadline_us = input_.below(4) == 0 ? input_.below(100) * 1000 : 0;
    frame(
        FrameType::kSetPut,
        [&](FlatBufferBuilder& b) {
          const std::uint32_t handle = space();
          return wire::CreateSetPutRequestDirect(b, handle, &hashes, &of_blocks, from, from == 0 ? nullptr : &where,
                                                 deadline_us, static_cast<std::uint32_t>(input_.below(4)), check_,
                                                 &cut);
        },
        id());
  }
  /// Lanes to a queue pair that nobody has, with numbers that are nearly right.
  void connect_lanes() {
    frame(
        FrameType::kVerbsConnect,
        [&](FlatBufferBuilder& b) {
          std::vector<flatbuffers::Offset<wire::LaneOffer>> offers;
          for (std::size_t i = 0, count = input_.below(4); i < count; ++i) {
            const std::vector<std::uint8_t> gid(input_.below(8) == 0 ? input_.below(20) : 16, 1);
            const std::uint32_t mtu = input_.below(8) == 0 ? static_cast<std::uint32_t>(input_.number(4)) : 1024;
            const auto end = wire::CreateQueuePairEndDirect(b, static_cast<std::uint32_t>(input_.below(4)),
                                                            static_cast<std::uint32_t>(input_.below(1 << 24)), 0, &gid,
                                                            mtu, static_cast<std::uint32_t>(input_.below(20)));
            const auto lane = static_cast<std::uint32_t>(input_.below(4));
            const bool is_right = input_.below(8) != 0;
            offers.push_back(wire::CreateLaneOffer(b, lane, end, (lane == kMessageLane) == is_right ? 3 : 0));
          }
          return wire::CreateVerbsConnectRequestDirect(b, &offers);
        },
        id());
  }
  void add_verbs_region() {
    frame(
        FrameType::kRegionAdd,
        [&](FlatBufferBuilder& b) {
          std::vector<flatbuffers::Offset<wire::RegionSlice>> slices;
          const std::size_t count = 1 + input_.below(3);
          const std::uint64_t bytes = 16 * kBlockBytes;  // the least that a slice may have
          for (std::size_t i = 0; i < count; ++i) {
            const std::vector<std::uint32_t> rkeys(1 + input_.below(3), static_cast<std::uint32_t>(input_.below(9)));
            slices.push_back(wire::CreateRegionSliceDirect(b, input_.number(8),
                                                           input_.below(8) == 0 ? input_.number(8) : bytes, &rkeys));
          }
          return wire::CreateRegionAddRequestDirect(b, bytes * count, &slices);
        },
        id());
  }
  void put_data() {
    const auto hashes = chain();  // often what was offered
    const std::uint64_t which = id();
    Bytes payload;
    std::vector<std::uint64_t> sums;
    for (const BlockHash& hash : hashes) {
      Bytes block(kBlockBytes, hash.bytes[0]);
      const NamespaceId space = record_.id();
      const std::uint64_t seed = is_set_ ? set_checksum_seed(space, hash, block.size()) : checksum_seed(space, hash);
      sums.push_back(stripe_checksum(seed, 0, block));
      payload.insert(payload.end(), block.begin(), block.end());
      std::memcpy(lasting().memory->bytes().data() + (sums.size() - 1) * kBlockBytes, block.data(), kBlockBytes);
    }
    switch (input_.below(8)) {
      case 0: sums.push_back(7); break;
      case 1:
        if (!payload.empty()) payload[input_.below(payload.size())] ^= std::byte{1};
        break;
      case 2: payload.resize(input_.below(9000)); break;
      case 3: payload.clear(); break;  // from a region
      default: break;
    }
    frame(
        FrameType::kPutData,
        [&](FlatBufferBuilder& b) {
          return wire::CreatePutDataDirect(b, static_cast<std::uint32_t>(hashes.size()), &sums);
        },
        which, payload);
  }

  SimWorld& world_;
  Stream& stream_;
  verbs::FakeVerbs& verbs_;
  Input& input_;
  const bool is_set_;  ///< Blocks stand alone.
  const NamespaceRecord& record_;
  std::uint64_t check_ = 0;  ///< For the handle that space() gave.
  std::unique_ptr<MessageEnd> messages_;
  Bytes out_;
  bool reads_ = true;
};

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  Input input(data, std::min<std::size_t>(size, 1024));
  NodeMetrics& metrics = lasting().metrics;
  SimWorld world;
  StoreConfig config;
  config.arena.capacity_bytes = 20 * kBlockBytes;
  config.arena.granule_bytes = kBlockBytes;
  config.arena.huge_pages = false;
  config.arena.touch = false;
  config.chain_blocks_max = 8;
  LockedStore store(Store::create(config).value(), metrics);
  NodeContext node{.store = store, .clock = world.clock, .metrics = metrics, .limits = {}};
  node.chain_blocks_max = 8;
  change(node.limits)->requests_max = 4;
  // So small that gets go in windows and wait for their reader.
  change(node.limits)->inline_frame_bytes = kBlockBytes;
  change(node.limits)->inline_ahead_bytes = 2 * kBlockBytes;
  change(node.limits)->inline_window_bytes = 2 * kBlockBytes;
  change(node.limits)->region_count_max = 3;
  verbs::FakeVerbs verbs(world.clock, world.io.get_executor(), {});
  const auto rdma = VerbsNode::open(verbs, {.lane_count_max = 2, .queue_pair_count_max = 3, .in_place = true},
                                    store.with([](Store& each) { return each.memory(); }), world.clock)
                        .value();
  node.verbs = rdma.get();
  const auto rdma_thread = std::make_shared<VerbsThread>(*rdma, world.io.get_executor());
  const auto listener = world.network.listen({Endpoint::Scheme::kSim, "node", ""}, world.io.get_executor()).value();
  auto stream = world.await(world.network.connect(listener->endpoint(), world.io.get_executor())).value().value();
  auto accepted = world.await(listener->accept(world.io.get_executor())).value().value();
  auto session =
      std::make_shared<Session>(node, SessionId{1}, std::move(accepted), world.io.get_executor(), rdma_thread);
  bool ended = false;
  asio::co_spawn(world.io, session->run(), [&](std::exception_ptr error) {
    KV_ASSERT(!error);
    ended = true;
  });
  std::optional<HostileClient> client(std::in_place, world, *stream, verbs, input, size % 4 >= 2);
  client->run();
  stream->close();
  world.run_until([&] { return ended; }, 100s);
  KV_ASSERT(ended);
  world.run_for(10s);
  KV_ASSERT(session.use_count() == 1);
  session.reset();
  client.reset();
  rdma_thread->stop();
  world.run_for(1s);
  store.with([](Store& each) {
    KV_ASSERT(each.check().empty());
    const StoreStats stats = each.stats();
    KV_ASSERT(stats.incoming_count == 0 && stats.lease_count == 0);
    for (const auto& space : each.list_spaces(nullptr)) KV_ASSERT(each.drop(space.id, {}));
    while (each.is_dropping()) each.drop_more(TimePoint{1h});
    KV_ASSERT(each.stats().allocated_bytes == 0);
  });
  KV_ASSERT(metrics.session_count() == 0);
  return 0;
}
