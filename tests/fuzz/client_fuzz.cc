// A node whose answers are what the bytes say: right ones, nearly right ones, frames of anything, silence, an end. It
// stops reading, asks for blocks and then fails the put. Every call of the client ends by its deadline, no byte that
// fails its checksum is called good, and nothing that the caller writes to its memory after a call reaches the node.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "base/event.h"
#include "client/client.h"
#include "index/name_groups.h"
#include "tests/fakes/verbs_fake.h"
#include "tests/fuzz/input.h"
#include "tests/transport/sim_world.h"
#include "transport/frames/frame_message.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"
#include "transport/verbs/verbs_devices.h"
#include "transport/verbs/verbs_messages.h"
#include "transport/verbs/verbs_wire.h"

namespace kv {
namespace {

using flatbuffers::FlatBufferBuilder;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBlockBytes = kStripeBytes + 4096;  // two segments are possible
constexpr std::size_t kCount = 3;
constexpr std::byte kReused{0xA5};         ///< In the caller's memory once a call has ended.
constexpr std::size_t kReusedRunMax = 64;  ///< So many in a row were not there during a call.

/// Takes a payload and looks for what must not be in it.
class PutSink final : public PayloadSink {
 public:
  std::size_t next(std::span<asio::mutable_buffer> buffers) override {
    buffers[0] = asio::buffer(scratch_);
    return 1;
  }
  void filled(std::size_t bytes) override {
    for (std::size_t i = 0; i < bytes; ++i) {
      run_ = scratch_[i] == kReused ? run_ + 1 : 0;
      KV_ASSERT(run_ < kReusedRunMax);
    }
  }

 private:
  Bytes scratch_ = Bytes(16 * 1024);
  std::size_t run_ = 0;
};

/// What the node has for RDMA: a queue pair for each lane, one of them for messages. Nothing is moved.
struct NodeLanes {
  NodeLanes(SimWorld& w, verbs::FakeVerbs& verbs)
      : world(w), devices(verbs::open_devices(verbs, {.names = {"fake0"}}).value().devices) {
    auto queue = devices[0].device->create_completion_queue(256).value();
    loop = std::make_unique<verbs::CompletionLoop>(world.io.get_executor(), std::move(queue));
    asio::co_spawn(world.io, loop->run(), asio::detached);
  }
  ~NodeLanes() {
    messages.clear();
    blocks.clear();
    loop->stop();
    world.run_for(1ms);
  }
  verbs::QueuePairAddress connect(verbs::QueuePair& pair, const verbs::QueuePairAddress& peer) {
    constexpr std::uint32_t kPsn = 9;
    KV_ASSERT(pair.connect(peer, path_to(devices[0].attach().value(), kPsn, peer)));
    return address_of(devices[0].attach().value(), pair.number(), kPsn);
  }
  SimWorld& world;
  std::vector<verbs::OpenDevice> devices;
  std::unique_ptr<verbs::CompletionLoop> loop;
  std::vector<std::unique_ptr<verbs::QueuePair>> blocks;
  std::vector<std::unique_ptr<verbs::VerbsMessages>> messages;
};

/// What calls and nodes share. Outlives both.
struct Scene {
  Scene(SimWorld& w, verbs::FakeVerbs& v, Input& i) : world(w), verbs(v), input(i) {}
  SimWorld& world;
  verbs::FakeVerbs& verbs;
  Input& input;
  bool has_rdma = false;
  bool is_set = false;                            ///< The namespace: its blocks stand alone.
  std::vector<std::unique_ptr<NodeLanes>> lanes;  ///< Of all connections: they go when nothing runs any more.
  NamespaceRecord record = [] {
    return NamespaceRecord::from_fields(
               {{"model", "m"}, {"block_size", "2"}, {"block_bytes", std::to_string(kBlockBytes)}})
        .value();
  }();
  NamespaceRecord set_record = [] {
    return NamespaceRecord::from_fields(
               {{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kBlockBytes)}})
        .value();
  }();
  /// Of the set's blocks, which all begin as `block` does.
  static constexpr std::size_t kLengths[kCount] = {kBlockBytes, 100, kStripeBytes};
  std::vector<BlockHash> hashes = std::vector<BlockHash>(kCount);
  Bytes block = Bytes(kBlockBytes, std::byte{0x42});  ///< The bytes of every block.
};

/// One connection of the node.
struct Connection : std::enable_shared_from_this<Connection> {
  Connection(Scene& s, std::unique_ptr<Stream> from) : scene(s), stream(std::move(from)), reader(*stream) {
    reader.set_limits({1 << 20, 1 << 30});
  }
  Scene& scene;
  std::unique_ptr<Stream> stream;
  FrameReader reader;
  bool over = false;
  NodeLanes* lanes = nullptr;
  std::uint64_t asked_for = 0;   ///< A put that fails once a part of its blocks is here.
  Duration deaf_for{};           ///< Before it reads on.
  std::optional<Bytes> message;  ///< While what answers one is gathered.

