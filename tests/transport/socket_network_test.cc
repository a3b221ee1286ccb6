// Real sockets on loopback. Waits are for events, never for time: the limit below only ends a test that failed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <optional>
#include <random>
#include <sstream>
#include <tuple>

#include "base/busy_poll.h"
#include "tests/transport/descriptor_count.h"
#include "transport/frames/frame_reader.h"
#include "transport/frames/frame_writer.h"
#include "transport/resolver.h"
#include "transport/shared_memory.h"
#include "transport/stream.h"

namespace kv {
namespace {

/// A directory that goes away with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = "/tmp/kvstore-test-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// The scheme, and how long the thread spins before it sleeps: then reads are waited for in another way.
using NetworkParam = std::tuple<Endpoint::Scheme, Duration>;

class SocketNetworkTest : public testing::TestWithParam<NetworkParam> {
 protected:
  TemporaryDirectory directory;
  asio::io_context io{1};
  BusyPoll busy_poll{io, std::get<1>(GetParam())};

  static Endpoint::Scheme scheme() { return std::get<0>(GetParam()); }

  Endpoint any_endpoint() const {
    if (scheme() == Endpoint::Scheme::kUnix) return {Endpoint::Scheme::kUnix, directory / "s", ""};
    return {Endpoint::Scheme::kTcp, "127.0.0.1", "0"};
  }
  template <class T>
  std::optional<T> await(asio::awaitable<T> work) {
    const auto result = std::make_shared<std::optional<T>>();
    asio::co_spawn(io, std::move(work), [result](std::exception_ptr error, T value) {
      if (error) std::rethrow_exception(error);
      result->emplace(std::move(value));
    });
    run_until([&] { return result->has_value(); });
    return std::move(*result);
  }
  void run_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    asio::steady_timer at_end(io, end);
    at_end.async_wait([](error_code) {});
    while (!done() && std::chrono::steady_clock::now() < end) {
      io.restart();
      busy_poll.run_some();
    }
    EXPECT_TRUE(done()) << "nothing more happened";
  }
  struct Pair {
    std::unique_ptr<Stream> client, server;
  };
  Pair connect(Listener& listener) {
    Pair pair;
    pair.client = await(socket_network().connect(listener.endpoint(), io.get_executor())).value().value();
    pair.server = await(listener.accept(io.get_executor())).value().value();
    return pair;
  }
  std::unique_ptr<Listener> listen() { return socket_network().listen(any_endpoint(), io.get_executor()).value(); }

