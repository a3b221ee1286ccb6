// Several memberships on one key store and virtual time: who is on the list, and which states and epochs each one
// tells.
#include "store/node/membership/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <map>
#include <random>

#include "store/node/membership/member_text.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/node/memory_keys.h"

namespace kv {
namespace {

/// One process with its membership.
struct Process {
  Process(asio::io_context& context, MemoryKeySpace& space, VirtualClock& clock, const std::string& id, char instance)
      : keys(space),
        config(with_clock(make(id, instance), clock)),
        membership(context.get_executor(), keys, clock, board, config) {
    asio::co_spawn(context, membership.run(), [this](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      has_ended = true;
    });
  }
  static MembershipConfig make(const std::string& id, char instance) {
    MembershipConfig config;
    config.self.id = id;
    config.self.instance = std::string(32, instance);
    config.self.endpoints = {"tcp://127.0.0.1:7400"};
    return config;
  }
  static MembershipConfig with_clock(MembershipConfig config, const VirtualClock& clock) {
    config.wall_seconds = [&clock] {
      return 1'800'000'000 +
             static_cast<std::uint64_t>(
                 std::chrono::duration_cast<std::chrono::seconds>(clock.now().time_since_epoch()).count());
    };
    return config;
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const Member& member : board.view()->members) ids.push_back(member.id);
    return ids;
  }

  MemoryKeys keys;
  MembershipConfig config;
  ClusterBoard board;
  bool has_ended = false;
  Membership membership;
};

class MembershipTest : public testing::Test {
 protected:
  ~MembershipTest() override {
    for (const auto& process : processes) process->membership.stop();
    run_for(5s);
    for (const auto& process : processes) EXPECT_TRUE(process->has_ended);
  }
  Process& start(const std::string& id, char instance = '0') {
    return *processes.emplace_back(std::make_unique<Process>(context, space, clock, id, instance));
  }
  void run_for(Duration duration) {
    const TimePoint until = clock.now() + duration;
    for (;;) {
      context.restart();
      if (context.poll() > 0) continue;
      if (!clock.has_alarm() || clock.next_alarm() > until) break;
      clock.advance_to(clock.next_alarm());
    }
    clock.advance_to(until);
  }
  using Ids = std::vector<std::string>;

  asio::io_context context{1};
  VirtualClock clock;
  MemoryKeySpace space{clock};
  std::vector<std::unique_ptr<Process>> processes;
};

TEST_F(MembershipTest, NodesFindOneAnotherAndAgreeOnTheEpoch) {
  Process& a = start("a");
  run_for(2s);
  EXPECT_EQ(a.ids(), Ids({"a"}));
  EXPECT_TRUE(a.membership.status().is_joined);
  const std::uint64_t first = a.board.epoch();
  EXPECT_GT(first, 0u);
  Process& b = start("b");
  run_for(3s);
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
  EXPECT_EQ(b.ids(), Ids({"a", "b"}));
  EXPECT_GT(a.board.epoch(), first);
  EXPECT_EQ(a.board.epoch(), b.board.epoch()) << "nothing else is written there, so both read one revision";
  EXPECT_EQ(a.board.view()->extent_blocks, 256u);
}

TEST_F(MembershipTest, ANodeThatLeavesIsOffTheListAtOnceAndOneThatDrainsSaysSo) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(3s);
  b.membership.tell(Member::State::kDraining, Member::Phase::kNone);
  run_for(2s);
  ASSERT_EQ(a.ids(), Ids({"a", "b"}));
  EXPECT_EQ(a.board.view()->members[1].state, Member::State::kDraining);
  b.membership.stop();
  run_for(1s);
  EXPECT_TRUE(b.has_ended);
  run_for(1s);
  EXPECT_EQ(a.ids(), Ids({"a"})) << "before its lease has ended";
}

TEST_F(MembershipTest, ANodeThatDiesIsOffTheListWhenItsLeaseEnds) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(3s);
  b.keys.is_away = true;  // as if it were dead: etcd hears nothing of it
  run_for(5s);
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
  run_for(10s);
  EXPECT_EQ(a.ids(), Ids({"a"}));
}