  void write(const Bytes& bytes) {
    // What the stream does not take is lost: the client sees a frame that never ends, which is one more bad answer.
    std::size_t at = 0;
    while (at < bytes.size()) {
      const asio::const_buffer rest = asio::buffer(bytes.data() + at, bytes.size() - at);
      const auto count = stream->try_write(std::span(&rest, 1));
      if (!count) break;
      at += *count;
    }
  }
  template <class Build>
  void answer(FrameType type, std::uint64_t id, std::uint16_t flags, Build build,
              std::span<const std::byte> payload = {}) {
    Input& input = scene.input;
    FlatBufferBuilder builder;
    builder.Finish(build(builder));
    Bytes table(builder.GetSize());
    std::memcpy(table.data(), builder.GetBufferPointer(), table.size());
    FrameHeader header;
    header.type = type;
    header.request_id = id;
    header.flags = static_cast<std::uint16_t>(flags | kFrameResponse);
    header.payload_bytes = payload.size();
    Bytes body(payload.begin(), payload.end());
    switch (input.below(24)) {
      case 1:
      case 2:
      case 3:  // some field holds something else
        for (std::size_t changes = 1 + input.below(3); changes > 0 && !table.empty(); --changes) {
          const std::size_t width = std::min(table.size(), std::size_t{1} << input.below(4));
          const std::uint64_t value = input.flag() ? input.number(width) : input.below(4) - 1;
          std::memcpy(table.data() + input.below(table.size() - width + 1), &value, width);
        }
        break;
      case 4: header.type = static_cast<FrameType>(input.byte()); break;
      case 5: header.flags = static_cast<std::uint16_t>(input.number(2)); break;
      case 6: header.request_id = input.flag() ? id + input.below(3) - 1 : input.number(8); break;
      case 7: table.resize(8 * (input.below(300) / 8)); break;
      case 8: {
        const auto given = input.bytes(input.below(200));
        table.assign(given.begin(), given.end());
        break;
      }
      case 9:
        if (!body.empty()) body[input.below(body.size())] ^= std::byte{1};
        break;
      case 10: body.resize(input.below(2000)); break;
      case 11: header.payload_bytes = input.number(8); break;
      case 12: return;  // silence
      case 13: over = true; return;
      case 14: {
        const auto given = input.bytes(input.below(200));
        return write(Bytes(given.begin(), given.end()));
      }
      case 15:
        write_frame(header, table, body);  // twice
        break;
      default: break;
    }
    write_frame(header, table, body);
  }
  void write_frame(FrameHeader header, const Bytes& table, const Bytes& body) {
    if (header.payload_bytes == 0 || scene.input.below(8) != 0) {
      header.payload_bytes = header.payload_bytes > (1 << 20) ? header.payload_bytes : body.size();
    }
    if (message && header.payload_bytes == 0) return append_frame(*message, header, table);
    Bytes bytes(kFrameHeaderBytes);
    encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
    bytes.insert(bytes.end(), table.begin(), table.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
    write(bytes);
  }
  std::vector<std::uint64_t> sums(std::size_t count, std::size_t first_stripe, std::size_t stripes) const {
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::uint64_t> each(stripe_count(kBlockBytes));
      block_checksums(checksum_seed(scene.record.id(), scene.hashes[i]), scene.block, each);
      all.insert(all.end(), each.begin() + static_cast<std::ptrdiff_t>(first_stripe),
                 each.begin() + static_cast<std::ptrdiff_t>(first_stripe + stripes));
    }
    return all;
  }

