// The client with a thread of its own: that thread does nothing that takes long, waits for no name server, and does not
// exist in a child of fork(). Real sockets; the linker sends this program's system calls of interest through wrappers.
#include "tests/client/typed_calls.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <random>
#include <semaphore>
#include <thread>

#include "base/event.h"
#include "tests/client/real_nodes.h"
#include "transport/resolver.h"

namespace kv {
namespace {

/// System calls whose time grows with what they are given, or that wait for others: by thread.
struct SlowCall {
  std::string name;
  pthread_t thread;
};
std::mutex calls_mutex;
std::vector<SlowCall>* calls_seen = nullptr;

void saw(const char* name, std::size_t bytes = SIZE_MAX) {
  if (bytes < (1 << 20)) return;
  const std::lock_guard lock(calls_mutex);
  if (calls_seen != nullptr) calls_seen->push_back({name, ::pthread_self()});
}

}  // namespace
}  // namespace kv

extern "C" {
void* __real_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t length);
int __real_madvise(void* address, size_t length, int advice);
int __real_memfd_create(const char* name, unsigned flags);
int __real_getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found);

void* __wrap_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_POPULATE) != 0) kv::saw("mmap with MAP_POPULATE", length);
  return __real_mmap(address, length, protection, flags, fd, offset);
}
int __wrap_munmap(void* address, size_t length) {
  kv::saw("munmap", length);
  return __real_munmap(address, length);
}
int __wrap_madvise(void* address, size_t length, int advice) {
  kv::saw("madvise", length);
  return __real_madvise(address, length, advice);
}
int __wrap_memfd_create(const char* name, unsigned flags) {
  kv::saw("memfd_create");
  return __real_memfd_create(name, flags);
}
int __wrap_getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  kv::saw("getaddrinfo");
  return __real_getaddrinfo(node, service, hints, found);
}
}

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 1 << 20;

class BlockingClientTest : public testing::Test {
 protected:
  std::unique_ptr<TypedClient> make_client(ClientConfig config = {}) {
    config.nodes.push_back({.endpoint = node.endpoint().to_string()});
    return std::make_unique<TypedClient>(config);
  }
  TemporaryDirectory directory;
  SocketNode node{small_store(), "node", {Endpoint::Scheme::kUnix, directory.path() + "/node", ""}};
  NamespaceRecord record = test_record(kBlockBytes);
  std::vector<BlockHash> chain = test_chain(record, 4);
};

/// A call in progress until it is cancelled.
class Held final : public Cancellable {
 public:
  static Async<std::size_t> wait(Held& held, CallControl control) {
    Event cancelled(co_await asio::this_coro::executor);
    held.cancelled_ = &cancelled;
    control.cancellation->set_target(&held);
    while (!cancelled.is_set()) co_await cancelled.wait();
    control.cancellation->set_target(nullptr);
    co_return error_code(Errc::kCancelled);
  }

 private:
  void cancel() override { cancelled_->set(); }
  Event* cancelled_ = nullptr;
};