  static asio::awaitable<std::string> read_some(Stream& stream, std::size_t count) {
    std::string all;
    std::string part(64 * 1024, '\0');
    while (all.size() < count) {
      const asio::mutable_buffer room = asio::buffer(part.data(), std::min(part.size(), count - all.size()));
      const auto got = stream.try_read(std::span(&room, 1));
      if (got) {
        all.append(part, 0, *got);
        continue;
      }
      if (got.error() != asio::error::would_block) break;
      const auto ready = co_await stream.wait_readable();
      if (!ready) break;
    }
    co_return all;
  }
  static asio::awaitable<std::size_t> write_all(Stream& stream, std::string text) {
    std::size_t at = 0;
    while (at < text.size()) {
      const asio::const_buffer rest = asio::buffer(text.data() + at, text.size() - at);
      const auto count = stream.try_write(std::span(&rest, 1));
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

std::string random_text(std::size_t count) {
  std::mt19937_64 random(count);
  std::string text(count, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST_P(SocketNetworkTest, MoreThanAnySocketBufferArrivesWhole) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  const std::string text = random_text(20 << 20);
  std::string got;
  asio::co_spawn(io, read_some(*pair.server, text.size()), [&](std::exception_ptr, std::string all) { got = all; });
  EXPECT_EQ(await(write_all(*pair.client, text)).value(), text.size());
  run_until([&] { return !got.empty(); });
  EXPECT_TRUE(got == text);
}

TEST_P(SocketNetworkTest, FramesGoBothWaysAtOnce) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  struct Side {
    Side(Stream& stream, asio::io_context& context) : reader(stream), writer(stream, context.get_executor()) {
      reader.set_limits({1 << 20, 1 << 30});
    }
    FrameReader reader;
    FrameWriter writer;
    std::vector<std::string> got;
  };
  class TextSink final : public PayloadSink {
   public:
    explicit TextSink(std::string& to) : to_(to) {}
    std::size_t next(std::span<asio::mutable_buffer> buffers) override {
      buffers[0] = asio::buffer(to_.data() + at_, to_.size() - at_);
      return 1;
    }
    void filled(std::size_t bytes) override { at_ += bytes; }

   private:
    std::string& to_;
    std::size_t at_ = 0;
  };
  const auto receive = [](Side& side, std::size_t count) -> asio::awaitable<void> {
    while (side.got.size() < count) {
      const auto frame = co_await side.reader.next();
      if (!frame) break;
      std::string payload(frame->header.payload_bytes, '\0');
      TextSink sink(payload);
      const auto read = co_await side.reader.read_payload(sink);
      if (!read) break;
      side.got.push_back(std::move(payload));
    }
    side.writer.close();
  };
  Side client(*pair.client, io), server(*pair.server, io);
  std::vector<std::string> payloads;
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) payloads.push_back(random_text(random() % (i % 10 == 0 ? 400'000 : 2000)));
  int running = 0;
  for (Side* side : {&client, &server}) {
    for (const auto& each : payloads) {
      FrameHeader header;
      header.type = FrameType::kPing;
      const std::span<const std::byte> parts[] = {std::as_bytes(std::span(each))};
      side->writer.send(header, {}, parts);
    }
    side->writer.flush();
    running += 1;
    asio::co_spawn(io, side->writer.run(), asio::detached);
  }
  for (Side* side : {&client, &server}) {
    asio::co_spawn(io, receive(*side, payloads.size()), [&](std::exception_ptr) { --running; });
  }
  run_until([&] { return client.got.size() == payloads.size() && server.got.size() == payloads.size(); });
  run_until([&] { return running == 0; });
  EXPECT_TRUE(client.got == payloads);
  EXPECT_TRUE(server.got == payloads);
}

TEST_P(SocketNetworkTest, ACloseInTheMiddleOfAPayloadIsSeenAsABadFrame) {
  const auto listener = listen();
  Pair pair = connect(*listener);
  FrameHeader header;
  header.type = FrameType::kPing;
  header.payload_bytes = 1'000'000;
  std::string bytes(kFrameHeaderBytes, '\0');
  encode_frame_header(header, {},
                      std::span<std::byte, kFrameHeaderBytes>(reinterpret_cast<std::byte*>(bytes.data()), 32));
  bytes.append(500'000, 'x');
  ASSERT_EQ(await(write_all(*pair.client, bytes)).value(), bytes.size());
  pair.client.reset();
  FrameReader reader(*pair.server);
  reader.set_limits({1 << 20, 1 << 30});
  const auto read = [](FrameReader& from) -> asio::awaitable<error_code> {
    const auto frame = co_await from.next();
    if (!frame) co_return frame.error();
    const auto skipped = co_await from.skip_payload();
    co_return skipped ? error_code() : skipped.error();
  };
  EXPECT_EQ(await(read(reader)).value(), Errc::kBadFrame);
  EXPECT_NE(reader.why().find("within a payload"), std::string::npos) << reader.why();
}

TEST_P(SocketNetworkTest, CloseEndsTheOwnWaitsAndLaterCallsFail) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  std::optional<error_code> result;
  asio::co_spawn(io, pair.server->wait_readable(),
                 [&](std::exception_ptr, const Result<void>& ready) { result = ready ? error_code() : ready.error(); });
  io.restart();
  io.poll();
  EXPECT_FALSE(result.has_value());
  pair.server->close();
  pair.server->close();
  EXPECT_FALSE(result.has_value()) << "who waits goes on by itself, not within close()";
  run_until([&] { return result.has_value(); });
  EXPECT_EQ(*result, asio::error::operation_aborted);
  std::string text(1, 'x');
  const asio::mutable_buffer room = asio::buffer(text);
  const auto read = pair.server->try_read(std::span(&room, 1));
  ASSERT_FALSE(read);
  EXPECT_NE(read.error(), asio::error::would_block);
  const asio::const_buffer rest = asio::buffer(text);
  EXPECT_FALSE(pair.server->try_write(std::span(&rest, 1)));
}

TEST_P(SocketNetworkTest, WhatComesAfterALongSilenceIsSeenToo) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  for (const Duration silence : {Duration(0us), Duration(5ms)}) {  // within the spin, and long after it
    asio::steady_timer timer(io, silence);
    timer.async_wait([&](error_code) {
      const asio::const_buffer byte = asio::buffer("x", 1);
      EXPECT_TRUE(pair.client->try_write(std::span(&byte, 1)));
    });
    EXPECT_EQ(await(read_some(*pair.server, 1)).value(), "x");
  }
}

TEST_P(SocketNetworkTest, MoreStreamsThanAThreadWatchesAllGetTheirTurn) {
  const auto listener = listen();
  std::vector<Pair> pairs;
  for (int i = 0; i < 12; ++i) pairs.push_back(connect(*listener));
  for (int round = 0; round < 20; ++round) {
    std::size_t read_count = 0;
    for (const Pair& pair : pairs) {
      asio::co_spawn(io, read_some(*pair.server, 3), [&](std::exception_ptr, const std::string& text) {
        EXPECT_EQ(text, "abc");
        ++read_count;
      });
    }
    io.restart();
    io.poll();  // all wait
    for (const Pair& pair : pairs) EXPECT_EQ(await(write_all(*pair.client, "abc")).value(), 3u);
    run_until([&] { return read_count == pairs.size(); });
  }
}

TEST_P(SocketNetworkTest, AContextThatGoesTakesItsWaitsAlong) {
  const std::size_t before = descriptor_count();
  {
    asio::io_context other{1};
    BusyPoll other_poll(other, std::get<1>(GetParam()));
    const auto listener = socket_network().listen(any_endpoint(), other.get_executor()).value();
    std::size_t connected = 0;
    // Each coroutine owns the stream that it waits for.
    const auto wait = [&](Async<std::unique_ptr<Stream>> opening) -> asio::awaitable<void> {
      const auto stream = co_await std::move(opening);
      EXPECT_TRUE(stream);
      ++connected;
      const auto ready = co_await (*stream)->wait_readable();
      ADD_FAILURE() << "nothing came: " << ready.has_value();
    };
    asio::co_spawn(other, wait(listener->accept(other.get_executor())), asio::detached);
    asio::co_spawn(other, wait(socket_network().connect(listener->endpoint(), other.get_executor())), asio::detached);
    while (connected < 2) other_poll.run_some();
  }
  EXPECT_EQ(descriptor_count(), before);
}

TEST_P(SocketNetworkTest, AcceptEndsWithTheListener) {
  const auto listener = listen();
  std::optional<error_code> result;
  asio::co_spawn(io, listener->accept(io.get_executor()),
                 [&](std::exception_ptr, Result<std::unique_ptr<Stream>> stream) {
                   result = stream ? error_code() : stream.error();
                 });
  io.restart();
  io.poll();
  listener->close();
  run_until([&] { return result.has_value(); });
  EXPECT_EQ(*result, asio::error::operation_aborted);
}

TEST_P(SocketNetworkTest, NobodyListeningIsAnError) {
  const auto listener = listen();
  const Endpoint endpoint = listener->endpoint();
  listener->close();
  EXPECT_FALSE(await(socket_network().connect(endpoint, io.get_executor())).value());
}

TEST_P(SocketNetworkTest, AnAddressThatAnswersIsNotTakenOver) {
  const auto listener = listen();
  const auto second = socket_network().listen(listener->endpoint(), io.get_executor());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), asio::error::address_in_use);
  EXPECT_NE(connect(*listener).client, nullptr) << "the first still serves";
}

TEST_P(SocketNetworkTest, PeersAreNamedForTheLog) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  const bool is_unix = scheme() == Endpoint::Scheme::kUnix;
  EXPECT_EQ(pair.server->peer().find(is_unix ? "unix:pid=" + std::to_string(::getpid()) : "tcp:127.0.0.1:"), 0u)
      << pair.server->peer();
  EXPECT_EQ(pair.client->peer(), listener->endpoint().to_string());
}

TEST_P(SocketNetworkTest, StreamsGiveTheirDescriptorsBack) {
  const auto listener = listen();
  connect(*listener);
  const std::size_t before = descriptor_count();
  for (int i = 0; i < 20; ++i) connect(*listener);
  EXPECT_EQ(descriptor_count(), before);
}

std::string name_of(const testing::TestParamInfo<NetworkParam>& each) {
  return std::string(std::get<0>(each.param) == Endpoint::Scheme::kTcp ? "Tcp" : "Unix") +
         (std::get<1>(each.param) > 0us ? "Spinning" : "");
}
const auto kSpins = testing::Values(Duration(0us), Duration(200us));

INSTANTIATE_TEST_SUITE_P(Loopback, SocketNetworkTest,
                         testing::Combine(testing::Values(Endpoint::Scheme::kTcp, Endpoint::Scheme::kUnix), kSpins),
                         name_of);

class TcpNetworkTest : public SocketNetworkTest {};
INSTANTIATE_TEST_SUITE_P(Loopback, TcpNetworkTest, testing::Combine(testing::Values(Endpoint::Scheme::kTcp), kSpins),
                         name_of);

TEST_P(TcpNetworkTest, ANameIsResolvedAndAnUnknownOneIsAnError) {
  const auto listener = listen();
  Endpoint by_name = listener->endpoint();
  by_name.host = "localhost";
  EXPECT_TRUE(await(socket_network().connect(by_name, io.get_executor())).value());
  by_name.host = "no-such-host.invalid";
  EXPECT_FALSE(await(socket_network().connect(by_name, io.get_executor())).value());
}

/// A name with an address of each family, as a dual-stack host has.
TEST_P(TcpNetworkTest, ANameIsReachedAtWhicheverAddressListens) {
  for (const char* listens : {"127.0.0.1", "::1"}) {
    const auto listener = socket_network().listen({Endpoint::Scheme::kTcp, listens, "0"}, io.get_executor());
    if (!listener) continue;  // a host without IPv6
    const auto port = static_cast<unsigned short>(std::stoi((*listener)->endpoint().port));
    for (const bool is_first : {false, true}) {
      Resolver::Addresses addresses = {{asio::ip::make_address("::1"), port},
                                       {asio::ip::make_address("127.0.0.1"), port}};
      if (is_first) std::swap(addresses[0], addresses[1]);
      const auto resolver = std::make_shared<Resolver>(
          [addresses](const std::string&, const std::string&) { return Result<Resolver::Addresses>(addresses); });
      const auto network = make_socket_network(resolver);
      const Endpoint name{Endpoint::Scheme::kTcp, "both.test", (*listener)->endpoint().port};
      EXPECT_TRUE(await(network->connect(name, io.get_executor())).value()) << listens;
    }
    const Endpoint localhost{Endpoint::Scheme::kTcp, "localhost", (*listener)->endpoint().port};
    EXPECT_TRUE(await(socket_network().connect(localhost, io.get_executor())).value()) << listens;
  }
}

TEST_P(TcpNetworkTest, TheKernelAsksAnIdlePeerWhetherItIsStillThere) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  std::ostringstream port;  // as /proc/net/tcp writes it
  port << ':' << std::hex << std::uppercase << std::setw(4) << std::setfill('0')
       << std::stoi(listener->endpoint().port);
  std::ifstream table("/proc/net/tcp");
  std::size_t asked = 0;
  for (std::string line; std::getline(table, line);) {
    std::string slot, local, remote, state, queues, timer;
    std::istringstream(line) >> slot >> local >> remote >> state >> queues >> timer;
    const bool is_established = state == "01" && (local.ends_with(port.str()) || remote.ends_with(port.str()));
    asked += is_established && timer.starts_with("02");  // its timer is that of keepalive
  }
  EXPECT_EQ(asked, 2u) << "both ends";
}

TEST_P(TcpNetworkTest, DescriptorsCannotBePassed) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  EXPECT_FALSE(pair.client->can_pass_descriptors());
  EXPECT_FALSE(pair.server->can_pass_descriptors());
}