  void answer_contexts(std::uint64_t id) {
    Input& input = scene.input;
    answer(FrameType::kContext, id, 0, [&](FlatBufferBuilder& b) {
      static constexpr const char* kNames[] = {"a", "b", "c\x1b[2J", ""};
      std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts;
      for (std::size_t i = input.below(8) == 0 ? input.below(200) : input.below(4); i > 0; --i) {
        const std::vector<std::string> tags(input.below(3), kNames[input.below(4)]);
        const std::vector<std::uint8_t> space(input.below(8) == 0 ? 3 : 16, 7);
        const auto wanted = static_cast<std::uint32_t>(input.below(5));
        const auto kept = static_cast<std::uint32_t>(input.below(wanted + 2));
        const auto tagged = b.CreateVectorOfStrings(tags);
        static constexpr double kSeconds[] = {0, 1.5, -1, 1e300, std::numeric_limits<double>::quiet_NaN()};
        const auto name = input.below(8) == 0 ? 0 : b.CreateString(kNames[input.below(4)]);
        const auto list = b.CreateVector(space);
        const auto model = b.CreateString("m");
        wire::ContextStatusBuilder context(b);
        context.add_name(name);
        context.add_tags(tagged);
        context.add_namespace_id(list);
        context.add_model(model);
        context.add_wanted_blocks(wanted);
        context.add_kept_blocks(kept);
        context.add_why(static_cast<std::uint16_t>(input.below(30)));
        context.add_stored_token_seconds(kSeconds[input.below(5)]);
        contexts.push_back(context.Finish());
      }
      const auto all = input.below(8) == 0 ? 0 : b.CreateVector(contexts);
      const std::vector<wire::Hash> hashes(input.below(4));
      std::vector<std::uint32_t> positions(input.below(8) == 0 ? input.below(5) : hashes.size());
      for (auto& each : positions) each = static_cast<std::uint32_t>(input.below(6));
      const auto record = input.below(8) == 0 ? 0 : b.CreateString("model=m\n");
      const auto list = input.below(8) == 0 ? 0 : b.CreateVectorOfStructs(hashes);
      const auto places = input.flag() ? 0 : b.CreateVector(positions);
      return wire::CreateContextResponse(b, all, input.below(4) == 0, input.below(2), record,
                                         static_cast<std::uint32_t>(input.below(6)), list, places);
    });
  }

