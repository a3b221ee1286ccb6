// tests/node/node_world.h: a node's sessions over a simulated network, and a client that sends whatever frames it
// likes.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "store/node/session/session.h"
#include "tests/transport/frame_bytes.h"
#include "tests/transport/sim_world.h"
#include "transport/shared_memory.h"
#include "transport/wire_generated.h"

namespace kv {

/// One answer frame, all of it.
struct Answer {
  FrameHeader header;
  Bytes table, payload;

  bool is_error() const { return (header.flags & kFrameError) != 0; }
  bool is_last() const { return (header.flags & kFrameMore) == 0; }
  /// The table; fails the test and throws if it is not one of this kind.
  template <class Table>
  const Table& as() const {
    const Table* const table_of_kind = read_table<Table>(table);
    if (table_of_kind == nullptr) throw std::runtime_error("the answer's table fails verification");
    return *table_of_kind;
  }
  // Of an answer that is no error: none, so that a test which expects one fails and goes on.
  Errc error() const { return is_error() ? static_cast<Errc>(as<wire::Error>().code()) : Errc{}; }
  std::string message() const {
    const auto* const text = is_error() ? as<wire::Error>().message() : nullptr;
    return text == nullptr ? "" : text->str();
  }
};

/// A client that knows frames and no rules.
class RawClient {
 public:
  RawClient(SimWorld& world, std::unique_ptr<Stream> stream)
      : world_(world), state_(std::make_shared<State>(std::move(stream))) {}
  ~RawClient() { close(); }
  void close() { state_->stream->close(); }
  Stream& stream() { return *state_->stream; }

  /// False if the node did not take all of them within `limit`.
  bool send_bytes(std::span<const std::byte> bytes, Duration limit = 100s) {
    return world_.await(write_all(state_, Bytes(bytes.begin(), bytes.end())), limit).value_or(false);
  }
  template <class Build>
  void send(FrameType type, std::uint64_t id, Build build, std::span<const std::byte> payload = {}) {
    EXPECT_TRUE(send_bytes(frame_bytes(type, id, build, payload)));
  }
  /// The next answer frame; nullopt if the node ended the session or nothing came within `limit`.
  std::optional<Answer> next(Duration limit = 100s) {
    read();
    world_.run_until([&] { return !state_->answers.empty() || state_->end; }, limit);
    if (state_->answers.empty()) return std::nullopt;
    Answer answer = std::move(state_->answers.front());
    state_->answers.pop_front();
    return answer;
  }
  template <class Build>
  Answer ask(FrameType type, std::uint64_t id, Build build, std::span<const std::byte> payload = {}) {
    send(type, id, build, payload);
    return answer();
  }
  /// The next answer frame, which must come.
  Answer answer() {
    auto answer = next();
    if (!answer) throw std::runtime_error("no answer: " + state_->end.message());
    return std::move(*answer);
  }
  /// Whether the node ended the session, with nothing left to read.
  bool ended(Duration limit = 100s) {
    read();
    world_.run_until([&] { return bool(state_->end); }, limit);
    return state_->end && state_->answers.empty();
  }
  /// From now on whatever comes is read. Called by next(); a client that never calls it never reads.
  void read() {
    if (std::exchange(state_->reading, true)) return;
    asio::co_spawn(world_.io, read_all(state_), asio::detached);
  }

 private:
  struct State {
    explicit State(std::unique_ptr<Stream> from) : stream(std::move(from)), reader(*stream) {
      reader.set_limits({64 << 20, 1ull << 32});
    }
    std::unique_ptr<Stream> stream;
    FrameReader reader;
    std::deque<Answer> answers;
    error_code end;
    bool reading = false;
  };
  class BytesSink final : public PayloadSink {
   public:
    explicit BytesSink(Bytes& to) : to_(to) {}
    std::size_t next(std::span<asio::mutable_buffer> buffers) override {
      buffers[0] = asio::buffer(to_.data() + at_, to_.size() - at_);
      return 1;
    }
    void filled(std::size_t bytes) override { at_ += bytes; }

   private:
    Bytes& to_;
    std::size_t at_ = 0;
  };

