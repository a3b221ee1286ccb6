// The server over real sockets and real threads.
#include "store/node/listen/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <thread>

#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "transport/wire_generated.h"

namespace kv {
namespace {

using flatbuffers::FlatBufferBuilder;

/// Blocking frames over a blocking socket.
template <class Socket>
class BlockingClient {
 public:
  explicit BlockingClient(Socket socket) : socket_(std::move(socket)) {}

  template <class Build>
  void send(FrameType type, std::uint64_t id, Build build) {
    FlatBufferBuilder builder;
    builder.Finish(build(builder));
    const auto built = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
    FrameHeader header;
    header.type = type;
    header.request_id = id;
    std::vector<std::byte> bytes(kFrameHeaderBytes);
    encode_frame_header(header, built, std::span<std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
    bytes.insert(bytes.end(), built.begin(), built.end());
    asio::write(socket_, asio::buffer(bytes));
  }
  /// Whether the node has ended the connection, with nothing left to read. Does not wait.
  bool is_ended() {
    char byte;
    return ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }
  /// The next frame's header, its table in `table`; an error at the end of the stream.
  boost::system::error_code receive(FrameHeader& header) {
    std::vector<std::byte> head(kFrameHeaderBytes);
    boost::system::error_code error;
    asio::read(socket_, asio::buffer(head), error);
    if (error) return error;
    header = decode_frame_header(std::span<const std::byte, kFrameHeaderBytes>(head.data(), kFrameHeaderBytes),
                                 {1 << 20, 1 << 30})
                 .value();
    table.resize(header.table_bytes);
    asio::read(socket_, asio::buffer(table), error);
    return error;
  }
  bool hello() {
    send(FrameType::kHello, 1, [](FlatBufferBuilder& b) { return wire::CreateHelloRequestDirect(b, 1, 1, "test"); });
    FrameHeader header;
    return !receive(header) && (header.flags & kFrameError) == 0;
  }
  bool ping(std::uint64_t id) {
    send(FrameType::kPing, id, [](FlatBufferBuilder& b) { return wire::CreatePingRequest(b); });
    FrameHeader header;
    return !receive(header) && header.request_id == id;
  }
  std::vector<std::byte> table;

 private:
  Socket socket_;
};

constexpr const char* kRecord = "block_bytes=65536\nblock_size=16\nmodel=m\n";
const std::uint64_t kCheck = namespace_check(NamespaceRecord::parse(kRecord).value().id());

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    StoreConfig config;
    config.arena.capacity_bytes = 1 << 20;
    config.arena.huge_pages = false;
    store = std::make_unique<LockedStore>(Store::create(config).value(), metrics);
    node.reset(new NodeContext{.store = *store, .clock = clock, .metrics = metrics, .limits = {}});
    node->node_id = "node-7";
  }
  Endpoint start(ServerConfig config, Endpoint endpoint = {Endpoint::Scheme::kTcp, "127.0.0.1", "0"}) {
    server = std::make_unique<Server>(*node, config);
    const Endpoint real = server->listen(socket_network(), endpoint).value();
    server->start();
    return real;
  }
  using TcpClient = BlockingClient<asio::ip::tcp::socket>;
  TcpClient connect(const Endpoint& endpoint) {
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address(endpoint.host), static_cast<unsigned short>(std::stoi(endpoint.port))});
    return TcpClient(std::move(socket));
  }

  SteadyClock clock;
  NodeMetrics metrics{"test"};
  std::unique_ptr<LockedStore> store;
  std::unique_ptr<NodeContext> node;
  asio::io_context io;
  std::unique_ptr<Server> server;
};

TEST_F(ServerTest, SessionsOnSeveralThreadsAreServed) {
  const Endpoint endpoint = start({.threads = 3});
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      asio::io_context own;
      asio::ip::tcp::socket socket(own);
      socket.connect({asio::ip::make_address(endpoint.host), static_cast<unsigned short>(std::stoi(endpoint.port))});
      TcpClient client(std::move(socket));
      if (!client.hello()) return;
      for (std::uint64_t id = 0; id < 200; ++id) good += client.ping(id);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 8 * 200);
  server->stop(1s);
  EXPECT_EQ(metrics.session_count(), 0u);
}

TEST_F(ServerTest, SeveralListenersServeOneStore) {
  const std::string path = "/tmp/kvstore-server-test-" + std::to_string(::getpid()) + ".sock";
  server = std::make_unique<Server>(*node, ServerConfig{.threads = 2});
  const Endpoint tcp = server->listen(socket_network(), {Endpoint::Scheme::kTcp, "127.0.0.1", "0"}).value();
  ASSERT_TRUE(server->listen(socket_network(), {Endpoint::Scheme::kUnix, path, ""}));
  EXPECT_FALSE(server->listen(socket_network(), tcp)) << "an address in use is an error";
  server->start();
  auto first = connect(tcp);
  EXPECT_TRUE(first.hello());
  asio::local::stream_protocol::socket socket(io);
  socket.connect({path});
  BlockingClient<asio::local::stream_protocol::socket> second(std::move(socket));
  EXPECT_TRUE(second.hello());
  server->stop(1s);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ServerTest, BusyPollingServesAsWell) {
  const Endpoint endpoint = start({.threads = 2, .busy_poll = std::chrono::microseconds(20)});
  auto client = connect(endpoint);
  EXPECT_TRUE(client.hello());
  for (std::uint64_t id = 0; id < 100; ++id) EXPECT_TRUE(client.ping(id));
}