  void respond(const FrameReader::Frame& frame) {
    const std::uint64_t id = frame.header.request_id;
    const FrameType type = frame.header.type;
    Input& input = scene.input;
    if (input.below(16) == 15) {
      return answer(type, id, kFrameError, [&](FlatBufferBuilder& b) {
        return wire::CreateErrorDirect(b, static_cast<std::uint16_t>(input.below(20)), "no");
      });
    }
    switch (type) {
      case FrameType::kHello:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          const std::vector<std::uint8_t> instance(kInstanceBytes, 1);
          return wire::CreateHelloResponseDirect(b, kWireVersion, "n", input.below(3), 1 << 20, 1000, 16, 1 << 20,
                                                 scene.has_rdma ? 1 : 0, scene.has_rdma, &instance);
        });
      case FrameType::kVerbsConnect: return connect_lanes(frame);
      case FrameType::kOpen:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          const NamespaceId name = scene.is_set ? scene.set_record.id() : scene.record.id();
          const auto* const bytes = reinterpret_cast<const std::uint8_t*>(name.bytes.data());
          return wire::CreateOpenResponse(b, 0, kBlockBytes, b.CreateVector(bytes, name.bytes.size()));
        });
      case FrameType::kMatch:
        if (const auto* request = read_table<wire::MatchRequest>(frame.table); request->why()) return answer_why(id);
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          return wire::CreateMatchResponse(b, static_cast<std::uint32_t>(input.below(kCount + 1)), 0, 1, 1000, 0, 0,
                                           nullptr, 0, input.below(3), input.below(5));
        });
      case FrameType::kClusterMap:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          static constexpr const char* kIds[] = {"n", "m", "", "a b"};
          static constexpr const char* kEndpoints[] = {"tcp://127.0.0.1:1", "sim://x", "none"};
          std::vector<flatbuffers::Offset<wire::ClusterNode>> nodes;
          for (std::size_t i = input.below(4); i > 0; --i) {
            const std::vector<std::string> endpoints(input.below(3), kEndpoints[input.below(3)]);
            const auto list = b.CreateVectorOfStrings(endpoints);
            nodes.push_back(wire::CreateClusterNode(
                b, b.CreateString(kIds[input.below(4)]), list, static_cast<double>(input.below(4)) - 1,
                static_cast<std::uint8_t>(input.below(3)), 0, static_cast<std::uint8_t>(input.below(4))));
          }
          return wire::CreateClusterMapResponse(b, input.below(6), static_cast<std::uint32_t>(input.below(4)),
                                                b.CreateVector(nodes));
        });
      case FrameType::kHotRoots:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          std::vector<wire::Hash> blocks(input.below(8) == 0 ? input.below(5000) : input.below(4));
          return wire::CreateHotRootsResponseDirect(b, input.below(3), &blocks);
        });
      case FrameType::kContext: return answer_contexts(id);
      case FrameType::kGet: {
        const auto* request = read_table<wire::GetRequest>(frame.table);
        KV_ASSERT(request != nullptr);  // the client's own frames are always good
        const bool is_inline = request->region() == 0 || (scene.has_rdma && input.below(4) == 0);
        const std::size_t segments = request->segment_ends() == nullptr || request->segment_ends()->size() < 2 ? 1 : 2;
        for (std::uint32_t segment = 0; segment < segments; ++segment) {
          const std::size_t begin = segment * kStripeBytes;
          const std::size_t end = segment + 1 == segments ? kBlockBytes : kStripeBytes;
          const std::size_t count = kCount - (input.below(8) == 7);
          Bytes payload;
          for (std::size_t i = 0; i < count && is_inline; ++i) {
            payload.insert(payload.end(), scene.block.begin() + static_cast<std::ptrdiff_t>(begin),
                           scene.block.begin() + static_cast<std::ptrdiff_t>(end));
          }
          const auto checksums = sums(count, begin / kStripeBytes, stripe_count(end - begin));
          answer(
              type, id, kFrameMore,
              [&](FlatBufferBuilder& b) {
                return wire::CreateGetPartDirect(b, segment, 0, static_cast<std::uint32_t>(count), &checksums);
              },
              payload);
        }
        return answer(type, id, 0, [&](FlatBufferBuilder& b) { return wire::CreateGetResponse(b, kCount); });
      }
      case FrameType::kPut:
        answer(type, id, kFrameMore, [&](FlatBufferBuilder& b) { return wire::CreatePutWant(b, 0, kCount); });
        switch (input.below(8)) {
          case 1: deaf_for = std::chrono::milliseconds(input.below(100)); break;
          case 2:
            answer(type, id, kFrameMore, [&](FlatBufferBuilder& b) { return wire::CreatePutWant(b, 0, 1); });
            break;
          case 3: asked_for = id; break;
          default: break;
        }
        return;
      case FrameType::kPutData:
        if (std::exchange(asked_for, 0) == id) {
          return answer(scene.is_set ? FrameType::kSetPut : FrameType::kPut, id, kFrameError,
                        [&](FlatBufferBuilder& b) {
                          return wire::CreateErrorDirect(b, static_cast<std::uint16_t>(Errc::kNoNamespace), "no");
                        });
        }
        if (scene.is_set) return answer_set_put(id);
        return answer(FrameType::kPut, id, 0, [&](FlatBufferBuilder& b) { return wire::CreatePutResponse(b, kCount); });
      case FrameType::kSetMatch: return answer_set_match(id);
      case FrameType::kSetGet: return answer_set_get(frame);
      case FrameType::kSetPut: {
        std::vector<std::uint32_t> wanted = {0, 1, 2};
        if (input.below(4) == 0) wanted = {static_cast<std::uint32_t>(input.below(4)), 2};
        answer(type, id, kFrameMore, [&](FlatBufferBuilder& b) { return wire::CreateSetPutWantDirect(b, &wanted); });
        switch (input.below(8)) {
          case 1: deaf_for = std::chrono::milliseconds(input.below(100)); break;
          case 2: return answer_set_put(id);  // before the data
          case 3: asked_for = id; break;
          default: break;
        }
        return;
      }
      case FrameType::kTouch:
      case FrameType::kRetain:
      case FrameType::kUnretain:
      case FrameType::kDrop:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) { return wire::CreateCountResponse(b, 2); });
      case FrameType::kRegionAdd:
        (void)stream->take_descriptor();
        return answer(type, id, 0, [&](FlatBufferBuilder& b) { return wire::CreateRegionResponse(b, 1); });
      case FrameType::kAdmin:
        return answer(type, id, 0, [&](FlatBufferBuilder& b) {
          return wire::CreateAdminResponseDirect(b, scene.is_set ? "{\"values\":{}}" : "\x80");
        });
      case FrameType::kCancel: return;
      default: return answer(type, id, 0, [](FlatBufferBuilder& b) { return wire::CreateEmptyResponse(b); });
    }
  }

  void answer_why(std::uint64_t id) {
    Input& input = scene.input;
    answer(FrameType::kMatch, id, 0, [&](FlatBufferBuilder& b) {
      std::vector<flatbuffers::Offset<wire::OtherSpace>> others;
      for (std::size_t i = input.below(20); i > 0; --i) {
        const std::vector<std::uint8_t> name(input.below(3) == 0 ? 16 : input.below(40));
        std::vector<flatbuffers::Offset<wire::FieldDifference>> differs;
        for (std::size_t k = input.below(4); k > 0; --k) {
          const std::string text(input.below(2000), static_cast<char>(input.below(256)));
          differs.push_back(wire::CreateFieldDifferenceDirect(b, input.flag() ? text.c_str() : nullptr, text.c_str()));
        }
        others.push_back(wire::CreateOtherSpaceDirect(b, input.flag() ? &name : nullptr, input.flag(), input.number(8),
                                                      input.number(8), 1, 1, input.flag() ? &differs : nullptr));
      }
      const auto reason = wire::CreateMissReasonDirect(
          b, static_cast<std::uint8_t>(input.below(256)), input.number(8), input.number(8), input.number(8),
          input.number(8), input.number(8), input.number(8), input.flag() ? &others : nullptr);
      wire::MatchResponseBuilder response(b);
      response.add_host_blocks(static_cast<std::uint32_t>(input.below(kCount + 2)));
      if (input.flag()) response.add_reason(reason);
      return response.Finish();
    });
  }

  // -- sets: right answers, some of which answer() makes wrong

  void answer_set_match(std::uint64_t id) {
    Input& input = scene.input;
    const std::vector<std::uint8_t> held = {static_cast<std::uint8_t>(input.below(8) == 0 ? input.byte() : 0b101)};
    const std::vector<std::uint8_t> on_disk = {static_cast<std::uint8_t>(input.below(8) == 0 ? input.byte() : 0b001)};
    std::vector<std::uint32_t> lengths = {kBlockBytes, kStripeBytes};
    if (input.below(8) == 0) lengths.push_back(static_cast<std::uint32_t>(input.number(4)));
    answer(FrameType::kSetMatch, id, 0, [&](FlatBufferBuilder& b) {
      return wire::CreateSetMatchResponseDirect(b, &held, &on_disk, &lengths, 1, 1000, 0, input.below(2000));
    });
  }
  void answer_set_get(const FrameReader::Frame& frame) {
    Input& input = scene.input;
    const auto* request = read_table<wire::SetGetRequest>(frame.table);
    KV_ASSERT(request != nullptr && request->rooms() != nullptr && request->rooms()->size() == kCount);
    const std::uint64_t id = frame.header.request_id;
    const bool is_inline = request->region() == 0 || (scene.has_rdma && input.below(4) == 0);
    std::uint32_t told = 0;
    std::vector<std::uint32_t> too_long, too_long_bytes, unread;
    const auto first = static_cast<std::uint32_t>(input.below(kCount));  // the node's order
    for (std::uint32_t k = 0; k < kCount; ++k) {
      const std::uint32_t i = (first + k) % kCount;
      const std::size_t length = Scene::kLengths[i];
      if (input.below(8) == 7) continue;  // a miss
      if (length > request->rooms()->Get(i)) {
        too_long.push_back(i);
        too_long_bytes.push_back(static_cast<std::uint32_t>(length));
        continue;
      }
      if (input.below(8) == 7) {
        unread.push_back(i);
        continue;
      }
      const std::span<const std::byte> bytes = std::span<const std::byte>(scene.block).first(length);
      std::vector<std::uint64_t> sums(stripe_count(length));
      block_checksums(set_checksum_seed(scene.set_record.id(), scene.hashes[i], length), bytes, sums);
      const std::vector<std::uint32_t> blocks = {i}, lengths = {static_cast<std::uint32_t>(length)};
      answer(
          FrameType::kSetGet, id, kFrameMore,
          [&](FlatBufferBuilder& b) { return wire::CreateSetGetPartDirect(b, &blocks, &lengths, &sums); },
          is_inline ? bytes : std::span<const std::byte>());
      ++told;
    }
    answer(FrameType::kSetGet, id, 0, [&](FlatBufferBuilder& b) {
      return wire::CreateSetGetResponseDirect(b, told, &too_long, &too_long_bytes, &unread);
    });
  }
  void answer_set_put(std::uint64_t id) {
    Input& input = scene.input;
    std::vector<std::uint8_t> results(input.below(16) == 0 ? input.below(5) : kCount, 1);
    for (auto& result : results) {
      if (input.below(8) == 0) result = static_cast<std::uint8_t>(input.below(5));
    }
    answer(FrameType::kSetPut, id, 0, [&](FlatBufferBuilder& b) {
      return wire::CreateSetPutResponseDirect(b, &results, static_cast<std::uint16_t>(input.below(3)));
    });
  }
  void connect_lanes(const FrameReader::Frame& frame) {
    const auto* request = read_table<wire::VerbsConnectRequest>(frame.table);
    KV_ASSERT(request != nullptr);
    lanes = scene.lanes.emplace_back(std::make_unique<NodeLanes>(scene.world, scene.verbs)).get();
    verbs::ProtectionDomain& domain = *lanes->devices[0].domain;
    answer(FrameType::kVerbsConnect, frame.header.request_id, 0, [&](FlatBufferBuilder& b) {
      std::vector<flatbuffers::Offset<wire::LaneAnswer>> answers;
      for (const wire::LaneOffer* offer : *request->lanes()) {
        const auto peer = verbs::decode(offer->end()).value();
        verbs::QueuePairAddress end;
        if (offer->messages() > 0) {
          auto& made = lanes->messages.emplace_back(
              verbs::VerbsMessages::create(domain, lanes->loop->queue(), {.count = 16}).value());
          made->attach(
              *lanes->loop, scene.world.clock,
              [weak = weak_from_this()](std::span<const std::byte> bytes) {
                if (const auto self = weak.lock()) self->respond_to_message(bytes);
              },
              [](error_code) {});
          end = lanes->connect(made->queue_pair(), peer);
        } else {
          auto& made = lanes->blocks.emplace_back(domain.create_queue_pair(lanes->loop->queue(), {}).value());
          end = lanes->connect(*made, peer);
        }
        answers.push_back(
            wire::CreateLaneAnswer(b, offer->lane(), verbs::encode(b, end), 0, std::min(offer->messages(), 4u)));
      }
      return wire::CreateVerbsConnectResponseDirect(b, &answers);
    });
  }
  /// Answers by message, by the stream, or both.
  void respond_to_message(std::span<const std::byte> bytes) {
    const auto frame = take_frame(bytes);
    KV_ASSERT(frame && bytes.empty());
    if (scene.input.below(8) != 0) message.emplace();
    respond(*frame);
    const auto gathered = std::exchange(message, std::nullopt);
    if (!gathered || gathered->empty()) return;
    Bytes sent = *gathered;
    if (scene.input.below(16) == 15) sent[scene.input.below(sent.size())] ^= std::byte{1};
    if (scene.input.below(16) == 15) sent.resize(1 + scene.input.below(sent.size()));
    (void)lanes->messages.back()->send(sent);
  }
  static asio::awaitable<void> serve(std::shared_ptr<Connection> self) {
    while (!self->over) {
      const auto frame = co_await self->reader.next();
      if (!frame) break;
      self->respond(*frame);
      PutSink sink;
      const auto taken = co_await self->reader.read_payload(sink);
      if (!taken) break;
      if (self->deaf_for > Duration::zero()) {
        Event rung(self->scene.world.io.get_executor());
        const auto alarm = self->scene.world.clock.make_alarm(self->scene.world.io.get_executor());
        alarm->arm(self->scene.world.clock.now() + std::exchange(self->deaf_for, Duration::zero()),
                   [&rung] { rung.set(); });
        co_await rung.wait();
      }
    }
    self->stream->close();
  }
};

