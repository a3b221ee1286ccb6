// Node and client as two processes on real devices, one of them killed in the middle of a transfer. The lent memory is
// shared with the parent, which sees whether anything is still written after it must not be.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <iostream>

#include "tests/transport/verbs_world.h"
#include "transport/stream.h"
#include "transport/verbs/verbs_mover.h"

namespace kv::verbs {
namespace {

constexpr std::size_t kBytes = 8 << 20, kPartBytes = 64 << 10, kParts = kBytes / kPartBytes;

/// What a client says over its session when it lends memory.
struct Lent {
  QueuePairAddress queue_pair;
  std::uint64_t address;
  std::uint32_t rkey;
};

/// The two ends of a session; each process keeps its own.
struct Session {
  Session() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    parent = Descriptor(ends[0]);
    child = Descriptor(ends[1]);
  }
  template <class T>
  static void say(const Descriptor& to, const T& what) {
    if (::send(to.get(), &what, sizeof what, MSG_NOSIGNAL) != sizeof what) ::_exit(1);
  }
  template <class T>
  static bool hear(const Descriptor& from, T& what) {
    return ::recv(from.get(), &what, sizeof what, MSG_WAITALL) == sizeof what;
  }
  Descriptor parent, child;
};

struct SharedBytes {
  SharedBytes()
      : bytes(
            static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
            kBytes) {}
  ~SharedBytes() { ::munmap(bytes.data(), bytes.size()); }
  std::vector<std::byte> copy() const { return {bytes.begin(), bytes.end()}; }
  std::span<std::byte> bytes;
};

/// Lends `memory` and connects.
struct LendingClient {
  LendingClient(VerbsWorld& world, std::span<std::byte> memory, const Descriptor& session)
      : side(world, world.client_device(), 64) {
    lent = side.domain->register_memory(memory, Side::kAll).value();
    pair = side.domain->create_queue_pair(*side.queue, kOpen).value();
    const std::uint32_t psn = random_psn();
    Session::say(session, Lent{address_of(side.attachment, pair->number(), psn),
                               reinterpret_cast<std::uintptr_t>(memory.data()), lent->rkey()});
    QueuePairAddress node;
    EXPECT_TRUE(Session::hear(session, node));
    EXPECT_TRUE(pair->connect(node, path_to(side.attachment, psn, node)));
    Session::say(session, 'r');
  }
  Side side;
  std::unique_ptr<MemoryRegion> lent;
  std::unique_ptr<QueuePair> pair;
};

/// Moves its arena into what the client lends, again and again, until it fails.
struct MovingNode {
  MovingNode(VerbsWorld& given, const Descriptor& session)
      : world(given),
        side(world, world.node_device(), kBytes, {.local_write = true}),
        loop(world.io().get_executor(), std::move(side.queue)) {
    asio::co_spawn(world.io(), loop.run(), asio::detached);
    mover = VerbsMover::create(loop, world.clock(), *side.domain, {.outstanding_bytes_max = 1 << 20}).value();
    EXPECT_TRUE(Session::hear(session, client));
    const std::uint32_t psn = random_psn();
    Session::say(session, address_of(side.attachment, mover->queue_pair().number(), psn));
    EXPECT_TRUE(mover->queue_pair().connect(client.queue_pair, path_to(side.attachment, psn, client.queue_pair)));
    char ready = 0;
    EXPECT_TRUE(Session::hear(session, ready));
  }
  ~MovingNode() {
    mover.reset();
    loop.stop();
    for (int i = 0; i < 3; ++i) world.wait_some();
  }