TEST_F(BlockingClientTest, NothingThatTakesLongIsDoneOnTheThreadThatKeepsDeadlines) {
  std::vector<SlowCall> seen;
  {
    const std::lock_guard lock(calls_mutex);
    calls_seen = &seen;
  }
  auto client = make_client();
  Held held;  // while it is in progress, no caller's thread takes the I/O over
  std::optional<TypedQueue> queue(std::in_place, *client);
  ASSERT_TRUE(queue->submit_other([&](Client&, CallControl control) { return Held::wait(held, control); }));
  const Space space = client->open(record, 5s).value();
  Blocks own(4, kBlockBytes);
  own.fill(chain);
  EXPECT_EQ(client->put(space, chain, own.from, {.deadline = 5s})->stored, 4u);
  pthread_t io_thread{};  // a progress callback runs there
  const SegmentCallback note{
      [](void* thread, std::size_t, std::size_t) { *static_cast<pthread_t*>(thread) = ::pthread_self(); }, &io_thread};
  EXPECT_EQ(client->get(space, chain, own.to, {.deadline = 5s, .on_segment = note})->block_count, 4u);
  ASSERT_FALSE(::pthread_equal(io_thread, pthread_t{}));

  const auto lent = client->allocate(8 * kBlockBytes).value();
  EXPECT_EQ(client->allocate(SIZE_MAX).error(), Errc::kBusy);
  EXPECT_EQ(client->lend(lent, 5s).value(), 2u);
  Blocks memory(lent, 4, kBlockBytes);
  memory.fill(chain);
  const auto other_chain = test_chain(record, 4, 2);
  EXPECT_EQ(client->put(space, other_chain, memory.from, {.deadline = 5s})->stored, 4u);
  EXPECT_EQ(client->get(space, chain, memory.to, {.deadline = 5s})->block_count, 4u);
  client->release(client->match(space, chain, {.deadline = 5s, .lease = true, .prefetch = true})->lease);
  EXPECT_EQ(client->touch(space, chain, 5s).value(), 4u);
  EXPECT_EQ(client->retain(space, chain, 5s).value(), 4u);
  EXPECT_EQ(client->unretain(space, chain, 5s).value(), 4u);
  EXPECT_TRUE(client->wait_open(space, 5s));
  EXPECT_TRUE(client->ask({.path = "/stats.json"}, 5s));
  EXPECT_TRUE(client->ping(5s));
  EXPECT_EQ(client->nodes().size(), 1u);
  EXPECT_FALSE(client->is_quarantined(lent));
  EXPECT_EQ(client->block_bytes(space), kBlockBytes);
  std::vector<std::byte> device(2 * kBlockBytes);
  EXPECT_TRUE(client->add_device_memory({.bytes = device}));
  EXPECT_TRUE(client->remove_device_memory(device, 5s));
  EXPECT_GE(client->drop(space, {}, 5s).value().block_count, 4u);
  EXPECT_TRUE(client->free_memory(lent));
  const auto never_lent = client->allocate(8 * kBlockBytes).value();
  EXPECT_TRUE(client->free_memory(never_lent));
  const auto freed_while_it_is_lent = client->allocate(8 * kBlockBytes).value();
  EXPECT_TRUE(client->lend(freed_while_it_is_lent, 0us));
  EXPECT_TRUE(client->free_memory(freed_while_it_is_lent));
  EXPECT_TRUE(client->ping(5s));
  queue.reset();
  client.reset();
  {
    const std::lock_guard lock(calls_mutex);
    calls_seen = nullptr;
  }
  std::size_t here = 0;
  for (const SlowCall& call : seen) {
    EXPECT_FALSE(::pthread_equal(call.thread, io_thread)) << call.name;
    here += ::pthread_equal(call.thread, ::pthread_self()) != 0;
  }
  EXPECT_GE(here, 6u) << "memory is made and given back by who asks, and the wrappers see that";
}

TEST_F(BlockingClientTest, ANamespaceIsOpenedWhileTheStoreIsAway) {
  ClientConfig config;
  config.nodes.push_back({.endpoint = "unix://" + directory.path() + "/nobody"});
  TypedClient client(config);
  const Space space = client.open(record, 5s).value();
  EXPECT_EQ(client.block_bytes(space), kBlockBytes);
  const MatchResult match = client.match(space, chain, {.deadline = 5s}).value();
  EXPECT_EQ(match.block_count, 0u);
  EXPECT_EQ(match.why, Errc::kUnavailable);
  EXPECT_EQ(client.wait_open(space, 5s).error(), Errc::kUnavailable);
}

// -- whose thread does the I/O

/// A call until it is told to end.
class Waits {
 public:
  static Async<std::size_t> wait(Waits& waits) {
    Event may_end(co_await asio::this_coro::executor);
    waits.may_end_ = &may_end;
    waits.thread = ::pthread_self();
    waits.has_begun.release();
    while (!may_end.is_set()) co_await may_end.wait();
    co_return std::size_t{7};
  }
  Async<std::size_t> end() {
    may_end_->set();
    co_return std::size_t{0};
  }
  pthread_t thread{};
  std::binary_semaphore has_begun{0};

 private:
  Event* may_end_ = nullptr;
};