asio::awaitable<void> accept_all(Scene& scene, Listener& listener) {
  while (true) {
    auto stream = co_await listener.accept(scene.world.io.get_executor());
    if (!stream) co_return;
    const auto connection = std::make_shared<Connection>(scene, std::move(*stream));
    asio::co_spawn(scene.world.io, Connection::serve(connection), asio::detached);
  }
}

/// One call of a set, chosen by the input.
asio::awaitable<void> use_set(Scene& scene, Client& client, Space set, std::span<std::byte> own, bool in_lent,
                              std::span<const std::span<std::byte>> blocks, std::chrono::microseconds deadline) {
  Input& input = scene.input;
  std::vector<std::uint32_t> groups;
  if (input.below(4) > 0) groups = input.flag() ? std::vector<std::uint32_t>{2, 1} : std::vector<std::uint32_t>{3};
  static_assert(kCount == 3);
  const auto is_part = [&](auto is_there) {
    bool found = false;
    for_each_group(groups, kCount, [&](std::size_t first, std::size_t count) {
      std::size_t there = 0;
      for (std::size_t i = first; i < first + count; ++i) there += is_there(i);
      found = found || (there > 0 && there < count);
    });
    return found;
  };
  switch (input.below(4)) {
    case 0: {
      const MatchOptions options{
          .deadline = deadline, .lease = true, .prefetch = input.flag(), .control = {}, .group_counts = groups};
      const auto match = co_await client.match_set(set, scene.hashes, options);
      KV_ASSERT(!match || (match->held.size() == kCount && match->held_count <= kCount));
      for (std::size_t i = 0; match && i < kCount; ++i) {
        KV_ASSERT((match->held[i] == Held::kNowhere) == (match->block_bytes[i] == 0));
        KV_ASSERT(match->block_bytes[i] <= kBlockBytes);
      }
      KV_ASSERT(!match || !is_part([&](std::size_t i) { return match->held[i] != Held::kNowhere; }));
      if (match) client.release(match->lease);
      break;
    }
    case 1:
    case 2: {
      std::fill(own.begin(), own.end(), std::byte{0});
      std::vector<std::span<std::byte>> rooms(blocks.begin(), blocks.end());
      if (input.flag()) rooms[input.below(kCount)] = blocks[0].first(0);
      if (input.flag()) rooms[kCount - 1] = blocks[kCount - 1].first(input.below(200));
      const GetOptions options{.deadline = deadline, .group_counts = groups};
      const auto got = co_await client.get_set(set, scene.hashes, rooms, options);
      std::size_t landed = 0;
      for (std::size_t i = 0; got && i < kCount; ++i) {
        const SetGetBlock& block = got->blocks[i];
        KV_ASSERT(!block.has_landed || (block.block_bytes > 0 && block.block_bytes <= rooms[i].size()));
        landed += block.has_landed;
        if (in_lent || !block.has_landed) continue;
        const auto bytes = rooms[i].first(block.block_bytes);
        KV_ASSERT(std::equal(bytes.begin(), bytes.end(), scene.block.begin()));
      }
      KV_ASSERT(!got || got->landed_count == landed);
      KV_ASSERT(!got || !is_part([&](std::size_t i) { return got->blocks[i].has_landed; }));
      break;
    }
    default: {
      std::fill(own.begin(), own.end(), std::byte{0x42});
      std::vector<std::span<const std::byte>> sources;
      for (std::size_t i = 0; i < kCount; ++i) sources.push_back(blocks[i].first(Scene::kLengths[i]));
      const PutOptions options{.deadline = deadline, .control = {}, .group_counts = groups};
      const auto put = co_await client.put_set(set, scene.hashes, sources, options);
      KV_ASSERT(!put || put->stored + put->already_stored + put->conflicts + put->refused == kCount);
      KV_ASSERT(!put || (put->refused > 0) == bool(put->why));
      break;
    }
  }
}

