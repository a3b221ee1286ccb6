// Names are looked up beside the path, however long that takes and whoever has left meanwhile.
#include "transport/resolver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/stream.h"

namespace kv {
namespace {

/// A name server that does not answer until it is let.
struct SlowServer {
  std::mutex mutex;
  std::condition_variable changed;
  bool answers = false;
  std::size_t begun = 0, ended = 0;

  Result<Resolver::Addresses> look_up() {
    std::unique_lock lock(mutex);
    ++begun;
    changed.notify_all();
    changed.wait(lock, [&] { return answers; });
    ++ended;
    return Resolver::Addresses{{asio::ip::make_address("127.0.0.1"), 7}};
  }
  void wait_until_begun(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun >= count; });
  }
  std::size_t begun_count() {
    const std::lock_guard lock(mutex);
    return begun;
  }
  void answer() {
    const std::lock_guard lock(mutex);
    answers = true;
    changed.notify_all();
  }
};

class ResolverTest : public testing::Test {
 protected:
  ~ResolverTest() override {
    server->answer();
    while (resolver->thread_count() > 0) std::this_thread::yield();
  }
  struct Asked {
    std::optional<Result<Resolver::Addresses>> answer;
    asio::cancellation_signal cancel;
  };
  std::shared_ptr<Asked> ask(asio::io_context& context, const std::string& host) {
    auto asked = std::make_shared<Asked>();
    asio::co_spawn(context, resolver->resolve(host, "7", context.get_executor()),
                   asio::bind_cancellation_slot(asked->cancel.slot(),
                                                [asked](std::exception_ptr, Result<Resolver::Addresses> answer) {
                                                  asked->answer.emplace(std::move(answer));
                                                }));
    return asked;
  }

  std::shared_ptr<SlowServer> server = std::make_shared<SlowServer>();
  std::shared_ptr<Resolver> resolver =
      std::make_shared<Resolver>([s = server](const std::string&, const std::string&) { return s->look_up(); }, 2);
  asio::io_context io{1};
};

TEST_F(ResolverTest, ManyWhoWaitForANameGetTheAnswerOfOneLookup) {
  std::vector<std::shared_ptr<Asked>> all;
  for (int i = 0; i < 50; ++i) all.push_back(ask(io, "name"));
  io.poll();
  server->wait_until_begun(1);
  server->answer();
  io.run();
  for (const auto& asked : all) {
    ASSERT_TRUE(asked->answer && *asked->answer);
    EXPECT_EQ((*asked->answer)->front().port(), 7);
  }
  EXPECT_EQ(server->begun_count(), 1u);
}

TEST_F(ResolverTest, WhoGivesUpAndComesAgainAddsNoLookup) {
  for (int i = 0; i < 100; ++i) {
    const auto asked = ask(io, "name");
    io.restart();
    io.poll();
    server->wait_until_begun(1);  // what has not begun is forgotten with the last who waits
    asked->cancel.emit(asio::cancellation_type::terminal);
    io.restart();
    io.run();  // it ends although the name server is silent
    ASSERT_TRUE(asked->answer);
    EXPECT_EQ(asked->answer->error(), asio::error::operation_aborted);
  }
  EXPECT_EQ(server->begun_count(), 1u);
  EXPECT_EQ(resolver->thread_count(), 1u);
}

TEST_F(ResolverTest, MoreNamesThanThreadsWaitForTheirTurnAndOnlyWhileTheyAreWanted) {
  std::vector<std::shared_ptr<Asked>> all;
  for (int i = 0; i < 10; ++i) all.push_back(ask(io, "name" + std::to_string(i)));
  io.poll();
  server->wait_until_begun(2);
  EXPECT_EQ(resolver->thread_count(), 2u);
  for (std::size_t i = 2; i < 9; ++i) all[i]->cancel.emit(asio::cancellation_type::terminal);
  io.restart();
  io.poll();
  server->answer();
  io.restart();
  io.run();
  EXPECT_EQ(server->begun_count(), 3u) << "the first two, and the last, which still waits";
  EXPECT_TRUE(all[9]->answer && *all[9]->answer);
}

TEST_F(ResolverTest, AnExecutorMayEndWithALookupInIt) {
  {
    asio::io_context ends{1};
    ask(ends, "name");
    ends.poll();
    server->wait_until_begun(1);
  }
  server->answer();
  while (resolver->thread_count() > 0) std::this_thread::yield();
}

TEST_F(ResolverTest, ALiteralAddressIsNotLookedUp) {
  const auto network = make_socket_network(resolver);
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    bool ended = false;
    asio::co_spawn(io, network->connect({Endpoint::Scheme::kTcp, host, "1"}, io.get_executor()),
                   [&](std::exception_ptr, Result<std::unique_ptr<Stream>>) { ended = true; });
    io.restart();
    io.run();
    EXPECT_TRUE(ended);
  }
  EXPECT_EQ(server->begun_count(), 0u);
}

}  // namespace
}  // namespace kv