TEST_F(BlockingClientTest, ACallerDoesItsIoItselfAndServesOthersMeanwhile) {
  const auto client = make_client();
  const Space space = client->open(record, 5s).value();
  TypedQueue queue(*client);
  bool was_own = false;
  for (int tries = 0; tries < 1000 && !was_own; ++tries) {  // the I/O thread may not have parked yet
    Waits waits;
    Completion touched;
    std::thread other([&] {
      waits.has_begun.acquire();
      const CallId call = queue.submit_touch(space, chain, 5s).value();
      EXPECT_EQ(queue.wait({&call, 1}, 1, 10s, {&touched, 1}).value(), 1u) << "by whoever is in charge";
      EXPECT_TRUE(client->ping(5s)) << "as is another caller's";
      const Work end = [&](Client&, CallControl) { return waits.end(); };
      EXPECT_FALSE(client->run({.work = &end}).error);
    });
    EXPECT_EQ(client->with([&](Client&) { return Waits::wait(waits); }).value(), 7u);
    was_own = ::pthread_equal(waits.thread, ::pthread_self()) != 0;
    other.join();
    EXPECT_FALSE(touched.error);
  }
  EXPECT_TRUE(was_own);
}

/// Runs a call that ends only if it is cancelled. Whether this thread was in charge of it.
bool run_held(TypedClient& client, const Interrupt& interrupt) {
  Held held;
  pthread_t thread{};
  const Work work = [&](Client&, CallControl control) {
    thread = ::pthread_self();
    return Held::wait(held, control);
  };
  EXPECT_EQ(client.run({.work = &work}, &interrupt).error, Errc::kCancelled);
  return ::pthread_equal(thread, ::pthread_self()) != 0;
}

TEST_F(BlockingClientTest, ACallerInChargeGivesItsCallUpOnceItsInterruptIsWanted) {
  static int asked;
  const auto client = make_client();
  const Interrupt interrupt{.interval = 1ms, .is_wanted = [](void*) { return ++asked == 3; }};
  bool was_own = false;
  for (int tries = 0; tries < 1000 && !was_own; ++tries) {  // the I/O thread may not have parked yet
    ASSERT_TRUE(client->ping(5s));
    asked = 0;
    was_own = run_held(*client, interrupt);
    EXPECT_EQ(asked, 3);
  }
  EXPECT_TRUE(was_own);
}

TEST_F(BlockingClientTest, AnInterruptOfACallerInChargeMayDestroyTheClient) {
  bool was_own = false;
  for (int tries = 0; tries < 1000 && !was_own; ++tries) {
    auto client = make_client();
    const auto destroy = [](void* held) {
      static_cast<std::unique_ptr<TypedClient>*>(held)->reset();
      return false;
    };
    ASSERT_TRUE(client->ping(5s));
    was_own = run_held(*client, {.interval = 1ms, .is_wanted = destroy, .context = &client});
  }
  EXPECT_TRUE(was_own);
}

/// A socket at which clients arrive, and nothing is said.
class SilentListener {
 public:
  SilentListener() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
  }
  std::string path() const { return directory_.path() + "/silent"; }
  int fd() const { return fd_.get(); }
  Descriptor accept() const { return Descriptor(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

 private:
  TemporaryDirectory directory_;
  Descriptor fd_;
};

class SilentNodeTest : public BlockingClientTest {
 protected:
  SilentNodeTest() {
    ClientConfig config;
    config.nodes.push_back({.endpoint = "unix://" + silent.path()});
    config.connect_timeout = 1h;
    client = std::make_unique<TypedClient>(config);
    space = client->open(record, std::chrono::microseconds(0)).value();
  }
  Completion match(const Interrupt* interrupt) {
    return client->run({.op = Op::kMatch, .space = space, .hashes = chain, .deadline = 1h}, interrupt);
  }

  SilentListener silent;
  std::unique_ptr<TypedClient> client;
  Space space{};
};

TEST_F(SilentNodeTest, ACallIsGivenUpOnceItsInterruptIsWanted) {
  static int asked;
  for (int round = 0; round < 3; ++round) {  // by the I/O thread, which does not park while a connection is being made
    asked = 0;
    const Interrupt interrupt{.interval = 1ms, .is_wanted = [](void*) { return ++asked == 3; }};
    EXPECT_EQ(match(&interrupt).match.why, Errc::kCancelled);
    EXPECT_EQ(asked, 3);
  }
}

TEST_F(SilentNodeTest, AnInterruptMayDestroyTheClient) {
  const auto destroy = [](void* held) {
    static_cast<std::unique_ptr<TypedClient>*>(held)->reset();
    return false;
  };
  const Interrupt interrupt{.interval = 1ms, .is_wanted = destroy, .context = &client};
  EXPECT_EQ(match(&interrupt).match.why, Errc::kCancelled);
}

TEST_F(SilentNodeTest, TheIoThreadStaysInChargeWhileAConnectionIsBeingMade) {
  for (int round = 0; round < 100; ++round) {
    const auto thread = client->with([](Client&) { return ::pthread_self(); });
    EXPECT_FALSE(::pthread_equal(thread.value(), ::pthread_self())) << "round " << round;
  }
}

TEST_F(SilentNodeTest, AllCallsInProgressAreGivenUp) {
  std::atomic<int> left{4};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      EXPECT_EQ(match(nullptr).error, Errc::kCancelled);
      --left;
    });
  }
  while (left > 0) client->cancel_all();  // again, for those that had not begun
  for (std::thread& caller : callers) caller.join();
}