/// One call about named contexts, chosen by the input.
asio::awaitable<void> use_contexts(Scene& scene, Client& client, Space space, std::chrono::microseconds deadline) {
  const auto is_whole = [](const NamedContext& context) {
    const auto is_printable = [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 127; };
    return context.kept_blocks <= context.wanted_blocks && context.stored_token_seconds >= 0 &&
           std::ranges::all_of(context.name, is_printable);
  };
  const ContextTime life{.ttl = std::chrono::seconds(60)};
  switch (scene.input.below(5)) {
    case 4: {
      const auto told = co_await client.tell_context("a", deadline);
      KV_ASSERT(!told || (is_whole(told->context) && told->hashes.size() <= told->prefix_blocks));
      break;
    }
    case 0: {
      const ContextOptions options{.deadline = deadline, .name = "a", .life = life};
      const auto made = co_await client.create_context(space, scene.hashes, options);
      KV_ASSERT(!made || is_whole(*made));
      break;
    }
    case 1: {
      const auto made = co_await client.extend_context("a", life, deadline);
      KV_ASSERT(!made || is_whole(*made));
      break;
    }
    case 2: {
      const auto last = co_await client.delete_context("a", deadline);
      KV_ASSERT(!last || is_whole(*last));
      break;
    }
    default: {
      const auto list = co_await client.list_contexts("", deadline);
      KV_ASSERT(!list || std::ranges::all_of(list->contexts, is_whole));
      break;
    }
  }
}