TEST_P(TcpNetworkTest, SimulatedAddressesAreNotSpoken) {
  const Endpoint sim = {Endpoint::Scheme::kSim, "x", ""};
  EXPECT_EQ(socket_network().listen(sim, io.get_executor()).error(), Errc::kUnsupported);
  EXPECT_EQ(await(socket_network().connect(sim, io.get_executor()))->error(), Errc::kUnsupported);
}

class UnixNetworkTest : public SocketNetworkTest {
 protected:
  /// Sends `fds` with one byte, as no well-behaved client would.
  static void send_descriptors(int socket, const std::vector<int>& fds) {
    char byte = 'x';
    iovec vector{&byte, 1};
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
    ASSERT_EQ(::sendmsg(socket, &message, 0), 1);
  }
  int raw_connect(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
};
INSTANTIATE_TEST_SUITE_P(Loopback, UnixNetworkTest, testing::Combine(testing::Values(Endpoint::Scheme::kUnix), kSpins),
                         name_of);

TEST_P(UnixNetworkTest, ADescriptorArrivesWithItsFrame) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  ASSERT_TRUE(pair.client->can_pass_descriptors());
  const auto memory = SharedMemory::create(4096).value();
  memory->bytes()[5] = std::byte{55};
  FrameWriter writer(*pair.client, io.get_executor());
  FrameHeader header;
  header.type = FrameType::kRegionAdd;
  writer.send(header, {}, {}, nullptr, memory->fd());
  writer.flush();
  FrameReader reader(*pair.server);
  const auto next = [](FrameReader& from) -> asio::awaitable<bool> { co_return bool(co_await from.next()); };
  EXPECT_TRUE(await(next(reader)).value());
  const auto region = MappedRegion::map(pair.server->take_descriptor(), 4096);
  ASSERT_TRUE(region) << region.error();
  EXPECT_EQ((*region)->bytes()[5], std::byte{55});
  EXPECT_FALSE(pair.server->take_descriptor());
}

