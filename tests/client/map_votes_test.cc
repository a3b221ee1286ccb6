#include "client/cluster/map_votes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kv {
namespace {

class MapVotesTest : public testing::Test {
 protected:
  static ClusterStatus map(std::uint64_t epoch, const std::vector<std::string>& ids) {
    ClusterStatus made;
    made.epoch = epoch;
    made.extent_blocks = 8;
    for (const std::string& id : ids) {
      ClusterStatus::Node node;
      node.id = id;
      node.endpoints = {"sim://" + id};
      node.weight = 1;
      made.nodes.push_back(std::move(node));
    }
    return made;
  }
  /// A node that answers; its id is as its number says.
  MapVotes::Voter& voter(std::size_t node, bool is_own) {
    voters.push_back({node, std::string(1, static_cast<char>('a' + node)), is_own, false});
    return voters.back();
  }
  void tell(std::size_t node, std::uint64_t epoch, const std::vector<std::string>& ids) {
    EXPECT_EQ(votes.tell(node, map(epoch, ids), now), "");
  }
  /// Takes what is chosen. The epoch in force, 0 for none.
  std::uint64_t settle() {
    if (const ClusterStatus* const chosen = votes.choose(voters, now)) {
      in_force = *chosen;
      votes.took(in_force, now);
    }
    return in_force.epoch;
  }
  void make_three() {
    for (std::size_t node = 0; node < 3; ++node) voter(node, true);
    for (std::size_t node = 0; node < 3; ++node) tell(node, 5, {"a", "b", "c"});
    ASSERT_EQ(settle(), 5u);
    now += 1min;
  }