asio::awaitable<void> use(Scene& scene, Client& client, std::span<std::byte> lent, bool& done) {
  constexpr std::chrono::microseconds kDeadline(50'000);
  Input& input = scene.input;
  const TimePoint before_open = scene.world.clock.now();
  NamespaceRecord record = scene.is_set ? scene.set_record : scene.record;
  auto space = co_await client.open(std::move(record), kDeadline);
  KV_ASSERT(scene.world.clock.now() - before_open <= kDeadline + 1ms);
  if (!space) {
    done = true;
    co_return;
  }
  Bytes own(kCount * kBlockBytes);
  for (int i = 0; i < 8 && !input.empty(); ++i) {
    const TimePoint before = scene.world.clock.now();
    const bool in_lent = input.flag();
    const std::span<std::byte> memory = in_lent ? lent : std::span<std::byte>(own);
    std::vector<std::span<std::byte>> blocks;
    std::vector<std::span<const std::byte>> sources;
    for (std::size_t k = 0; k < kCount; ++k) {
      blocks.push_back(memory.subspan(k * kBlockBytes, kBlockBytes));
      sources.push_back(memory.subspan(k * kBlockBytes, kBlockBytes));
    }
    const std::uint64_t ends[] = {kStripeBytes, kBlockBytes};
    const std::size_t op = input.below(8);
    switch (scene.is_set && op < 5 ? 7 : op == 7 ? 8 : op) {
      case 8: {
        const auto report = co_await client.why(*space, scene.hashes, kDeadline);
        KV_ASSERT(!report || (report->block_count <= kCount && report->others.size() <= 16));
        for (const std::string& line : report ? report->text() : std::vector<std::string>()) {
          for (const char c : line)
            KV_ASSERT(static_cast<unsigned char>(c) >= ' ' && c != 127);  // it goes to a terminal
        }
        break;
      }
      case 7: {
        co_await use_set(scene, client, *space, own, in_lent, blocks, kDeadline);
        break;
      }
      case 0: {
        const MatchOptions options{.deadline = kDeadline, .lease = true};
        const auto match = co_await client.match(*space, scene.hashes, options);
        KV_ASSERT(!match || match->block_count <= kCount);
        if (match) client.release(match->lease);
        break;
      }
      case 1:
      case 2:
      case 3: {
        std::fill(own.begin(), own.end(), std::byte{0});
        GetOptions options{.deadline = kDeadline};
        if (input.flag()) options.segment_ends = ends;
        const auto got = co_await client.get(*space, scene.hashes, blocks, options);
        KV_ASSERT(!got || got->block_count <= kCount);
        for (std::size_t k = 0; got && !in_lent && k < got->block_count; ++k) {
          KV_ASSERT(std::equal(blocks[k].begin(), blocks[k].end(), scene.block.begin()));
        }
        break;
      }
      case 4: {
        std::fill(own.begin(), own.end(), std::byte{0x42});
        const PutOptions options{.deadline = kDeadline};
        const auto put = co_await client.put(*space, scene.hashes, sources, options);
        KV_ASSERT(!put || put->stored + put->already_stored + put->refused == kCount);
        break;
      }
      case 5: {
        if (input.flag()) {
          co_await use_contexts(scene, client, *space, kDeadline);
          break;
        }
        NodeQuestion question{.path = "/stats.json"};
        const auto stats = co_await client.ask(std::move(question), kDeadline);
        (void)stats;
        break;
      }
      default: {
        const auto count = co_await client.drop(*space, scene.hashes, kDeadline);
        (void)count;
        break;
      }
    }
    KV_ASSERT(scene.world.clock.now() - before <= kDeadline + 1ms);
    std::fill(own.begin(), own.end(), kReused);
  }
  done = true;
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  Input input(data, std::min<std::size_t>(size, 1024));
  SimWorld world;
  SimFaults faults;
  faults.chunk_bytes_max = 1 << 20;
  world.network.set_faults(faults);
  verbs::FakeVerbs verbs(world.clock, world.io.get_executor(), {});
  Scene scene(world, verbs, input);
  for (std::size_t i = 0; i < kCount; ++i) std::memset(scene.hashes[i].bytes.data(), static_cast<int>(i + 1), 32);
  const Endpoint endpoint{Endpoint::Scheme::kSim, "node", ""};
  const auto listener = world.network.listen(endpoint, world.io.get_executor()).value();
  asio::co_spawn(world.io, accept_all(scene, *listener), asio::detached);
  {
    ClientConfig config;
    config.nodes = {{.endpoint = "sim://node"}};
    config.connections_per_node = 1 + input.below(2);
    config.backoff_min = 1ms;
    config.backoff_max = 2ms;
    config.breaker_open = 5ms;
    config.seed = 1;
    scene.has_rdma = input.flag();
    // Not from the input: what the corpus holds keeps its meaning.
    scene.is_set = size % 4 == 2;
    if (scene.has_rdma) world.network.set_passes_descriptors(false);
    config.rdma_devices = {"fake1"};
    Client client(world.io.get_executor(), config, world.network, world.clock, &verbs);
    const auto lent = client.allocate(kCount * kBlockBytes).value();
    bool done = false;
    asio::co_spawn(world.io, use(scene, client, lent, done), [](std::exception_ptr error) { KV_ASSERT(!error); });
    world.run_until([&] { return done; }, 100s);
    KV_ASSERT(done);
  }
  listener->close();
  world.run_for(100s);
  scene.lanes.clear();
  KV_ASSERT(world.network.stream_count() == 0);
  return 0;
}