// Losing etcd changes nothing for traffic.
TEST_F(MembershipTest, WhileEtcdIsAwayTheLastMapStaysInForce) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(3s);
  const std::uint64_t epoch = a.board.epoch();
  a.keys.is_away = b.keys.is_away = true;
  run_for(10min);
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
  EXPECT_EQ(a.board.epoch(), epoch);
  EXPECT_FALSE(a.membership.status().is_reachable);
  EXPECT_GT(a.membership.status().failures, 100u);
  // It is back, and both leases have ended. One comes first and sees a list without the other: 4, and 1 of its own.
  a.keys.is_away = false;
  run_for(3s);
  b.keys.is_away = false;
  run_for(3s);
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
  EXPECT_EQ(b.ids(), Ids({"a", "b"}));
  EXPECT_EQ(digest_of(*a.board.view()), digest_of(*b.board.view()));
  EXPECT_EQ(a.membership.status().joins, 2u);
}

TEST_F(MembershipTest, AnEtcdThatRefusesChangesIsReadOn) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(3s);
  EXPECT_TRUE(a.membership.status().is_writable);
  EXPECT_EQ(a.membership.why_not_written(), "");
  a.keys.refusal = "database space exceeded";
  a.membership.tell(Member::State::kDraining, Member::Phase::kNone);
  start("c");
  run_for(3s);
  EXPECT_EQ(a.ids(), Ids({"a", "b", "c"}));
  EXPECT_EQ(digest_of(*a.board.view()), digest_of(*b.board.view()));
  EXPECT_TRUE(a.membership.status().is_reachable);
  EXPECT_FALSE(a.membership.status().is_writable);
  EXPECT_FALSE(a.board.is_writable());
  EXPECT_EQ(a.membership.why_not_written(), "database space exceeded");
  run_for(1min);
  EXPECT_EQ(b.ids(), Ids({"a", "b", "c"})) << "its lease is renewed, which is no change";
  a.keys.refusal = "";
  run_for(3s);
  EXPECT_TRUE(a.board.is_writable());
  EXPECT_EQ(a.membership.why_not_written(), "");
  EXPECT_EQ(b.board.view()->members[0].state, Member::State::kDraining) << "what waited is told";
}

/// A member of etcd that lost the others answers reads with its old state, and takes no changes.
TEST_F(MembershipTest, WhileChangesAreRefusedAnOlderStateIsNeverTaken) {
  Process& a = start("a");
  run_for(3s);
  const KeyStore::Listing old = a.keys.state();
  start("b");
  run_for(3s);
  ASSERT_EQ(a.ids(), Ids({"a", "b"}));
  const std::uint64_t epoch = a.board.epoch();
  a.keys.shown = old;
  a.keys.refusal = "no leader";
  a.membership.tell(Member::State::kDraining, Member::Phase::kNone);
  run_for(1min);
  EXPECT_EQ(a.board.epoch(), epoch) << "it is behind, not set back";
}

TEST_F(MembershipTest, AnEntryOfAnEarlierRunIsNoOtherProcessWhileChangesAreRefused) {
  start("a");
  start("b", '1');
  run_for(3s);
  processes[1]->keys.is_away = true;  // it was killed
  Process& again = *processes.emplace_back(std::make_unique<Process>(context, space, clock, "b", '2'));
  again.keys.refusal = "database space exceeded";
  run_for(3s);
  EXPECT_FALSE(again.membership.status().is_replaced);
  EXPECT_FALSE(again.membership.status().is_joined);
  again.keys.refusal = "";
  run_for(3s);
  EXPECT_TRUE(again.membership.status().is_joined);
  processes[1]->keys.is_away = false;
}

TEST_F(MembershipTest, AListWithoutThisNodeIsNotTaken) {
  Process& a = start("a");
  start("b");
  run_for(3s);
  std::erase_if(space.values, [](const auto& value) { return value.first.starts_with("/kvstore/nodes/"); });
  space.leases.clear();
  ++space.revision;
  for (int i = 0; i < 40; ++i) {
    run_for(100ms);
    const Ids ids = a.ids();
    ASSERT_TRUE(std::ranges::find(ids, "a") != ids.end()) << i;
  }
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
}

TEST_F(MembershipTest, AnEtcdThatWasMadeAnewDoesNotShrinkTheMap) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(3s);
  space.values.clear();  // etcd was made anew, and has lower revisions
  space.leases.clear();
  space.revision = 1;
  std::size_t fewest = 2;
  for (int i = 0; i < 40; ++i) {
    run_for(500ms);
    fewest = std::min({fewest, a.ids().size(), b.ids().size()});
  }
  EXPECT_EQ(fewest, 2u) << "both were on the list before either took it";
  EXPECT_EQ(a.ids(), Ids({"a", "b"}));
}