TEST_F(ServerTest, SessionsBeyondTheLimitAreToldSo) {
  const Endpoint endpoint = start({.threads = 1, .sessions = {.count_max = 2}});
  auto first = connect(endpoint), second = connect(endpoint);
  EXPECT_TRUE(first.hello());
  EXPECT_TRUE(second.hello());
  auto third = connect(endpoint);
  FrameHeader header;
  ASSERT_FALSE(third.receive(header));
  EXPECT_EQ(header.type, FrameType::kHello);
  EXPECT_NE(header.flags & kFrameError, 0);
  const auto* error = read_table<wire::Error>(third.table);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(static_cast<Errc>(error->code()), Errc::kBusy);
  EXPECT_NE(error->message()->str().find("session-count-max"), std::string::npos);
  EXPECT_TRUE(third.receive(header)) << "and the connection ends";
  EXPECT_TRUE(first.ping(5));
}

TEST_F(ServerTest, APeerNeverGetsTheLastSessionsAndIsToldSo) {
  const Endpoint endpoint = start({.threads = 2, .sessions = {.count_max = 8}});
  std::vector<decltype(connect(endpoint))> own;
  for (int i = 0; i < 6; ++i) {
    own.push_back(connect(endpoint));
    EXPECT_TRUE(own.back().hello());
  }
  auto seventh = connect(endpoint);
  FrameHeader header;
  ASSERT_FALSE(seventh.receive(header));
  const auto* error = read_table<wire::Error>(seventh.table);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(static_cast<Errc>(error->code()), Errc::kBusy);
  EXPECT_NE(error->message()->str().find("session-share-max"), std::string::npos);
  EXPECT_NE(metrics.text().find("kvstore_sessions_refused_total{reason=\"peer\"} 1"), std::string::npos);
}

TEST_F(ServerTest, AnIdleSessionMakesRoomAndABusyOneStays) {
  const Endpoint endpoint =
      start({.threads = 2, .sessions = {.count_max = 2, .peer_share_max = 1, .idle_min = Duration::zero()}});
  auto busy = connect(endpoint), idle = connect(endpoint);
  ASSERT_TRUE(busy.hello());
  ASSERT_TRUE(idle.hello());
  busy.send(FrameType::kOpen, 2, [](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, kRecord); });
  FrameHeader header;
  ASSERT_FALSE(busy.receive(header));
  const std::uint32_t space = read_table<wire::OpenResponse>(busy.table)->space();
  busy.send(FrameType::kPut, 3, [&](FlatBufferBuilder& b) {
    const std::vector<wire::Hash> hashes(1);
    return wire::CreatePutRequestDirect(b, space, &hashes, nullptr, nullptr, 0, nullptr, 0, 0, kCheck);
  });
  ASSERT_FALSE(busy.receive(header));
  // The table learns once a second who is idle; until then newcomers are told to come again, or take each other's
  // place.
  while (!idle.is_ended()) {
    auto newcomer = connect(endpoint);
    try {
      static_cast<void>(newcomer.hello());
    } catch (const boost::system::system_error&) {  // refused before it could say hello
    }
  }
  EXPECT_TRUE(busy.ping(5));
}

TEST_F(ServerTest, StopEndsIdleSessionsAndRefusesNewOnes) {
  const Endpoint endpoint = start({.threads = 2});
  auto client = connect(endpoint), silent = connect(endpoint);
  EXPECT_TRUE(client.hello());
  server->stop(5s);
  FrameHeader header;
  EXPECT_TRUE(client.receive(header));
  EXPECT_TRUE(silent.receive(header));
  EXPECT_EQ(metrics.session_count(), 0u);
  EXPECT_TRUE(node->draining);
  asio::ip::tcp::socket late(io);
  boost::system::error_code error;
  late.connect({asio::ip::make_address(endpoint.host), static_cast<unsigned short>(std::stoi(endpoint.port))}, error);
  EXPECT_TRUE(error);
  server->stop(5s);  // again: nothing happens
}

TEST_F(ServerTest, StopWaitsForATransferUpToItsTimeout) {
  const Endpoint endpoint = start({.threads = 1});
  auto client = connect(endpoint);
  ASSERT_TRUE(client.hello());
  client.send(FrameType::kOpen, 2, [](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, kRecord); });
  FrameHeader header;
  ASSERT_FALSE(client.receive(header));
  const std::uint32_t space = read_table<wire::OpenResponse>(client.table)->space();
  client.send(FrameType::kPut, 3, [&](FlatBufferBuilder& b) {
    const std::vector<wire::Hash> hashes(1);
    return wire::CreatePutRequestDirect(b, space, &hashes, nullptr, nullptr, 0, nullptr, 0, 0, kCheck);
  });
  ASSERT_FALSE(client.receive(header));
  ASSERT_NE(header.flags & kFrameMore, 0);
  server->stop(50ms);  // the put's bytes never come
  EXPECT_TRUE(client.receive(header));
  EXPECT_EQ(metrics.session_count(), 0u);
  EXPECT_EQ(store->with([](Store& each) { return each.stats().incoming_count; }), 0u);
  EXPECT_EQ(store->with([](Store& each) { return each.check(); }), "");
}

TEST_F(ServerTest, AServerThatNeverStartedStops) {
  server = std::make_unique<Server>(*node, ServerConfig{.threads = 2});
  ASSERT_TRUE(server->listen(socket_network(), {Endpoint::Scheme::kTcp, "127.0.0.1", "0"}));
  server.reset();
}

}  // namespace
}  // namespace kv