  /// The error that ends it. `on_part` is called with how many have landed in all.
  error_code move_until_it_fails(const std::function<void(std::size_t)>& on_part) {
    std::size_t landed = 0;
    for (std::uint8_t round = 1;; ++round) {
      std::fill(side.memory.begin(), side.memory.end(), std::byte{round});
      std::vector<Stretch> stretches;
      std::vector<std::size_t> ends;
      for (std::size_t i = 0; i < kParts; ++i) {
        stretches.push_back({std::span(side.memory).subspan(i * kPartBytes, kPartBytes), side.region->lkey(),
                             client.address + i * kPartBytes, client.rkey});
        ends.push_back(i + 1);
      }
      std::optional<Result<void>> result;
      auto moving = mover->move(Direction::kToPeer, stretches, ends, nullptr, world.clock().now() + 1h,
                                [&](std::size_t) { on_part(++landed); });
      asio::co_spawn(world.io(), std::move(moving),
                     [&](const std::exception_ptr&, Result<void> ended) { result = ended; });
      world.progressed();
      while (!result && world.wait_some()) {
      }
      if (!result) return asio::error::timed_out;
      if (!*result) return result->error();
    }
  }

  VerbsWorld& world;
  Side side;
  CompletionLoop loop;
  Lent client{};
  std::unique_ptr<VerbsMover> mover;
};

class VerbsProcessTest : public testing::TestWithParam<std::string> {
 protected:
  /// Nothing changes any more, however long it takes what was on its way to arrive.
  void expect_quiet() {
    const std::vector<std::byte> before = memory.copy();
    const auto until = std::chrono::steady_clock::now() + 500ms;
    while (std::chrono::steady_clock::now() < until) ::usleep(10'000);
    EXPECT_TRUE(memory.copy() == before) << "written after it must not be";
  }
  Session session;
  SharedBytes memory;
};

TEST_P(VerbsProcessTest, AClientKilledInATransferEndsItsMoveAndIsNotWrittenAfterwards) {
  const pid_t child = ::fork();
  if (child == 0) {
    session.parent = Descriptor();
    const auto world = VerbsWorld::make(GetParam());
    LendingClient client(*world, memory.bytes, session.child);
    for (;;) ::pause();
  }
  session.child = Descriptor();
  const auto world = VerbsWorld::make(GetParam());
  MovingNode node(*world, session.parent);
  std::chrono::steady_clock::time_point killed;
  const error_code ended = node.move_until_it_fails([&](std::size_t landed) {
    if (landed != kParts + 40) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    killed = std::chrono::steady_clock::now();
  });
  EXPECT_EQ(ended, make_error_code(Status::kRetryExceeded)) << ended.message();
  std::cout << "noticed after "
            << std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - killed).count()
            << " ms\n";
  world->progressed();
  while (!node.mover->is_drained()) ASSERT_TRUE(world->wait_some());
  expect_quiet();
}

TEST_P(VerbsProcessTest, MemoryLentToANodeThatIsKilledIsQuietOnceTheClientEndsItsQueuePair) {
  const pid_t child = ::fork();
  if (child == 0) {
    session.parent = Descriptor();
    const auto world = VerbsWorld::make(GetParam());
    MovingNode node(*world, session.child);
    node.move_until_it_fails([&](std::size_t landed) {
      if (landed == kParts + 40) Session::say(session.child, 'm');
    });
    ::_exit(0);
  }
  session.child = Descriptor();
  const auto world = VerbsWorld::make(GetParam());
  LendingClient client(*world, memory.bytes, session.parent);
  char in_the_middle = 0;
  ASSERT_TRUE(Session::hear(session.parent, in_the_middle));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
  char nothing = 0;
  EXPECT_FALSE(Session::hear(session.parent, nothing));       // the session's end is what tells a client
  EXPECT_EQ(client.pair->state(), QueuePair::State::kReady);  // its queue pair knows nothing
  ASSERT_TRUE(client.pair->fail());
  expect_quiet();
  EXPECT_NE(memory.bytes[0], std::byte{0});  // it had been written
}

std::vector<std::string> real_providers() {
  std::vector<std::string> names = provider_names();
  std::erase(names, "fake");  // lives in one process
  return names;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerbsProcessTest);
INSTANTIATE_TEST_SUITE_P(Providers, VerbsProcessTest, testing::ValuesIn(real_providers()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace kv::verbs