// Promise 2.
TEST_F(MembershipTest, AnOlderRevisionIsNotTaken) {
  Process& a = start("a");
  start("b");
  run_for(3s);
  const KeyStore::Listing old = a.keys.state();
  start("c");
  run_for(3s);
  const std::uint64_t epoch = a.board.epoch();
  EXPECT_EQ(a.ids(), Ids({"a", "b", "c"}));
  a.keys.shown = old;
  run_for(5s);
  EXPECT_EQ(a.ids(), Ids({"a", "b", "c"}));
  EXPECT_EQ(a.board.epoch(), epoch);
  a.keys.shown.reset();
  run_for(20s);
  EXPECT_EQ(a.ids(), Ids({"a", "b", "c"}));
}

TEST_F(MembershipTest, EpochsGoOnWhereEtcdWasSetBack) {
  Process& a = start("a");
  run_for(3s);
  space.revision += 1000;
  space.set("/kvstore/nodes/z", write_member(Process::make("z", '5').self));
  run_for(3s);
  const std::uint64_t epoch = a.board.epoch();
  EXPECT_GT(epoch, 1000u);
  space.revision = 7;
  space.values.erase("/kvstore/nodes/z");
  run_for(5s);
  EXPECT_EQ(a.board.epoch(), epoch) << "it may be a member of etcd that is behind";
  run_for(10s);
  EXPECT_EQ(a.ids(), Ids({"a"}));
  EXPECT_GT(a.board.epoch(), epoch);
}

// Promise 2. Nodes look at different moments, and see different states in between.
TEST_F(MembershipTest, OneEpochIsOneListForAllWhereEtcdWasMadeAnew) {
  for (const char* id : {"a", "b", "c"}) {
    start(id);
    run_for(1300ms);
  }
  std::map<std::uint64_t, std::uint64_t> lists;  // digests by epoch
  const auto look = [&](Duration time) {
    for (Duration passed{}; passed < time; passed += 50ms) {
      run_for(50ms);
      for (const auto& process : processes) {
        const auto view = process->board.view();
        const auto [known, is_new] = lists.emplace(view->epoch, digest_of(*view));
        ASSERT_TRUE(is_new || known->second == digest_of(*view)) << "epoch " << view->epoch;
      }
    }
  };
  look(3s);
  for (int round = 0; round < 3; ++round) {
    space.values.clear();
    space.leases.clear();
    space.revision = 1;
    look(5s);
    processes[1]->membership.tell(Member::State::kDraining, Member::Phase::kNone);
    look(3s);
    start("d" + std::to_string(round));
    look(20s);
    processes[1]->membership.tell(Member::State::kServing, Member::Phase::kNone);
    look(20s);
    for (const auto& process : processes) EXPECT_EQ(process->board.epoch(), processes[0]->board.epoch());
  }
}

// Promise 4.
TEST_F(MembershipTest, WhereAllLeasesHaveEndedNoMapLacksANodeThatIsThere) {
  for (const char* id : {"a", "b", "c"}) {
    start(id);
    run_for(1300ms);
  }
  run_for(5s);
  std::vector<std::int64_t> leases;
  for (const auto& [lease, life] : space.leases) leases.push_back(lease);
  for (const std::int64_t lease : leases) space.end(lease);
  space.leases.clear();
  for (int i = 0; i < 400; ++i) {
    run_for(50ms);
    for (const auto& process : processes) EXPECT_EQ(process->ids(), Ids({"a", "b", "c"}));
  }
}

/// Each node keeps its lease at another time, so of an outage some outlive it.
TEST_F(MembershipTest, WhereSomeLeasesHaveEndedWhileEtcdWasAwayNoMapLacksANodeThatIsThere) {
  for (const char* id : {"a", "b", "c"}) {
    start(id);
    run_for(1300ms);
  }
  run_for(5s);
  for (const auto& process : processes) process->keys.is_away = true;
  const auto lease = processes[0]->config.lease;
  space.leases.begin()->second.first = clock.now() + lease + 5s;  // a's
  run_for(lease);
  space.expire();  // those of b and c
  ASSERT_EQ(space.leases.size(), 1u);
  for (const auto& process : processes) process->keys.is_away = false;
  for (int i = 0; i < 400; ++i) {
    run_for(50ms);
    for (const auto& process : processes) EXPECT_EQ(process->ids(), Ids({"a", "b", "c"}));
  }
}