  static asio::awaitable<bool> write_all(std::shared_ptr<State> state, Bytes bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      const asio::const_buffer rest = asio::buffer(bytes.data() + at, bytes.size() - at);
      const auto count = state->stream->try_write(std::span(&rest, 1));
      if (count) {
        at += *count;
        continue;
      }
      if (count.error() != asio::error::would_block) co_return false;
      const auto ready = co_await state->stream->wait_writable();
      if (!ready) co_return false;
    }
    co_return true;
  }
  static asio::awaitable<void> read_all(std::shared_ptr<State> state) {
    while (true) {
      const auto frame = co_await state->reader.next();
      if (!frame) {
        state->end = frame.error();
        co_return;
      }
      Answer answer{frame->header, Bytes(frame->table.begin(), frame->table.end()), Bytes(frame->header.payload_bytes)};
      BytesSink sink(answer.payload);
      const auto read = co_await state->reader.read_payload(sink);
      if (!read) {
        state->end = read.error();
        co_return;
      }
      state->answers.push_back(std::move(answer));
    }
  }

  SimWorld& world_;
  std::shared_ptr<State> state_;
};

/// A node with a small arena, and what clients of it need. Every test ends with all sessions gone, nothing incoming,
/// nothing pinned, and every invariant of the Store intact.
class NodeTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlockBytes = 2 * kStripeBytes + 4096;
  static constexpr std::size_t kBlockSize = 4;

  NodeTest() { start(32); }
  /// A fresh node with room for `block_count` blocks of kBlockBytes, and on disk for `disk_bytes`.
  void start(std::size_t block_count, std::uint64_t disk_bytes = 0, std::size_t granule_bytes = kBlockBytes) {
    StoreConfig config;
    config.disk.capacity_bytes = disk_bytes;
    config.spill.reserve = disk_bytes > 0 ? 0.5 : config.spill.reserve;
    config.arena.capacity_bytes = block_count * kBlockBytes;
    config.arena.granule_bytes = granule_bytes;
    config.arena.huge_pages = false;
    config.arena.touch = false;
    config.has_tenants = has_tenants;
    config.event_count_max = event_count_max;
    config.chain_blocks_max = chain_blocks_max;
    config.lease_duration = 10s;
    config.leased_fraction_max = 1;  // a lease on everything makes puts wait
    store.reset();
    node.reset();
    store = std::make_unique<LockedStore>(Store::create(config).value(), metrics);
    node.reset(new NodeContext{.store = *store, .clock = world.clock, .metrics = metrics, .limits = {}});
    node->chain_blocks_max = chain_blocks_max;
    node->lease_duration = config.lease_duration;
    node->node_id = "node-7";  // in every life
    node->instance.fill(std::byte{static_cast<unsigned char>(++life_count_)});
    node->started = world.clock.now();
    if (!listener)
      listener = world.network.listen({Endpoint::Scheme::kSim, "node", ""}, world.io.get_executor()).value();
  }

  bool has_tenants = false;         ///< Of the next start(): the store tells tenants apart.
  std::size_t event_count_max = 0;  ///< The same: as of StoreConfig.
  std::uint32_t chain_blocks_max = 1000;

  void TearDown() override {
    world.network.thaw("node");
    for (const auto& weak : sessions_) {
      if (const auto session = weak.lock()) session->terminate(SessionEnd::kDrained);
    }
    world.run_until([&] { return session_count == 0; }, 100s);
    world.run_for(10s);
    ASSERT_EQ(session_count, 0u) << "a session does not end";
    EXPECT_EQ(metrics.session_count(), 0u);
    for (const auto& weak : sessions_) EXPECT_TRUE(weak.expired()) << "a session is kept alive";
    store->with([&](Store& each) {
      EXPECT_EQ(each.check(), "");
      EXPECT_EQ(each.stats().incoming_count, 0u);
      EXPECT_EQ(each.stats().lease_count, 0u);
      for (const auto& opened : each.list_spaces(nullptr)) EXPECT_TRUE(each.drop(opened.id, {}));
      while (each.is_dropping()) each.drop_more(world.clock.now());
      EXPECT_EQ(each.stats().allocated_bytes, 0u) << "something is still pinned";
      EXPECT_EQ(each.check(), "");
    });
  }

  /// A connection that has said nothing yet.
  std::unique_ptr<RawClient> connect() {
    auto stream = world.await(world.network.connect(listener->endpoint(), world.io.get_executor())).value().value();
    auto accepted = world.await(listener->accept(world.io.get_executor())).value().value();
    if (wrap_accepted) accepted = wrap_accepted(std::move(accepted));
    const auto session = std::make_shared<Session>(*node, SessionId{++session_last_}, std::move(accepted),
                                                   world.io.get_executor(), verbs_thread);
    ++session_count;
    sessions_.push_back(session);
    asio::co_spawn(world.io, session->run(), [this, session](std::exception_ptr error) {
      --session_count;
      if (error) std::rethrow_exception(error);
    });
    return std::make_unique<RawClient>(world, std::move(stream));
  }
  static auto hello_request(std::uint8_t version_min = kWireVersion, std::uint8_t version_max = kWireVersion) {
    return [=](FlatBufferBuilder& b) { return wire::CreateHelloRequestDirect(b, version_min, version_max, "test"); };
  }
  static auto open_request(const NamespaceRecord& which) {
    return [text = which.text()](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); };
  }
  /// A connection that has said hello and opened `record`, which is then namespace `space`.
  std::unique_ptr<RawClient> greet() {
    auto client = connect();
    EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
    space = open(*client, record);
    return client;
  }
  static std::uint32_t open(RawClient& client, const NamespaceRecord& which) {
    const auto answer = client.ask(FrameType::kOpen, 2, open_request(which));
    return answer.as<wire::OpenResponse>().space();
  }
  static NamespaceRecord make_record(const std::string& model, std::size_t block_bytes) {
    return NamespaceRecord::from_fields({{"model", model},
                                         {"block_size", std::to_string(kBlockSize)},
                                         {"block_bytes", std::to_string(block_bytes)}})
        .value();
  }

  // -- blocks: bytes that are a function of the name
  static std::vector<BlockHash> chain(std::uint32_t salt, std::size_t count) {
    std::vector<std::uint32_t> tokens(count * kBlockSize);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = salt * 1000 + static_cast<std::uint32_t>(i);
    return hash_chain(BlockHash(), tokens, kBlockSize);
  }
  Bytes block(const BlockHash& hash) const {
    Bytes bytes(record.block_bytes());
    std::uint64_t state = hash_prefix(hash);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      bytes[i] = static_cast<std::byte>(state >> 56);
    }
    return bytes;
  }
  Bytes blocks(std::span<const BlockHash> hashes) const {
    Bytes all;
    for (const auto& hash : hashes) {
      const Bytes one = block(hash);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  std::vector<std::uint64_t> sums(std::span<const BlockHash> hashes) const {
    const std::size_t stripes = stripe_count(record.block_bytes());
    std::vector<std::uint64_t> all(hashes.size() * stripes);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      block_checksums(checksum_seed(record.id(), hashes[i]), block(hashes[i]),
                      std::span(all).subspan(i * stripes, stripes));
    }
    return all;
  }
  static std::vector<wire::Hash> wire_hashes(std::span<const BlockHash> hashes) {
    std::vector<wire::Hash> all(hashes.size());
    if (!hashes.empty()) std::memcpy(static_cast<void*>(all.data()), hashes.data(), hashes.size_bytes());
    return all;
  }

  // -- requests
  std::uint64_t check() const { return namespace_check(record.id()); }
  auto match_request(std::span<const BlockHash> hashes, bool lease = false, std::vector<std::uint32_t> tokens = {}) {
    return [=, this, wanted = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreateMatchRequestDirect(b, space, &wanted, tokens.empty() ? nullptr : &tokens, lease, false,
                                            check());
    };
  }
  auto get_request(std::span<const BlockHash> hashes, std::uint32_t region = 0, std::vector<std::uint64_t> offsets = {},
                   std::vector<std::uint64_t> segment_ends = {}, std::uint64_t lease = 0) {
    return [=, this, wanted = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreateGetRequestDirect(b, space, &wanted, lease, region, &offsets, &segment_ends, 2, 0, 0, check());
    };
  }
  auto put_request(std::span<const BlockHash> hashes, std::uint32_t region = 0, std::vector<std::uint64_t> offsets = {},
                   std::uint64_t deadline_us = 0, std::vector<std::uint32_t> tokens = {}) {
    return [=, this, offered = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreatePutRequestDirect(b, space, &offered, nullptr, tokens.empty() ? nullptr : &tokens, region,
                                          &offsets, deadline_us, 0, check());
    };
  }
  static auto put_data(std::size_t count, std::vector<std::uint64_t> checksums) {
    return [=](FlatBufferBuilder& b) {
      return wire::CreatePutDataDirect(b, static_cast<std::uint32_t>(count), &checksums);
    };
  }
  auto prefix_request(std::span<const BlockHash> hashes) {
    return [this, wanted = wire_hashes(hashes)](FlatBufferBuilder& b) {
      return wire::CreatePrefixRequestDirect(b, space, &wanted, check());
    };
  }
  static auto region_add(std::uint64_t bytes) {
    return [=](FlatBufferBuilder& b) { return wire::CreateRegionAddRequest(b, bytes); };
  }
  static auto region_remove(std::uint32_t region) {
    return [=](FlatBufferBuilder& b) { return wire::CreateRegionRemoveRequest(b, region); };
  }
  static auto cancel(std::uint64_t id) {
    return [=](FlatBufferBuilder& b) { return wire::CreateCancelRequest(b, id); };
  }
  static auto ping() {
    return [](FlatBufferBuilder& b) { return wire::CreatePingRequest(b); };
  }

  // -- whole flows
  /// Puts the chain inline; how many blocks were stored by it.
  std::uint32_t put(RawClient& client, std::span<const BlockHash> hashes) {
    Answer answer = client.ask(FrameType::kPut, 100, put_request(hashes));
    if (!answer.is_last()) {
      const auto& want = answer.as<wire::PutWant>();
      const auto wanted = hashes.subspan(want.first_block(), want.block_count());
      answer = client.ask(FrameType::kPutData, 100, put_data(wanted.size(), sums(wanted)), blocks(wanted));
    }
    EXPECT_FALSE(answer.is_error()) << answer.message();
    return answer.as<wire::PutResponse>().stored();
  }
  struct Got {
    Bytes bytes;
    std::vector<std::uint64_t> checksums;
    std::uint32_t block_count = 0;
  };
  /// Gets the chain inline in one segment.
  Got get(RawClient& client, std::span<const BlockHash> hashes) {
    Got got;
    client.send(FrameType::kGet, 101, get_request(hashes));
    while (true) {
      const Answer answer = client.answer();
      if (answer.is_error()) throw std::runtime_error(answer.message());
      if (answer.is_last()) {
        got.block_count = answer.as<wire::GetResponse>().block_count();
        return got;
      }
      got.bytes.insert(got.bytes.end(), answer.payload.begin(), answer.payload.end());
      for (const auto sum : *answer.as<wire::GetPart>().checksums()) got.checksums.push_back(sum);
    }
  }
  std::uint32_t matched(RawClient& client, std::span<const BlockHash> hashes) {
    return client.ask(FrameType::kMatch, 102, match_request(hashes)).as<wire::MatchResponse>().host_blocks();
  }
  /// Lends `memory`; the region's handle.
  std::uint32_t lend(RawClient& client, const SharedMemory& memory) {
    client.stream().send_descriptor(memory.fd());
    const auto answer = client.ask(FrameType::kRegionAdd, 103, region_add(memory.bytes().size()));
    EXPECT_FALSE(answer.is_error()) << answer.message();
    return answer.as<wire::RegionResponse>().region();
  }
  /// Another client is served as if nothing had happened, and the Store is in order.
  void expect_others_served() {
    const auto other = greet();
    const auto hashes = chain(0xBEEF, 2);
    put(*other, hashes);
    EXPECT_TRUE(get(*other, hashes).bytes == blocks(hashes));
    EXPECT_EQ(store->with([](Store& each) { return each.check(); }), "");
  }
  StoreStats stats() {
    return store->with([](Store& each) { return each.stats(); });
  }
  /// The value of one metric, by the start of its line; -1 if there is none.
  double metric(const std::string& line) const {
    const std::string text = metrics.text();
    const auto at = text.find("\n" + line + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size() + 2));
  }

  SimWorld world;
  NodeMetrics metrics{"test"};
  std::unique_ptr<LockedStore> store;
  std::unique_ptr<NodeContext> node;
  /// Put around the node's side of the streams that are accepted from then on.
  std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)> wrap_accepted;
  std::shared_ptr<VerbsThread> verbs_thread;  ///< Of sessions from now on; nullptr: no RDMA.
  std::unique_ptr<Listener> listener;
  NamespaceRecord record = make_record("m", kBlockBytes);
  std::uint32_t space = 0;
  std::size_t session_count = 0;

  std::vector<std::weak_ptr<Session>> sessions_;

 private:
  std::uint64_t session_last_ = 0;
  int life_count_ = 0;
};

}  // namespace kv