TEST_F(BlockingClientTest, CallsLeftByACallerGoOnWithoutIt) {
  const auto client = make_client();
  const Space space = client->open(record, 5s).value();
  TypedQueue queue(*client);
  for (int round = 0; round < 50; ++round) {
    Waits waits;
    const Work wait = [&](Client&, CallControl) { return Waits::wait(waits); };
    // Begun by the caller's thread, if it is in charge by then, and still in progress when its call ends.
    std::thread submits([&] { ASSERT_TRUE(queue.submit({.tag = 1, .work = &wait})); });
    EXPECT_TRUE(client->ping(5s));
    submits.join();
    waits.has_begun.acquire();
    const Work end = [&](Client&, CallControl) { return waits.end(); };
    ASSERT_TRUE(queue.submit({.tag = 2, .work = &end}));
    std::array<Completion, 2> ended;
    EXPECT_EQ(queue.reap(ended, 2, 10s).value(), 2u);
    EXPECT_EQ(client->touch(space, chain, 5s).value(), 0u);
  }
}

TEST_F(BlockingClientTest, AnErrorOnACallersThreadDisablesTheClient) {
  const auto client = make_client();
  const Space space = client->open(record, 5s).value();
  TypedQueue queue(*client);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client->ping(5s));
  const auto thrown = client->with([](Client&) -> std::size_t { throw std::logic_error("as a failed assertion"); });
  EXPECT_EQ(thrown.error(), Errc::kUnavailable);
  EXPECT_TRUE(client->is_disabled());
  EXPECT_EQ(client->ping(5s).error(), Errc::kUnavailable);
  EXPECT_EQ(queue.submit_touch(space, chain, 5s).error(), Errc::kUnavailable);
}

TEST_F(BlockingClientTest, ACallFromACallbackIsRefused) {
  const auto client = make_client();
  error_code nested;
  EXPECT_TRUE(client->with(
      [&](Client&) { nested = client->run({.op = Op::kWaitOpen, .deadline = std::chrono::seconds(5)}).error; }));
  EXPECT_EQ(nested, Errc::kBadRequest);
}