TEST_P(UnixNetworkTest, SurplusDescriptorsAreClosed) {
  const auto listener = listen();
  const Descriptor client(raw_connect(any_endpoint().host));
  auto server = await(listener->accept(io.get_executor())).value().value();
  const auto memory = SharedMemory::create(4096).value();
  const std::size_t before = descriptor_count();
  for (const std::size_t count : {1, 2, 3, 10, 200}) {
    for (int i = 0; i < 5; ++i) {
      send_descriptors(client.get(), std::vector<int>(count, memory->fd()));
      EXPECT_EQ(await(read_some(*server, 1)).value().size(), 1u);
      EXPECT_LE(descriptor_count(), before + 1) << count << " in one message";
    }
    EXPECT_TRUE(server->take_descriptor());
    EXPECT_EQ(descriptor_count(), before);
  }
  send_descriptors(client.get(), {memory->fd()});
  EXPECT_EQ(await(read_some(*server, 1)).value().size(), 1u);
  server.reset();  // with a descriptor that nobody took
  EXPECT_EQ(descriptor_count(), before - 1);
}

TEST_P(UnixNetworkTest, ASocketFileThatADeadProcessLeftIsTakenOver) {
  const std::string path = any_endpoint().host;
  {
    const Descriptor dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto listener = socket_network().listen(any_endpoint(), io.get_executor());
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_NE(connect(**listener).client, nullptr);
}

TEST_P(UnixNetworkTest, AFileThatIsNoSocketIsLeftAlone) {
  const std::string path = any_endpoint().host;
  { const Descriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
  EXPECT_FALSE(socket_network().listen(any_endpoint(), io.get_executor()));
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

TEST_P(UnixNetworkTest, TheSocketFileIsForOwnerAndGroupAndGoesWithTheListener) {
  auto listener = listen();
  struct stat status;
  ASSERT_EQ(::stat(any_endpoint().host.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0660u);
  listener.reset();
  EXPECT_FALSE(std::filesystem::exists(any_endpoint().host));
}

}  // namespace
}  // namespace kv