TEST_F(MembershipTest, ANodeThatWasAwayLearnsBeforeLongWhoWentMeanwhile) {
  Process& a = start("a");
  Process& b = start("b");
  run_for(5s);
  a.keys.is_away = true;
  run_for(15s);
  b.membership.stop();
  run_for(5s);
  a.keys.is_away = false;
  run_for(a.config.lease + 3 * a.config.poll);
  EXPECT_EQ(a.ids(), Ids({"a"}));
}

// Promise 3.
TEST_F(MembershipTest, OfTwoProcessesWithOneIdTheLaterOneIsTheMember) {
  Process& other = start("b");
  Process& old = start("a", '1');
  run_for(3s);
  Process& young = start("a", '2');
  run_for(3s);
  EXPECT_TRUE(old.membership.status().is_replaced);
  EXPECT_FALSE(old.membership.status().is_joined);
  EXPECT_FALSE(young.membership.status().is_replaced);
  EXPECT_TRUE(young.membership.status().is_joined);
  for (int i = 0; i < 30; ++i) {
    run_for(1s);
    ASSERT_EQ(other.board.view()->members[0].instance, std::string(32, '2'));
  }
  EXPECT_EQ(old.ids(), Ids({"a", "b"})) << "it still knows who belongs to the cluster";
}

TEST_F(MembershipTest, EntriesThatAreNoneAreLeftOut) {
  space.set("/kvstore/nodes/x", "no JSON");
  space.set("/kvstore/nodes/y", write_member(Process::make("z", '1').self));  // under another id
  space.set("/kvstore/more", "of a version to come");
  space.set("/kvstoreother/nodes/q", write_member(Process::make("q", '1').self));
  Process& a = start("a");
  run_for(3s);
  EXPECT_EQ(a.ids(), Ids({"a"}));
  EXPECT_GT(a.membership.status().bad_entries, 0u);
}

TEST_F(MembershipTest, TheClustersConstantIsThatOfItsFirstNodeAndABadOneIsNotTaken) {
  space.set("/kvstore/extent_blocks", "64");
  Process& a = start("a");
  run_for(3s);
  EXPECT_EQ(a.board.view()->extent_blocks, 64u);
  space.set("/kvstore/extent_blocks", "0");
  Process& b = start("b");
  run_for(3s);
  EXPECT_EQ(a.board.view()->extent_blocks, 64u) << "what was heard last stays in force";
  EXPECT_EQ(b.board.epoch(), 0u);
  space.set("/kvstore/extent_blocks", "64");
  run_for(3s);
  EXPECT_EQ(b.ids(), Ids({"a", "b"}));
}

/// Any order of what can happen to nodes and to etcd. Once all is well again, all know all that live, under one epoch.
TEST_F(MembershipTest, RandomLives) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr const char* kDigits = "123456789abcdef";
  std::map<std::string, Process*> live;
  std::map<Process*, std::uint64_t> epochs;
  for (int step = 0; step < 300; ++step) {
    const std::string id(1, static_cast<char>('a' + random() % 5));
    Process*& one = live[id];
    switch (random() % 8) {
      case 0:
        if (one == nullptr) one = &start(id, kDigits[random() % 15]);
        break;
      case 1:
        if (one != nullptr) one->membership.stop();
        one = nullptr;
        break;
      case 2:  // killed: nothing more is heard of it
        if (one != nullptr) one->keys.is_away = true;
        if (one != nullptr) one->membership.stop();
        one = nullptr;
        break;
      case 3:
        if (one != nullptr) one->keys.is_away = true;
        break;
      case 4:
        if (one != nullptr) one->keys.is_away = false;
        break;
      case 5:
        if (one != nullptr && random() % 4 == 0) one->membership.tell(Member::State::kDraining, Member::Phase::kNone);
        break;
      case 6:
        space.expire();
        if (random() % 8 == 0) {
          space.values.clear();
          space.leases.clear();
          space.revision = 1;
        }
        break;
      default: break;
    }
    run_for(std::chrono::milliseconds(random() % 4000));
    for (const auto& process : processes) {
      ASSERT_GE(process->board.epoch(), epochs[process.get()]);
      epochs[process.get()] = process->board.epoch();
    }
  }
  Ids alive;
  for (const auto& [id, process] : live) {
    if (process == nullptr) continue;
    process->keys.is_away = false;
    alive.push_back(id);
  }
  run_for(1min);
  for (const auto& [id, process] : live) {
    if (process == nullptr) continue;
    EXPECT_EQ(process->ids(), alive) << id;
  }
}

}  // namespace
}  // namespace kv
