// A host of several addresses, some of them dead: one connection, on virtual time.
#include "transport/connect_first.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/transport/sim_world.h"

namespace kv {
namespace {

using Address = asio::ip::tcp::endpoint;
using StreamPtr = std::unique_ptr<Stream>;

Address at(const char* host) { return {asio::ip::make_address(host), 7}; }

TEST(AlternateFamiliesTest, TheOtherFamilyComesSecondAndTheOrderWithinOneStays) {
  const std::vector<Address> given = {at("::1"), at("::2"), at("::3"), at("127.0.0.1"), at("127.0.0.2")};
  EXPECT_EQ(alternate_families(given),
            (std::vector<Address>{at("::1"), at("127.0.0.1"), at("::2"), at("127.0.0.2"), at("::3")}));
  EXPECT_EQ(alternate_families({at("127.0.0.1"), at("::1")}), (std::vector<Address>{at("127.0.0.1"), at("::1")}));
  EXPECT_EQ(alternate_families({at("127.0.0.1")}), std::vector<Address>{at("127.0.0.1")});
  EXPECT_EQ(alternate_families({}), std::vector<Address>{});
}

/// Hosts "0", "1", ... are the addresses of one.
class ConnectFirstTest : public testing::Test {
 protected:
  ConnectFirstTest() { world.network.set_faults({.delay_min = 1ms, .delay_max = 1ms}); }

  void listen(const std::string& host) {
    listeners.push_back(world.network.listen({Endpoint::Scheme::kSim, host, ""}, world.io.get_executor()).value());
  }
  Async<StreamPtr> begin(std::size_t count) {
    const std::function<Async<StreamPtr>(std::size_t)> connect = [this](std::size_t i) {
      begun.push_back(world.clock.now() - start);
      return world.network.connect({Endpoint::Scheme::kSim, std::to_string(i), ""}, world.io.get_executor());
    };
    return connect_first(count, connect, world.clock, world.io.get_executor());
  }
  Result<StreamPtr> connect(std::size_t count) { return *world.await(begin(count)); }
  Duration elapsed() const { return world.clock.now() - start; }

  SimWorld world;
  const TimePoint start = world.clock.now();
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<Duration> begun;  ///< When each address was tried.
};

TEST_F(ConnectFirstTest, TheFirstAddressThatAnswersIsTheOnlyOneTried) {
  listen("0");
  listen("1");
  const auto stream = connect(2);
  ASSERT_TRUE(stream);
  EXPECT_EQ((*stream)->peer(), "sim:0");
  EXPECT_EQ(begun, std::vector<Duration>{0s});
}

TEST_F(ConnectFirstTest, AnAddressThatRefusesIsFollowedByTheNextAtOnce) {
  listen("2");
  const auto stream = connect(3);
  ASSERT_TRUE(stream);
  EXPECT_EQ((*stream)->peer(), "sim:2");
  EXPECT_EQ(begun, (std::vector<Duration>{0ms, 2ms, 4ms}));  // a round trip each
}

TEST_F(ConnectFirstTest, AnAddressThatIsSilentCostsAQuarterOfASecond) {
  listen("0");
  listen("1");
  world.network.freeze("0");
  const auto stream = connect(2);
  ASSERT_TRUE(stream);
  EXPECT_EQ((*stream)->peer(), "sim:1");
  EXPECT_EQ(begun, (std::vector<Duration>{0ms, 250ms}));
  EXPECT_EQ(elapsed(), 252ms);
  // The other one was given up: nothing of it is left when its host is back.
  world.network.thaw("0");
  world.run_for(10s);
  EXPECT_EQ(world.network.stream_count(), 2u);
}

TEST_F(ConnectFirstTest, TheFirstAddressMayStillWinWhileTheSecondIsTried) {
  listen("0");
  listen("1");
  world.network.freeze("0");
  world.network.freeze("1");
  std::optional<Result<StreamPtr>> stream;
  asio::co_spawn(world.io, begin(2),
                 [&](std::exception_ptr, Result<StreamPtr> made) { stream.emplace(std::move(made)); });
  world.run_for(300ms);
  world.network.thaw("0");
  ASSERT_TRUE(world.run_until([&] { return stream.has_value(); }));
  ASSERT_TRUE(*stream);
  EXPECT_EQ((**stream)->peer(), "sim:0");
  EXPECT_EQ(begun.size(), 2u);
}

TEST_F(ConnectFirstTest, WhenAllRefuseTheLastOnesReasonIsTheAnswer) {
  const auto stream = connect(3);
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error(), asio::error::connection_refused);
  EXPECT_EQ(begun.size(), 3u);
  world.run_for(1s);
  EXPECT_FALSE(world.clock.has_alarm());
}

TEST_F(ConnectFirstTest, WhoGivesUpEndsAllThatWereTried) {
  world.network.freeze("0");
  world.network.freeze("1");
  asio::cancellation_signal cancel;
  std::optional<Result<StreamPtr>> stream;
  asio::co_spawn(world.io, begin(2),
                 asio::bind_cancellation_slot(cancel.slot(), [&](std::exception_ptr, Result<StreamPtr> made) {
                   stream.emplace(std::move(made));
                 }));
  world.run_for(300ms);
  EXPECT_EQ(begun.size(), 2u);
  cancel.emit(asio::cancellation_type::terminal);
  world.poll();
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->error(), asio::error::operation_aborted);
  EXPECT_FALSE(world.clock.has_alarm());
}

TEST_F(ConnectFirstTest, AnExecutorMayEndWithTriesInIt) {
  world.network.freeze("0");
  world.network.freeze("1");
  asio::co_spawn(world.io, begin(2), asio::detached);
  world.run_for(300ms);
  EXPECT_EQ(begun.size(), 2u);
}

}  // namespace
}  // namespace kv
