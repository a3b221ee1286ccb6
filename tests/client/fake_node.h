// tests/client/fake_node.h: a node that answers what the test wants, on the simulated network.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/client/real_nodes.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"
#include "transport/wire_generated.h"

namespace kv {

class FakeNode {
 public:
  struct Session {
    Session(std::unique_ptr<Stream> s, const asio::any_io_executor& executor)
        : stream(std::move(s)), reader(*stream), writer(*stream, executor) {}
    std::unique_ptr<Stream> stream;
    FrameReader reader;
    FrameWriter writer;
    std::set<std::uint32_t> handles;  ///< That it was given.

    template <class Build>
    void reply(const FrameHeader& to, int flags, Build&& build, std::span<const std::byte> payload = {}) {
      flatbuffers::FlatBufferBuilder builder;
      builder.Finish(build(builder));
      FrameHeader header;
      header.type = to.type;
      header.request_id = to.request_id;
      header.flags = static_cast<std::uint16_t>(flags);
      const auto kept = std::make_shared<std::vector<std::byte>>(payload.begin(), payload.end());
      const std::span<const std::byte> part(*kept);
      writer.send(header, std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())), std::span(&part, 1),
                  [kept](bool) {});
      writer.flush();
    }
    void error(const FrameHeader& to, Errc code) {
      reply(to, kFrameResponse | kFrameError, [&](auto& builder) {
        return wire::CreateErrorDirect(builder, static_cast<std::uint16_t>(code), "as the test wants");
      });
    }
    /// One part of one segment, checksums as they should be unless `wrong_block` names a block.
    void part(const FrameHeader& to, const NamespaceRecord& record, std::span<const BlockHash> hashes,
              std::size_t first, std::size_t count, bool is_inline = true, std::size_t wrong_block = SIZE_MAX) {
      std::vector<std::byte> payload;
      std::vector<std::uint64_t> sums;
      for (std::size_t i = first; i < first + count; ++i) {
        std::vector<std::byte> block(record.block_bytes());
        fill_block(hashes[i], block);
        std::vector<std::uint64_t> of_block(stripe_count(block.size()));
        block_checksums(checksum_seed(record.id(), hashes[i]), block, of_block);
        if (i == wrong_block) ++of_block.back();
        sums.insert(sums.end(), of_block.begin(), of_block.end());
        payload.insert(payload.end(), block.begin(), block.end());
      }
      reply(
          to, kFrameResponse | kFrameMore,
          [&](auto& builder) {
            return wire::CreateGetPartDirect(builder, 0, static_cast<std::uint32_t>(first),
                                             static_cast<std::uint32_t>(count), &sums);
          },
          is_inline ? std::span<const std::byte>(payload) : std::span<const std::byte>());
    }
    void get_response(const FrameHeader& to, std::size_t count) {
      reply(to, kFrameResponse,
            [&](auto& builder) { return wire::CreateGetResponse(builder, static_cast<std::uint32_t>(count)); });
    }
  };
  using Handler = std::function<bool(Session&, const FrameReader::Frame&)>;  ///< True: handled.

  FakeNode(asio::io_context& context, SimNetwork& network, std::string name) : context_(context) {
    listener_ = network.listen({Endpoint::Scheme::kSim, name, ""}, context.get_executor()).value();
    asio::co_spawn(context, accept(*this), asio::detached);
  }
  ~FakeNode() {
    listener_->close();
    close_all();
  }

  /// Ends every connection, as a process that dies does.
  void close_all() {
    for (const auto& session : sessions) session->stream->close();
    sessions.clear();
  }

  Handler handler;  ///< Asked first.
  std::string node_id = "fake#1";
  std::vector<std::uint8_t> instance = std::vector<std::uint8_t>(kInstanceBytes, 1);
  bool refuses = false;                            ///< Closes what it accepts.
  std::vector<std::shared_ptr<Session>> sessions;  ///< In order of connection.
  std::vector<TimePoint> accepted;
  std::map<FrameType, int> seen;
  const Clock* clock = nullptr;

 private:
  static asio::awaitable<void> accept(FakeNode& node) {
    for (;;) {
      auto stream = co_await node.listener_->accept(node.context_.get_executor());
      if (!stream) co_return;
      if (node.clock != nullptr) node.accepted.push_back(node.clock->now());
      if (node.refuses) continue;
      const auto session = std::make_shared<Session>(std::move(*stream), node.context_.get_executor());
      session->reader.set_limits({.table_bytes_max = 1 << 20, .payload_bytes_max = 1 << 30});
      node.sessions.push_back(session);
      asio::co_spawn(node.context_, serve(node, session), asio::detached);
      asio::co_spawn(node.context_, write(session), asio::detached);
    }
  }
  static asio::awaitable<void> write(std::shared_ptr<Session> session) { co_await session->writer.run(); }
  static asio::awaitable<void> serve(FakeNode& node, std::shared_ptr<Session> session) {
    for (;;) {
      const auto frame = co_await session->reader.next();
      if (!frame) break;
      ++node.seen[frame->header.type];
      if (!node.handler || !node.handler(*session, *frame)) node.answer(*session, *frame);
      if (frame->header.payload_bytes == 0) continue;
      const auto skipped = co_await session->reader.skip_payload();
      if (!skipped) break;
    }
    session->writer.close();
  }
  void answer(Session& session, const FrameReader::Frame& frame) {
    switch (frame.header.type) {
      case FrameType::kHello:
        return session.reply(frame.header, kFrameResponse, [&](auto& builder) {
          return wire::CreateHelloResponseDirect(builder, kWireVersion, node_id.c_str(), 0, 1 << 20, 65536, 64,
                                                 1ull << 30, 0, false, &instance);
        });
      case FrameType::kOpen: {
        const auto* request = read_table<wire::OpenRequest>(frame.table);
        const auto record = NamespaceRecord::parse(request->record()->string_view());
        return session.reply(frame.header, kFrameResponse, [&](auto& builder) {
          session.handles.insert(++handle_last_);
          const NamespaceId id = record->id();
          const auto* const bytes = reinterpret_cast<const std::uint8_t*>(id.bytes.data());
          const std::vector<std::uint8_t> name(bytes, bytes + id.bytes.size());
          return wire::CreateOpenResponseDirect(builder, handle_last_, record->block_bytes(), &name);
        });
      }
      case FrameType::kPing:
        return session.reply(frame.header, kFrameResponse,
                             [&](auto& builder) { return wire::CreateEmptyResponse(builder); });
      case FrameType::kRegionAdd:
        return session.reply(frame.header, kFrameResponse,
                             [&](auto& builder) { return wire::CreateRegionResponse(builder, ++handle_last_); });
      default: return;  // silence
    }
  }

  asio::io_context& context_;
  std::unique_ptr<Listener> listener_;
  std::uint32_t handle_last_ = 0;
};

}  // namespace kv
