#include "tests/fakes/sim_network.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "tests/transport/descriptor_count.h"
#include "tests/transport/sim_world.h"
#include "transport/shared_memory.h"

namespace kv {
namespace {

const Endpoint kNode = {Endpoint::Scheme::kSim, "node", ""};

struct Pair {
  std::unique_ptr<Stream> client, server;
};

class SimNetworkTest : public testing::Test {
 protected:
  SimWorld world;
  std::unique_ptr<Listener> listener = listen(world);

  static std::unique_ptr<Listener> listen(SimWorld& in) {
    return in.network.listen(kNode, in.io.get_executor()).value();
  }
  static Pair connect(SimWorld& in, Listener& from) {
    Pair pair;
    pair.client = in.await(in.network.connect(kNode, in.io.get_executor())).value().value();
    pair.server = in.await(from.accept(in.io.get_executor())).value().value();
    return pair;
  }
  Pair connect() { return connect(world, *listener); }

  static Result<std::size_t> write(Stream& stream, const std::string& text) {
    const asio::const_buffer buffer = asio::buffer(text);
    return stream.try_write(std::span(&buffer, 1));
  }
  static Result<std::string> read(Stream& stream) {
    std::string text(1 << 20, '\0');
    const asio::mutable_buffer buffer = asio::buffer(text);
    const auto count = stream.try_read(std::span(&buffer, 1));
    if (!count) return count.error();
    text.resize(*count);
    return text;
  }
  /// All that comes until `count` bytes are there or the stream fails.
  static asio::awaitable<std::string> read_some(Stream& stream, std::size_t count) {
    std::string all;
    while (all.size() < count) {
      const auto part = read(stream);
      if (part) {
        all += *part;
        continue;
      }
      if (part.error() != asio::error::would_block) break;
      const auto ready = co_await stream.wait_readable();
      if (!ready) break;
    }
    co_return all;
  }
  static asio::awaitable<std::size_t> write_all(Stream& stream, std::string text) {
    std::size_t at = 0;
    while (at < text.size()) {
      const auto count = write(stream, text.substr(at));
      if (count) {
        at += *count;
        continue;
      }
      if (count.error() != asio::error::would_block) break;
      const auto ready = co_await stream.wait_writable();
      if (!ready) break;
    }
    co_return at;
  }
};

TEST_F(SimNetworkTest, BytesArriveInOrderAndAfterTheDelay) {
  const Pair pair = connect();
  world.network.set_faults({.delay_min = 100us, .delay_max = 100us, .chunk_bytes_max = 3});
  EXPECT_EQ(world.await(write_all(*pair.client, "hello, node")).value(), 11u);
  EXPECT_EQ(read(*pair.server).error(), asio::error::would_block);
  const TimePoint before = world.clock.now();
  EXPECT_EQ(world.await(read_some(*pair.server, 11)).value(), "hello, node");
  EXPECT_EQ(world.clock.now(), before + 100us);
}

TEST_F(SimNetworkTest, AWriterWaitsWhenTheReaderDoesNotRead) {
  const Pair pair = connect();
  const auto written = world.await(write_all(*pair.client, std::string(4 << 20, 'x')), 10s);
  EXPECT_FALSE(written.has_value());
  EXPECT_EQ(world.await(read_some(*pair.server, 4 << 20)).value().size(), std::size_t{4 << 20});
}

TEST_F(SimNetworkTest, WhatWasSentBeforeACloseIsReadAndThenTheEnd) {
  Pair pair = connect();
  ASSERT_TRUE(write(*pair.client, "last words"));
  pair.client->close();
  EXPECT_EQ(world.await(read_some(*pair.server, 100)).value(), "last words");
  EXPECT_EQ(read(*pair.server).error(), asio::error::eof);
  EXPECT_EQ(read(*pair.client).error(), asio::error::operation_aborted);
}

TEST_F(SimNetworkTest, WritingToAPeerThatIsGoneFails) {
  Pair pair = connect();
  pair.client.reset();
  world.run_for(1s);
  const auto written = world.await(write_all(*pair.server, std::string(4 << 20, 'x')), 10s);
  ASSERT_TRUE(written.has_value()) << "it must not wait for a reader that will never come";
  EXPECT_LT(*written, std::size_t{4 << 20});
}

TEST_F(SimNetworkTest, CloseEndsTheOwnWaits) {
  Pair pair = connect();
  error_code result;
  asio::co_spawn(world.io, pair.server->wait_readable(),
                 [&](std::exception_ptr, const Result<void>& ready) { result = ready ? error_code() : ready.error(); });
  world.poll();
  pair.server->close();
  world.poll();
  EXPECT_EQ(result, asio::error::operation_aborted);
}

TEST_F(SimNetworkTest, NobodyListeningRefuses) {
  listener->close();
  const auto stream = world.await(world.network.connect(kNode, world.io.get_executor())).value();
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error(), asio::error::connection_refused);
  listener = listen(world);
  EXPECT_TRUE(world.await(world.network.connect(kNode, world.io.get_executor())).value());
}

TEST_F(SimNetworkTest, ANameIsTakenOnceAndOtherSchemesAreNotSpoken) {
  EXPECT_EQ(world.network.listen(kNode, world.io.get_executor()).error(), asio::error::address_in_use);
  const Endpoint tcp = {Endpoint::Scheme::kTcp, "127.0.0.1", "0"};
  EXPECT_EQ(world.network.listen(tcp, world.io.get_executor()).error(), Errc::kUnsupported);
  EXPECT_EQ(world.await(world.network.connect(tcp, world.io.get_executor()))->error(), Errc::kUnsupported);
}

TEST_F(SimNetworkTest, KillBreaksBothSidesAndRefusesUntilRevived) {
  const Pair pair = connect();
  ASSERT_TRUE(write(*pair.client, "lost"));
  error_code woken;
  asio::co_spawn(world.io, read_some(*pair.client, 1),
                 [&](std::exception_ptr, const std::string&) { woken = asio::error::connection_reset; });
  world.poll();
  world.network.kill("node");
  world.poll();
  EXPECT_TRUE(woken) << "a sleeping reader is woken";
  EXPECT_EQ(read(*pair.client).error(), asio::error::connection_reset);
  EXPECT_EQ(read(*pair.server).error(), asio::error::connection_reset);
  EXPECT_EQ(write(*pair.client, "x").error(), asio::error::connection_reset);
  EXPECT_EQ(world.await(world.network.connect(kNode, world.io.get_executor()))->error(),
            asio::error::connection_refused);
  world.network.revive("node");
  const Pair again = connect();
  ASSERT_TRUE(write(*again.client, "x"));
  EXPECT_EQ(world.await(read_some(*again.server, 1)).value(), "x");
}

TEST_F(SimNetworkTest, AFrozenHostHearsNothingAndLosesNothing) {
  const Pair pair = connect();
  world.network.freeze("node");
  ASSERT_TRUE(write(*pair.client, "to the node"));
  ASSERT_TRUE(write(*pair.server, "from the node"));
  world.run_for(60s);
  EXPECT_EQ(read(*pair.server).error(), asio::error::would_block);
  EXPECT_EQ(read(*pair.client).error(), asio::error::would_block);
  std::string at_server, at_client;
  asio::co_spawn(world.io, read_some(*pair.server, 11), [&](std::exception_ptr, std::string got) { at_server = got; });
  asio::co_spawn(world.io, read_some(*pair.client, 13), [&](std::exception_ptr, std::string got) { at_client = got; });
  world.run_for(60s);
  EXPECT_EQ(at_server + at_client, "");
  world.network.thaw("node");
  world.run_for(1s);
  EXPECT_EQ(at_server, "to the node");
  EXPECT_EQ(at_client, "from the node");
}

/// Between two hosts that have names, one way or both, and nothing else.
TEST_F(SimNetworkTest, AWayThatIsCutCarriesNothingUntilItIsMendedAndTheOtherWayDoes) {
  SimNetwork& network = world.network;
  const auto connect_from = [&](const std::string& name) {
    Pair pair;
    pair.client = world.await(network.from(name).connect(kNode, world.io.get_executor())).value().value();
    pair.server = world.await(listener->accept(world.io.get_executor())).value().value();
    return pair;
  };
  const Pair a = connect_from("a"), b = connect_from("b");
  network.cut("a", "node");
  for (const Pair* pair : {&a, &b}) {
    ASSERT_TRUE(write(*pair->client, "to the node"));
    ASSERT_TRUE(write(*pair->server, "from the node"));
  }
  world.run_for(60s);
  EXPECT_EQ(read(*a.server).error(), asio::error::would_block);
  EXPECT_EQ(world.await(read_some(*a.client, 13)).value(), "from the node");
  EXPECT_EQ(world.await(read_some(*b.server, 11)).value(), "to the node");
  std::unique_ptr<Stream> later;
  asio::co_spawn(world.io, network.from("a").connect(kNode, world.io.get_executor()),
                 [&](std::exception_ptr, Result<std::unique_ptr<Stream>> got) { later = std::move(*got); });
  world.run_for(60s);
  EXPECT_EQ(later, nullptr) << "a connection needs both ways";
  network.mend_all();
  world.run_for(1s);
  EXPECT_NE(later, nullptr);
  EXPECT_EQ(world.await(read_some(*a.server, 11)).value(), "to the node");
}

TEST_F(SimNetworkTest, TheEndOfAStreamIsNotSeenWhereTheWayIsCut) {
  SimNetwork& network = world.network;
  Pair pair;
  pair.client = world.await(network.from("a").connect(kNode, world.io.get_executor())).value().value();
  pair.server = world.await(listener->accept(world.io.get_executor())).value().value();
  network.cut("node", "a");
  pair.server.reset();
  world.run_for(10s);
  EXPECT_EQ(read(*pair.client).error(), asio::error::would_block);
  EXPECT_TRUE(write(*pair.client, "into the void"));
  network.mend_all();
  world.run_for(1s);
  EXPECT_EQ(read(*pair.client).error(), asio::error::eof);
  EXPECT_EQ(write(*pair.client, "x").error(), asio::error::connection_reset);
}

TEST_F(SimNetworkTest, ConnectingToAFrozenHostWaitsUntilItThaws) {
  world.network.freeze("node");
  std::unique_ptr<Stream> stream;
  asio::co_spawn(world.io, world.network.connect(kNode, world.io.get_executor()),
                 [&](std::exception_ptr, Result<std::unique_ptr<Stream>> got) { stream = std::move(*got); });
  world.run_for(60s);
  EXPECT_EQ(stream, nullptr);
  world.network.thaw("node");
  world.run_for(1s);
  EXPECT_NE(stream, nullptr);
}

TEST_F(SimNetworkTest, ACloseWhileFrozenIsSeenAfterTheThaw) {
  Pair pair = connect();
  world.network.freeze("node");
  pair.client.reset();
  world.run_for(10s);
  EXPECT_EQ(read(*pair.server).error(), asio::error::would_block);
  bool ended = false;
  asio::co_spawn(world.io, read_some(*pair.server, 1), [&](std::exception_ptr, const std::string&) { ended = true; });
  world.run_for(10s);
  EXPECT_FALSE(ended);
  world.network.thaw("node");
  world.run_for(1s);
  EXPECT_TRUE(ended);
}

TEST_F(SimNetworkTest, DescriptorsArriveWithTheirBytesAndSurplusOnesAreClosed) {
  const std::size_t before = descriptor_count();
  {
    Pair pair = connect();
    const auto memory = SharedMemory::create(4096).value();
    ASSERT_TRUE(pair.client->can_pass_descriptors());
    EXPECT_FALSE(pair.server->take_descriptor());
    for (const char* text : {"a", "b", "c"}) {
      pair.client->send_descriptor(memory->fd());
      ASSERT_TRUE(write(*pair.client, text));
    }
    EXPECT_EQ(world.await(read_some(*pair.server, 3)).value(), "abc");
    const Descriptor passed = pair.server->take_descriptor();
    ASSERT_TRUE(passed);
    struct stat sent, got;
    ASSERT_EQ(::fstat(memory->fd(), &sent), 0);
    ASSERT_EQ(::fstat(passed.get(), &got), 0);
    EXPECT_EQ(sent.st_ino, got.st_ino);
    EXPECT_FALSE(pair.server->take_descriptor()) << "taken once";
    pair.client->send_descriptor(memory->fd());
    ASSERT_TRUE(write(*pair.client, "in flight at the end"));
  }
  EXPECT_EQ(descriptor_count(), before);
}

TEST_F(SimNetworkTest, StreamCountFallsWhenBothEndsAreGone) {
  EXPECT_EQ(world.network.stream_count(), 0u);
  Pair pair = connect();
  EXPECT_EQ(world.network.stream_count(), 2u);
  pair = Pair();
  EXPECT_EQ(world.network.stream_count(), 0u);
}

TEST_F(SimNetworkTest, BreakOneBreaksSomeStreamOrNothing) {
  world.network.break_one();
  const Pair pair = connect();
  world.network.break_one();
  EXPECT_EQ(read(*pair.client).error(), asio::error::connection_reset);
}

TEST_F(SimNetworkTest, AFlippedBitChangesOneBitOfAChunk) {
  const Pair pair = connect();
  world.network.set_faults({.chunk_bytes_max = 1000, .flip_probability = 1});
  const std::string text(1000, '\0');
  std::size_t count = 0;
  while (count < text.size()) count += write(*pair.client, text.substr(count)).value();
  const std::string got = world.await(read_some(*pair.server, text.size())).value();
  int bits = 0;
  for (const char c : got) bits += __builtin_popcount(static_cast<unsigned char>(c));
  EXPECT_GE(bits, 1);
}

/// Some traffic under every fault, as a list of what happened when.
std::string trace(std::uint64_t seed) {
  SimWorld world(seed);
  const auto listener = world.network.listen(kNode, world.io.get_executor()).value();
  world.network.set_faults({.chunk_bytes_max = 50,
                            .break_probability = 0.002,
                            .flip_probability = 0.01,
                            .stall_probability = 0.05,
                            .stall_max = 100ms});
  std::string log;
  const TimePoint start = world.clock.now();
  const auto note = [&](char who, const std::string& what) {
    log += who + std::to_string((world.clock.now() - start).count()) + ":" + what + "\n";
  };
  std::vector<Pair> pairs;
  const auto pump = [](Stream& stream, char who, const auto& write_note) -> asio::awaitable<void> {
    std::string text(300, who);
    const asio::const_buffer out = asio::buffer(text);
    for (int i = 0; i < 40; ++i) {
      const auto sent = stream.try_write(std::span(&out, 1));
      write_note(who, sent ? "w" + std::to_string(*sent) : sent.error().message());
      std::string in(100, '\0');
      const asio::mutable_buffer room = asio::buffer(in);
      const auto got = stream.try_read(std::span(&room, 1));
      write_note(who, got ? in.substr(0, *got) : got.error().message());
      if (got || got.error() != asio::error::would_block) continue;
      const auto ready = co_await stream.wait_readable();
      if (!ready) break;
    }
  };
  for (int i = 0; i < 3; ++i) {
    Pair pair;
    pair.client = world.await(world.network.connect(kNode, world.io.get_executor())).value().value();
    pair.server = world.await(listener->accept(world.io.get_executor())).value().value();
    pairs.push_back(std::move(pair));
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    asio::co_spawn(world.io, pump(*pairs[i].client, static_cast<char>('a' + i), note), asio::detached);
    asio::co_spawn(world.io, pump(*pairs[i].server, static_cast<char>('A' + i), note), asio::detached);
  }
  world.run_for(1s);
  world.network.freeze("node");
  world.run_for(1s);
  world.network.thaw("node");
  world.network.break_one();
  world.run_for(1s);
  world.network.kill("node");
  world.run_for(1s);
  return log;
}

TEST(SimNetworkSeedTest, EqualSeedsGiveEqualRunsAndOthersDiffer) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string first = trace(seed);
    EXPECT_GT(first.size(), 1000u);
    EXPECT_EQ(first, trace(seed)) << "seed " << seed;
    EXPECT_NE(first, trace(seed + 1000));
  }
}

}  // namespace
}  // namespace kv