/// Blocking and submitted calls from several threads, long and short deadlines, and forks, until the client closes.
TEST_F(BlockingClientTest, ManyThreadsRunSubmitAndFork) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::size_t kThreads = 4, kCallsEach = 200;
  ClientConfig config;
  config.breaker_failures = 1 << 20;  // never opens: several short deadlines in a row are no dead node
  for (std::uint64_t round = 0; round < 4; ++round) {
    auto client = make_client(config);
    const Space space = client->open(record, 10s).value();
    TypedQueue queue(*client);
    Blocks stored(4, kBlockBytes);
    stored.fill(chain);
    EXPECT_EQ(client->put(space, chain, stored.from, {.deadline = 10s})->refused, 0u);
    const auto work = [&](std::uint64_t number) {
      std::mt19937_64 random(seed + round * 100 + number);
      Blocks memory(4, kBlockBytes);
      for (std::size_t i = 0; i < kCallsEach; ++i) {
        // With one thread the others' share is left to pauses: the I/O thread parks, and is woken.
        switch (random() % (round == 0 ? 3 : 6)) {
          case 0: EXPECT_EQ(client->match(space, chain, {.deadline = 10s})->block_count, 4u); break;
          case 1: {
            const auto got = client->get(space, chain, memory.to, {.deadline = 10s}).value();
            EXPECT_EQ(memory.right(chain), got.block_count);
            memory.clear();
            break;
          }
          case 2:
            EXPECT_TRUE(client->match(space, chain, {.deadline = std::chrono::microseconds(random() % 200)}));
            break;
          default: {
            const auto call = queue.submit_match(space, chain, {.deadline = 10s});
            if (!call) break;
            Completion end;
            if (random() % 4 == 0) (void)queue.cancel(*call);
            EXPECT_EQ(queue.wait({&*call, 1}, 1, 20s, {&end, 1}).value(), 1u);
            EXPECT_TRUE(!end.error || end.error == Errc::kCancelled);
          }
        }
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < (round == 0 ? 1 : kThreads); ++i) threads.emplace_back(work, i);
    for (int i = 0; i < 5; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(60);
        const bool is_told = client->match(space, chain, {.deadline = 10s}).error() == Errc::kForked;
        ::_exit(is_told ? 0 : 1);
      }
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(queue.calls_in_flight(), 0u);
    if (round % 2 == 0) client.reset();  // before its queue
  }
}

// -- names

TEST(BlockingClientNamesTest, CloseWaitsForNoNameServerAndLookupsDoNotPileUp) {
  struct Server {
    std::mutex mutex;
    std::condition_variable changed;
    bool answers = false;
    std::size_t begun = 0;
  };
  const auto server = std::make_shared<Server>();
  const auto resolver = std::make_shared<Resolver>(
      [server](const std::string&, const std::string&) -> Result<Resolver::Addresses> {
        std::unique_lock lock(server->mutex);
        ++server->begun;
        server->changed.notify_all();
        server->changed.wait(lock, [&] { return server->answers; });
        return error_code(asio::error::host_not_found);
      },
      2);
  const auto network = make_socket_network(resolver);
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 2);
  for (int round = 0; round < 5; ++round) {
    ClientConfig config;
    for (const char* name : {"a", "b", "c", "d"}) {
      config.nodes.push_back({.endpoint = std::string("tcp://") + name + ".test:7"});
    }
    config.connect_timeout = 5ms;  // each attempt is given up, and another made
    config.backoff_min = config.backoff_max = 1ms;
    TypedClient client(config, {}, *network);
    const Space space = client.open(record, 0us).value();
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(client.match(space, chain, {.deadline = 3ms})->block_count, 0u);
    }
  }  // comes back although not one lookup has
  {
    std::unique_lock lock(server->mutex);
    server->changed.wait(lock, [&] { return server->begun >= 2; });
    EXPECT_EQ(server->begun, 2u);
    server->answers = true;
    server->changed.notify_all();
  }
  while (resolver->thread_count() > 0) std::this_thread::yield();
  EXPECT_EQ(server->begun, 2u) << "nobody waits for the other names any more";
}

// -- fork

/// Ends the process that a test forked, whatever happens there.
[[noreturn]] void end_child(bool is_good) { ::_exit(is_good ? 0 : 1); }