  MapVotes votes;
  std::vector<MapVotes::Voter> voters;
  TimePoint now{1h};
  ClusterStatus in_force;
};

constexpr std::uint64_t kHuge = ~std::uint64_t{0}, kFarEpoch = 1 << 30;

TEST_F(MapVotesTest, AMapIsTakenUpOnceASecondNodeTellsIt) {  // 1
  make_three();
  tell(0, 9, {"a", "b"});
  EXPECT_EQ(settle(), 5u) << "one node alone takes nobody off the map";
  tell(1, 8, {"a", "b"});
  EXPECT_EQ(settle(), 8u) << "the same state, which each read at a revision of its own; both reach this one";
}

TEST_F(MapVotesTest, TheEpochOfTheMapInForceFollowsThoseWhoTellIt) {
  make_three();
  tell(0, 20, {"a", "b", "c"});
  EXPECT_FALSE(votes.agrees(0)) << "a second one is asked";
  EXPECT_EQ(settle(), 5u);
  tell(1, 18, {"a", "b", "c"});
  EXPECT_EQ(settle(), 18u);
  EXPECT_TRUE(votes.agrees(1));
}

TEST_F(MapVotesTest, TwoOfThreeLinksToOneNodeAreOneVoter) {
  make_three();
  voter(3, true).id = "a";  // an alias of the first
  tell(0, 9, {"a"});
  tell(3, 9, {"a"});
  EXPECT_EQ(settle(), 5u);
}

TEST_F(MapVotesTest, AnEpochBeyondWhatCanFollowIsNoVote) {  // 6
  make_three();
  EXPECT_NE(votes.tell(0, map(kHuge, {"a"}), now), "");
  EXPECT_NE(votes.tell(0, map(6 + MapVotes::kEpochStepMax, {"a"}), now), "");
  EXPECT_EQ(settle(), 5u);
  EXPECT_EQ(votes.tell(0, map(5 + MapVotes::kEpochStepMax, {"a"}), now), "");
  EXPECT_EQ(settle(), 5u);
}

TEST_F(MapVotesTest, NoNodeAloneMakesAnEpochGreat) {
  make_three();
  tell(0, 1 << 30, {"a", "b"});
  tell(1, 8, {"a", "b"});
  EXPECT_EQ(settle(), 8u);
}

TEST_F(MapVotesTest, NoNodeAloneRaisesTheEpochOfTheMapInForce) {  // 1, 5
  make_three();
  tell(1, 6, {"a", "b"});
  tell(2, 7, {"b", "c"});
  tell(0, 900, {"a", "b", "c"});
  EXPECT_EQ(settle(), 5u);
}

TEST_F(MapVotesTest, TheEpochDoesNotFallWhereAChangeIsUndoneBeforeAllHaveReadIt) {  // 3, 5
  for (std::size_t node = 0; node < 2; ++node) voter(node, true);
  const auto drained = [](std::uint64_t epoch) {
    ClusterStatus made = map(epoch, {"a", "b"});
    made.nodes[0].is_serving = false;
    return made;
  };
  EXPECT_EQ(votes.tell(1, drained(5), now), "");
  votes.silent(0, now);
  ASSERT_EQ(settle(), 5u) << "a is away";
  now += 30s;
  EXPECT_EQ(votes.tell(0, drained(7), now), "");
  EXPECT_EQ(settle(), 5u);
  tell(1, 6, {"a", "b"});
  EXPECT_EQ(settle(), 6u) << "a served meanwhile and drains again, which b has not read yet";
  now += 1s;
  EXPECT_EQ(votes.tell(0, drained(7), now), "");
  EXPECT_EQ(settle(), 6u);
  EXPECT_EQ(votes.tell(1, drained(7), now), "");
  EXPECT_EQ(settle(), 7u);
}

TEST_F(MapVotesTest, ANodeThatIsAloneIsBelieved) {  // 2
  voter(0, true);
  tell(0, 5, {"a", "b"});
  EXPECT_EQ(settle(), 5u) << "there is nobody else";
}

TEST_F(MapVotesTest, OneThatAnswersIsBelievedOnceTwoOthersDidNot) {
  for (std::size_t node = 0; node < 4; ++node) voter(node, true);
  tell(0, 5, {"a", "b", "c", "d"});
  EXPECT_EQ(settle(), 0u);
  votes.silent(1, now);
  EXPECT_EQ(settle(), 0u);
  votes.silent(2, now);
  EXPECT_EQ(settle(), 5u);
}

TEST_F(MapVotesTest, ALiarThatWasMetAloneIsFoundOut) {  // 4
  for (std::size_t node = 0; node < 3; ++node) voter(node, true);
  votes.silent(1, now);
  votes.silent(2, now);
  tell(0, 1 << 30, {"a"});
  ASSERT_EQ(settle(), 1u << 30) << "nobody else answered";
  now += MapVotes::kSilence + 1s;
  tell(1, 7, {"a", "b", "c"});
  tell(2, 7, {"a", "b", "c"});
  EXPECT_EQ(settle(), 7u) << "an epoch goes back where two tell an earlier one";
  tell(0, (1 << 30) + 1, {"a"});
  EXPECT_EQ(settle(), 7u);
}

TEST_F(MapVotesTest, NodesThatWereMadeUpDoNotOutvoteTheClientsOwnList) {
  for (std::size_t node = 0; node < 3; ++node) voter(node, true);
  votes.silent(1, now);
  votes.silent(2, now);
  tell(0, 100, {"a", "x", "y"});
  ASSERT_EQ(settle(), 100u);
  voter(23, false);
  voter(24, false);
  now += MapVotes::kSilence + 1s;
  for (const std::size_t made_up : {0, 23, 24}) tell(made_up, 101, {"a", "x", "y"});
  tell(1, 7, {"a", "b", "c"});
  tell(2, 7, {"a", "b", "c"});
  EXPECT_EQ(settle(), 7u);
  tell(0, 101, {"a", "x", "y"});
  tell(23, 101, {"a", "x", "y"});
  EXPECT_EQ(settle(), 7u) << "what the list has overruled does not come again";
}

TEST_F(MapVotesTest, AMapAfterAnOverruledOneIsAdoptedOnceTheListNoLongerHoldsTheOldOne) {  // 4
  for (std::size_t node = 0; node < 2; ++node) voter(node, true);
  for (std::size_t node = 2; node < 4; ++node) voter(node, false);
  tell(0, kFarEpoch, {"a"});
  for (const std::size_t away : {1, 2, 3}) votes.silent(away, now);
  ASSERT_EQ(settle(), kFarEpoch) << "a liar that is met alone";
  now += MapVotes::kSilence + 1s;
  tell(0, 7, {"a", "b", "c", "d"});
  tell(1, 7, {"a", "b", "c", "d"});
  ASSERT_EQ(settle(), 7u);
  now += 1min;
  voters.erase(voters.begin());  // it leaves; one of the list is left
  for (const std::size_t node : {1, 2, 3}) tell(node, 8, {"b", "c", "d"});
  EXPECT_EQ(settle(), 8u);
}

TEST_F(MapVotesTest, OneOfTheListAndOneMemberAreTwo) {  // 1
  voter(0, true);
  voter(1, false);
  tell(0, 5, {"a", "b"});
  ASSERT_EQ(settle(), 0u);
  tell(1, 5, {"a", "b"});
  ASSERT_EQ(settle(), 5u);
  tell(0, 6, {"a", "b", "c"});
  EXPECT_EQ(settle(), 5u);
  tell(1, 6, {"a", "b", "c"});
  EXPECT_EQ(settle(), 6u);
}

TEST_F(MapVotesTest, OneNodeIsEnoughForTheEndOfANodeThatLeaves) {  // 5
  make_three();
  ClusterStatus leaving = map(6, {"a", "b", "c"});
  leaving.nodes[2].is_leaving = true;
  for (const std::size_t node : {0, 1}) EXPECT_EQ(votes.tell(node, leaving, now), "");
  ASSERT_EQ(settle(), 6u);
  ClusterStatus drained = leaving;
  drained.epoch = 7;
  drained.nodes[2].is_serving = drained.nodes[2].is_leaving = false;
  EXPECT_EQ(votes.tell(0, drained, now), "");
  EXPECT_EQ(settle(), 7u);
  tell(0, 8, {"a", "b"});
  EXPECT_EQ(settle(), 8u);
  tell(1, 8, {"a", "b"});
  now += MapVotes::kSettling + 1s;
  votes.silent(1, now);
  for (const ClusterStatus& before : {leaving, drained}) {
    EXPECT_EQ(votes.tell(2, before, now), "");
    EXPECT_EQ(settle(), 8u) << "c has left and still answers, with the map of before";
  }
  tell(1, 8, {"a", "b"});
  votes.silent(2, now);
  tell(0, 9, {"a"});
  EXPECT_EQ(settle(), 8u) << "b had not said that it leaves";
  tell(0, 10, {"a", "b", "c"});
  EXPECT_EQ(settle(), 8u) << "no node comes back by one node's word";
}

TEST_F(MapVotesTest, NodesThatHaveJustStartedDoNotCallTheListBack) {  // 4
  make_three();
  for (const std::size_t node : {0, 1}) tell(node, 0, {});
  votes.silent(2, now);
  EXPECT_EQ(settle(), 5u) << "they have not read the list yet";
  now += MapVotes::kSettling - 1s;
  for (const std::size_t node : {0, 1}) tell(node, 0, {});
  EXPECT_EQ(settle(), 5u);
  now += 1s;
  for (const std::size_t node : {0, 1}) tell(node, 0, {});
  EXPECT_EQ(settle(), 0u) << "no cluster any more";
}

TEST_F(MapVotesTest, AStaticListOverrulesTheOneNodeThatTellsOfACluster) {
  for (std::size_t node = 0; node < 3; ++node) voter(node, true);
  tell(0, 100, {"a"});
  tell(1, 0, {});
  tell(2, 0, {});
  EXPECT_EQ(settle(), 0u);
  votes.silent(1, now);
  votes.silent(2, now);
  EXPECT_EQ(settle(), 100u) << "while nobody else answers";
  now += MapVotes::kSilence + 1s;
  tell(1, 0, {});
  tell(2, 0, {});
  EXPECT_EQ(settle(), 0u);
}

TEST_F(MapVotesTest, OldVotesDoNotCallAMapBack) {
  make_three();
  tell(0, 9, {"a", "b"});
  tell(1, 9, {"a", "b"});
  ASSERT_EQ(settle(), 9u);
  votes.silent(0, now);
  now += 1s;
  tell(2, 5, {"a", "b", "c"});  // it has not looked yet
  EXPECT_EQ(settle(), 9u);
}

TEST_F(MapVotesTest, OfTwoThatDoNotAgreeTheOneThatDropsNobodyIsPreferred) {  // 3
  voter(0, true);
  voter(1, true);
  tell(0, 9, {"a"});
  tell(1, 5, {"a", "b"});
  EXPECT_EQ(settle(), 5u);
  tell(0, 10, {"a"});
  EXPECT_EQ(settle(), 5u);
}

TEST_F(MapVotesTest, WhoHasNotVotedIsAskedFirstAndNobodyTwiceInARound) {
  make_three();
  const TimePoint began = now;
  voter(3, false);
  EXPECT_EQ(votes.next_to_ask(voters, began, now), 3u);
  for (std::size_t node = 0; node < 4; ++node) tell(node, 5, {"a", "b", "c"});
  EXPECT_EQ(votes.next_to_ask(voters, began, now), voters.size());
}

}  // namespace
}  // namespace kv