bool ended_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(BlockingClientTest, InAForkedChildCallsFailAtOnceAndAClientOfItsOwnWorks) {
  auto client = make_client();
  const Space space = client->open(record, 5s).value();
  Blocks memory(4, kBlockBytes);
  memory.fill(chain);
  EXPECT_EQ(client->put(space, chain, memory.from, {.deadline = 5s})->stored, 4u);
  const auto lent = client->allocate(kBlockBytes).value();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a call that hangs fails the test
    bool good = client->is_forked();
    good &= client->match(space, chain, {.deadline = 60s}).error() == Errc::kForked;
    good &= client->get(space, chain, memory.to, {.deadline = 60s}).error() == Errc::kForked;
    good &= client->put(space, chain, memory.from, {.deadline = 60s}).error() == Errc::kForked;
    good &= client->open(record, 60s).error() == Errc::kForked;
    good &= client->wait_open(space, 60s).error() == Errc::kForked;
    good &= client->allocate(4096).error() == Errc::kForked;
    good &= client->lend(lent, 60s).error() == Errc::kForked;
    good &= client->free_memory(lent).error() == Errc::kForked;
    good &= client->touch(space, chain, 60s).error() == Errc::kForked;
    good &= client->ask({.path = "/stats.json"}, 60s).error() == Errc::kForked;
    good &= client->ping(60s).error() == Errc::kForked;
    good &= client->nodes().empty() && client->block_bytes(space) == 0;
    client->release(Lease{1});
    auto own = make_client();
    good &= !own->is_forked();
    const auto own_space = own->open(record, 30s);
    good &= own_space.has_value();
    memory.clear();
    const auto got = own->get(*own_space, chain, memory.to, {.deadline = 30s});
    good &= got && got->block_count == 4 && memory.right(chain) == 4;
    client.reset();
    good &= own->ping(30s).has_value();
    own.reset();
    end_child(good);
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(ended_well(child));
  EXPECT_FALSE(client->is_forked());
  memory.clear();
  EXPECT_EQ(client->get(space, chain, memory.to, {.deadline = 5s})->block_count, 4u) << "the parent goes on";
}

/// Reads to the end of what a client sends; false if there is no end within a minute.
bool ends(const Descriptor& connection) {
  char bytes[4096];
  for (;;) {
    pollfd each{connection.get(), POLLIN, 0};
    if (::poll(&each, 1, 60'000) != 1) return false;
    const ssize_t count = ::read(connection.get(), bytes, sizeof bytes);
    if (count <= 0) return true;
  }
}

TEST(BlockingClientForkTest, AChildThatOnlySleepsKeepsNoSessionWhenItsParentDies) {
  const SilentListener listener;
  int pids[2];
  ASSERT_EQ(::pipe(pids), 0);
  const pid_t worker = ::fork();
  if (worker == 0) {
    ClientConfig config;
    config.nodes.push_back({.endpoint = "unix://" + listener.path()});
    config.connections_per_node = 1;
    config.connect_timeout = 600s;  // the client does not leave by itself
    TypedClient client(config);
    (void)client.ping(1s);  // connects, and hears nothing
    const pid_t sleeper = ::fork();
    if (sleeper == 0) {
      ::alarm(120);
      for (;;) ::pause();
    }
    const bool told = ::write(pids[1], &sleeper, sizeof sleeper) == sizeof sleeper;
    end_child(told);  // as one that is killed: nothing is closed by the library
  }
  ASSERT_GT(worker, 0);
  const Descriptor connection = listener.accept();
  EXPECT_TRUE(ended_well(worker));
  pid_t sleeper = 0;
  ASSERT_EQ(::read(pids[0], &sleeper, sizeof sleeper), static_cast<ssize_t>(sizeof sleeper));
  EXPECT_TRUE(ends(connection));
  EXPECT_EQ(::kill(sleeper, 0), 0) << "it still sleeps";
  ::kill(sleeper, SIGKILL);
  ::close(pids[0]);
  ::close(pids[1]);
}

TEST(BlockingClientForkTest, AClosedClientKeepsNoSessionThoughAnotherProcessHasItsDescriptor) {
  const SilentListener listener;
  ClientConfig config;
  config.nodes.push_back({.endpoint = "unix://" + listener.path()});
  config.connections_per_node = 1;
  auto client = std::make_unique<TypedClient>(config);
  (void)client->ping(100ms);
  const Descriptor connection = listener.accept();
  // As another library's way to make a process, which runs no fork handlers, would leave them.
  std::vector<Descriptor> copies;
  for (int fd = 3; fd < 256 && copies.empty(); ++fd) {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    if (fd == listener.fd() || fd == connection.get()) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.sun_path == listener.path()) {
      copies.push_back(Descriptor(::dup(fd)));
    }
  }
  ASSERT_EQ(copies.size(), 1u);
  client.reset();
  EXPECT_TRUE(ends(connection));
}

}  // namespace
}  // namespace kv
