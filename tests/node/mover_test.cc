// Nodes with movers on the simulated network and virtual time: who has which blocks while nodes come and go, and what a
// client finds meanwhile.
#include "store/node/mover/mover.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "store/node/threads/thread_border.h"
#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::uint32_t kExtentBlocks = 8;

class MoverTest : public testing::Test {
 protected:
  MoverTest() {
    store.arena.capacity_bytes = 4 << 20;
    store.arena.granule_bytes = 4096;
    store.arena.huge_pages = false;
    store.arena.touch = false;
    config.connections_per_node = 1;
    config.backoff_min = 1ms;
    config.backoff_max = 10ms;
    config.nodes = {{.endpoint = "sim://a", .name = ""}};
  }
  ~MoverTest() override {
    for (auto& [name, mover] : movers) mover->stop();
    client.reset();
    loop.run_for(5s);
    movers.clear();
    for (auto& [name, node] : nodes) {
      EXPECT_EQ(node->check(), "");
      EXPECT_EQ(node->stats().pinned_count, 0u) << "what was handed over is pinned no more";
    }
    nodes.clear();
    loop.drain();
  }

  /// A process of that name: its members' entry says `state` and `phase` first.
  void start(const std::string& name, Member::State state = Member::State::kDraining,
             Member::Phase phase = Member::Phase::kJoining) {
    if (auto& node = nodes[name]; node) {
      node->start();
    } else {
      node = std::make_unique<sim::SimNode>(loop.context(), network, clock, name, store);
    }
    Member member;
    member.id = name;
    member.instance = std::string(32, "0123456789abcdef"[life_count++ % 16]);
    member.endpoints = {"unix:///run/not-here", "sim://" + name};
    member.state = state;
    member.phase = phase;
    members[name] = member;
    NodeContext& context = nodes[name]->context();
    MoverConfig mover_config;
    mover_config.node_id = name;
    mover_config.bytes_per_second = bytes_per_second;
    mover_config.join_max = join_max;
    mover_config.copy_uses = copy_uses;
    auto& mover = movers[name] = std::make_unique<Mover>(
        loop.context().get_executor(), network, clock, context.store, *context.hot_roots, context.cluster,
        context.moves, mover_config, [this, name](Member::State to, Member::Phase about) {
          if (!nodes[name]->context().cluster.is_writable()) return;  // etcd refuses it
          members[name].state = to;
          members[name].phase = about;
          publish();
        });
    asio::co_spawn(loop.context(), mover->run(), [](std::exception_ptr error) { EXPECT_EQ(error, nullptr); });
    publish();
  }
  /// All nodes that live hear of it a moment later.
  void publish() {
    asio::post(loop.context(), [this, at = ++epoch] {
      ClusterView view{at, kExtentBlocks, {}};
      for (const auto& [name, member] : members) view.members.push_back(member);
      for (auto& [name, node] : nodes) node->set_cluster(view);
    });
  }
  /// With the first nodes serving.
  void start_all(const std::vector<std::string>& names) {
    for (const std::string& name : names) start(name);
    run_until([&] { return std::ranges::all_of(names, [&](const auto& name) { return is_serving(name); }); });
    start_client();
  }
  void start_client() {
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock);
    space = loop.run(client->open(record, 5s)).value();
  }
  void kill(const std::string& name) {
    movers[name]->stop();
    loop.run_for(5s);
    movers.erase(name);
    nodes[name]->kill();
    members.erase(name);
    publish();
  }
  bool is_serving(const std::string& name) const {
    const Member& member = members.at(name);
    return member.state == Member::State::kServing && member.phase == Member::Phase::kNone;
  }
  /// At most some minutes of virtual time.
  void run_until(const std::function<bool()>& done) {
    for (int i = 0; i < 3000 && !done(); ++i) loop.run_for(100ms);
    ASSERT_TRUE(done());
  }
  MoveBoard& moves(const std::string& name) { return nodes[name]->context().moves; }

  std::vector<BlockHash> chain(std::uint32_t seed, std::size_t block_count = 60) const {
    return test_chain(record, block_count, seed);
  }
  std::size_t put(std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.fill(chain);
    const PutResult result = loop.run(client->put(space, chain, memory.from, {.deadline = 5s})).value();
    EXPECT_EQ(result.refused, 0u) << result.why.message();
    return result.stored;
  }
  std::size_t get(std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), kBlockBytes);
    memory.clear();
    const auto got = loop.run(client->get(space, chain, memory.to, {.deadline = 5s})).value();
    EXPECT_GE(memory.right(chain), got.block_count) << "a wrong byte";
    return got.block_count;
  }
  void put_all(std::size_t count) {
    for (std::uint32_t seed = 1; seed <= count; ++seed) {
      chains.push_back(chain(seed));
      put(chains.back());
    }
  }
  /// By that node alone.
  void make_hot(const std::string& name, std::span<const BlockHash> root) {
    HotRoots& roots = *nodes[name]->context().hot_roots;
    for (std::uint32_t i = 0; i < 2 * HotRoots::kReview; ++i) roots.count(record.id(), root, 0, 3);
  }
  /// Blocks of all chains that a client finds. Matches are counted, and few chains that are asked for again and again
  /// would be hot: so a match of another chain each time tells of the map, and these are got.
  std::size_t found() {
    (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
    loop.run_for(10ms);
    std::size_t sum = 0;
    for (const auto& each : chains) sum += get(each);
    return sum;
  }
  std::size_t all() const {
    std::size_t sum = 0;
    for (const auto& each : chains) sum += each.size();
    return sum;
  }
  /// Nobody has told the others.
  void kill_unannounced(const std::string& name) {
    movers[name]->stop();
    loop.run_for(5s);
    movers.erase(name);
    nodes[name]->kill();
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  StoreConfig store;
  const NamespaceRecord record = test_record(kBlockBytes);
  ClientConfig config = repeatable_config();
  std::uint64_t bytes_per_second = 1 << 30;
  Duration join_max = 300s;
  std::size_t copy_uses = 0;
  std::map<std::string, Member> members;
  std::uint64_t epoch = 0;
  std::map<std::string, std::unique_ptr<sim::SimNode>> nodes;
  std::map<std::string, std::unique_ptr<Mover>> movers;
  std::unique_ptr<Client> client;
  Space space{};
  std::vector<std::vector<BlockHash>> chains;
  std::uint32_t last_seed = 1'000'000;
  std::size_t life_count = 0;  ///< Of all nodes.
};

TEST_F(MoverTest, ANodeThatLeavesHandsAllOverFirstAndNothingIsMissedMeanwhileOrAfter) {
  start_all({"a", "b", "c"});
  put_all(40);
  const std::size_t held = nodes["b"]->stats().block_count;
  ASSERT_GT(held, all() / 6);
  movers["b"]->leave();
  while (!movers["b"]->has_left()) {
    loop.run_for(100ms);
    EXPECT_EQ(found(), all());
  }
  EXPECT_EQ(moves("b").moved_blocks, held);
  EXPECT_EQ(moves("b").moved_bytes, held * kBlockBytes);
  EXPECT_EQ(moves("b").failed_paths, 0u);
  EXPECT_TRUE(moves("b").unmoved().empty());
  EXPECT_EQ(members["b"].state, Member::State::kDraining);
  kill("b");
  loop.run_for(2s);
  EXPECT_EQ(found(), all());
  EXPECT_EQ(moves("a").moved_blocks + moves("c").moved_blocks, 0u) << "what they own, they owned before";
}

/// Its neighbours have died and nobody has told it: what it could not hand over is counted, with the reason.
TEST_F(MoverTest, WhatCouldNotBeHandedOverIsCountedByReasonUntilItIs) {
  start_all({"a", "b", "c"});
  put_all(40);
  for (const char* name : {"a", "c"}) kill_unannounced(name);
  moves("b").drain_wanted = true;
  run_until([&] { return members["b"].state == Member::State::kDraining; });
  EXPECT_EQ(moves("b").moved_blocks, 0u);
  const auto unmoved = moves("b").unmoved();
  ASSERT_FALSE(unmoved.empty());
  std::uint64_t sum = 0;
  for (const auto& [why, paths] : unmoved) {
    EXPECT_NE(why.find("unavailable"), std::string::npos) << why;
    sum += paths;
  }
  EXPECT_EQ(sum, moves("b").failed_paths);
  EXPECT_GT(sum, 0u);
  // They are back, and it is drained again.
  for (const char* name : {"a", "c"}) start(name);
  moves("b").drain_wanted = false;
  run_until([&] { return is_serving("a") && is_serving("b") && is_serving("c"); });
  moves("b").drain_wanted = true;
  run_until([&] { return members["b"].state == Member::State::kDraining; });
  EXPECT_TRUE(moves("b").unmoved().empty());
  EXPECT_GT(moves("b").moved_blocks, 0u);
}

/// Its neighbour does not answer, is drained as well, and serves again: the paths are due whenever another node serves.
TEST_F(MoverTest, WhatALeavingNodeCouldNotHandOverIsTriedWithTheNextNodeThatServes) {
  start_all({"a", "b"});
  put_all(40);
  kill_unannounced("a");
  moves("b").drain_wanted = true;
  run_until([&] { return members["b"].state == Member::State::kDraining; });
  ASSERT_FALSE(moves("b").unmoved().empty());
  loop.run_for(30s);  // passes without anything new
  const std::uint64_t before = moves("b").failed_paths;
  for (const Member::State state : {Member::State::kDraining, Member::State::kServing}) {
    members["a"].state = state;
    publish();
    loop.run_for(30s);
  }
  EXPECT_GT(moves("b").failed_paths, before);
  EXPECT_FALSE(moves("b").unmoved().empty());
}

TEST_F(MoverTest, ANodeThatLeavesHandsOverWhereEtcdRefusesToTellIt) {
  start_all({"a", "b", "c"});
  put_all(40);
  nodes["b"]->context().cluster.set_writable(false);
  const std::uint64_t held = nodes["b"]->context().store.with([](Store& own) { return own.stats().stored_blocks; });
  ASSERT_GT(held, 0u);
  movers["b"]->leave();
  run_until([&] { return movers["b"]->has_left(); });
  EXPECT_TRUE(is_serving("b")) << "as far as the others know";
  EXPECT_GE(moves("b").moved_blocks, held);
  EXPECT_TRUE(moves("b").unmoved().empty());
}

/// Of clients with the two tokens below, and of nodes, which come without one.
std::string policy_of_two_tenants(const std::string& blue, const std::string& red) {
  const auto hex = [](const std::string& token) {
    const TokenHash hash = token_hash(token);
    return to_hex(std::as_bytes(std::span(hash)));
  };
  std::string text = "[nodes]\nmatch = [\"loopback\"]\nroles = [\"node\"]\n";
  for (const auto& [name, token] : {std::pair("blue", blue), std::pair("red", red)})
    text += std::string("[") + name + "]\ntoken-sha256 = [\"" + hex(token) + "\"]\ntenant = \"" + name +
            "\"\nroles = [\"reader\", \"writer\"]\n";
  return text + "[shares.prompts]\nreaders = [\"*\"]\nwriters = [\"blue\"]\n";
}

TEST_F(MoverTest, WhatATenantHasIsHandedOverForThatTenantAndEachNodeNamesItByItsOwnSecret) {
  const std::string blue(40, 'b'), red(40, 'r');
  const auto folder = std::filesystem::temp_directory_path() / ("kvstore-mover-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "policy") << policy_of_two_tenants(blue, red);
  store.has_tenants = true;
  config.token = Secret(blue);
  std::map<std::string, std::unique_ptr<AccessControl>> access;
  for (const std::string name : {"a", "b", "c"}) {
    // One of them has another secret, as while a new one is given out.
    const std::string secret = folder / name;
    std::ofstream(secret) << std::string(64, name == "c" ? 'c' : 'a');
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
    access[name] = AccessControl::open(folder / "policy", {}, secret).value();
    start(name);
    nodes[name]->context().access = access[name].get();
  }
  std::filesystem::remove_all(folder);
  run_until([&] { return is_serving("a") && is_serving("b") && is_serving("c"); });
  // A token goes to no node that a map alone names.
  config.nodes.clear();
  for (const char* const name : {"a", "b", "c"})
    config.nodes.push_back({.endpoint = std::string("sim://") + name, .name = ""});
  start_client();
  put_all(40);
  const NamespaceRecord shared = record.with({{"share", "prompts"}}).value();
  const Space own = space, of_share = loop.run(client->open(shared, 5s)).value();
  const auto prompt = test_chain(shared, 60, 77);
  space = of_share;
  EXPECT_EQ(put(prompt), prompt.size());
  space = own;
  movers["b"]->leave();
  run_until([&] { return movers["b"]->has_left(); });
  EXPECT_GT(moves("b").moved_blocks, all() / 6);
  EXPECT_EQ(moves("b").failed_paths, 0u);
  kill("b");
  loop.run_for(2s);
  EXPECT_EQ(found(), all());
  space = of_share;
  EXPECT_EQ(get(prompt), prompt.size());
  // The same record, and another tenant: there is nothing but what is shared.
  config.token = Secret(red);
  start_client();
  EXPECT_EQ(found(), 0u);
  space = loop.run(client->open(shared, 5s)).value();
  EXPECT_EQ(get(prompt), prompt.size());
  client.reset();
  loop.run_for(1s);
  for (auto& [name, mover] : movers) mover->stop();
  loop.run_for(5s);
  movers.clear();
  for (auto& [name, node] : nodes) node->kill();  // before what they ask who may
  loop.run_for(1s);
}

TEST_F(MoverTest, ANodeThatJoinsServesOnceItHasBeenGivenItsOwnAndNothingIsMissedMeanwhile) {
  start_all({"a", "b"});
  put_all(40);
  bytes_per_second = 1 << 30;
  start("c");
  while (!is_serving("c")) {
    loop.run_for(100ms);
    EXPECT_EQ(found(), all());
  }
  loop.run_for(10s);
  EXPECT_EQ(found(), all());
  const std::size_t given = nodes["c"]->stats().block_count;
  EXPECT_GT(given, all() / 5);
  EXPECT_EQ(given, moves("a").moved_blocks + moves("b").moved_blocks);
  EXPECT_EQ(put(chain(1)), 0u) << "all is there already";
}

TEST_F(MoverTest, AMemberThatAdvertisesWhatCannotBeReachedEndsNoMover) {
  start_all({"a", "b"});
  for (const std::string& endpoint : {std::string("tls://10.0.0.1:1"), "tls://" + std::string(253, '1') + ":1"}) {
    Member ghost;
    ghost.id = "ghost" + std::to_string(members.size());
    ghost.instance = std::string(32, 'e');
    ghost.endpoints = {endpoint};
    members[ghost.id] = ghost;
  }
  publish();
  const std::string joins = "c";
  start(joins);  // the others hand over to it, and to the ghosts
  run_until([&] { return is_serving(joins); });
  EXPECT_EQ(thread_failure_count(NodeThread::kMover), 0u);
  members.erase("ghost2");
  members.erase("ghost3");
}

TEST_F(MoverTest, WhatIsPutWhileBlocksAreHandedOverIsHandedOverToo) {
  bytes_per_second = 16 << 10;  // so that it takes a while
  start_all({"a", "b"});
  put_all(40);
  start("c");
  std::uint32_t seed = 1000;
  while (!is_serving("c")) {
    loop.run_for(500ms);
    chains.push_back(chain(seed++));
    put(chains.back());
  }
  EXPECT_GT(seed, 1003u) << "it did not take long enough to show anything";
  loop.run_for(10s);
  EXPECT_EQ(found(), all());
}

TEST_F(MoverTest, AllNodesAreRestartedOneByOneWithoutADiskAndNothingIsLost) {
  start_all({"a", "b", "c"});
  put_all(40);
  for (const char* name : {"a", "b", "c"}) {
    movers[name]->leave();
    run_until([&] { return movers[name]->has_left(); });
    kill(name);
    loop.run_for(2s);
    config.nodes[0].endpoint = std::string("sim://") + (*name == 'a' ? "b" : "a");
    EXPECT_EQ(found(), all()) << name << " is away";
    start(name);
    run_until([&] { return is_serving(name); });
    loop.run_for(2s);
    EXPECT_EQ(found(), all()) << name << " is back";
    EXPECT_GT(nodes[name]->stats().block_count, all() / 6);
  }
}

TEST_F(MoverTest, ANodeThatIsDrainedGoesOnRunningAndServesAgainWhenThatIsTakenBack) {
  start_all({"a", "b", "c"});
  put_all(20);
  moves("b").drain_wanted = true;
  run_until([&] { return members["b"].state == Member::State::kDraining; });
  EXPECT_EQ(found(), all());
  loop.run_for(5s);
  EXPECT_FALSE(movers["b"]->has_left()) << "nobody asked it to stop";
  for (std::uint32_t seed = 100; seed < 120; ++seed) put(chains.emplace_back(chain(seed)));
  moves("b").drain_wanted = false;
  run_until([&] { return is_serving("b"); });
  loop.run_for(5s);
  EXPECT_EQ(found(), all()) << "what was put elsewhere meanwhile came back to it";
}

TEST_F(MoverTest, TheHottestGoFirstAtTheRateThatIsSet) {
  bytes_per_second = 20 * kBlockBytes;
  start_all({"a", "b"});
  put_all(60);
  // These were used last, long after the rest.
  loop.run_for(60s);
  std::vector<std::vector<BlockHash>> hot;
  for (std::uint32_t seed = 1; seed <= 60; seed += 12) hot.push_back(chains[seed - 1]);
  for (const auto& each : hot) EXPECT_EQ(get(each), each.size());
  start("c");
  std::uint64_t moved = 0;
  const auto moved_now = [&] { return moves("a").moved_blocks + moves("b").moved_blocks; };
  run_until([&] { return moved_now() > 0; });
  const TimePoint begun = clock.now();
  std::size_t hot_extents = 0;
  for (const auto& each : hot) {
    const std::vector<ClusterMap::Node> owners = {{"a", 1}, {"b", 1}, {"c", 1}};
    for (const auto& extent : ClusterMap(owners, kExtentBlocks).extents(each))
      hot_extents += extent.node == 2 ? extent.end - extent.begin : 0;
  }
  ASSERT_GT(hot_extents, 20u);
  while (moved_now() < hot_extents) {
    loop.run_for(100ms);
    const double seconds = std::chrono::duration<double>(clock.now() - begun).count();
    // Two nodes send, and each may be one path, at most an extent, ahead.
    EXPECT_LE(static_cast<double>(moved_now()), 2 * (20 * (seconds + 1) + 4 * kExtentBlocks));
    moved = moved_now();
  }
  EXPECT_GE(std::chrono::duration<double>(clock.now() - begun).count(), static_cast<double>(moved) / 40 - 4);
  // By the map to come, all of the hot ones are on their nodes, and few of the others.
  members["c"].state = Member::State::kServing;
  members["c"].phase = Member::Phase::kNone;
  publish();
  found();
  loop.run_for(100ms);
  std::size_t hot_found = 0, hot_all = 0;
  for (const auto& each : hot) {
    hot_found += get(each);
    hot_all += each.size();
  }
  EXPECT_GE(hot_found * 10, hot_all * 8);
  EXPECT_LT(found() * 10, all() * 8);
}

TEST_F(MoverTest, ANodeServesAfterAWhileWhateverItHasBeenGiven) {
  bytes_per_second = kBlockBytes;
  join_max = 20s;
  start_all({"a", "b"});
  put_all(40);
  start("c");
  const TimePoint begun = clock.now();
  run_until([&] { return is_serving("c"); });
  EXPECT_GE(clock.now() - begun, 20s);
  EXPECT_LT(clock.now() - begun, 25s);
}

TEST_F(MoverTest, WhereANodeDiesThatIsBeingHandedBlocksTheNextMapDecides) {
  start_all({"a", "b", "c"});
  put_all(40);
  bytes_per_second = 200 * kBlockBytes;
  kill("c");  // and what it had is put anew
  loop.run_for(2s);
  found();
  for (const auto& each : chains) put(each);
  ASSERT_EQ(found(), all());
  start("c");
  loop.run_for(3s);
  kill("c");
  loop.run_for(30s);
  EXPECT_EQ(found(), all()) << "nothing was given up by those who handed it over";
  movers["b"]->leave();
  run_until([&] { return movers["b"]->has_left(); });
  kill("b");
  loop.run_for(2s);
  EXPECT_EQ(found(), all());
}

TEST_F(MoverTest, TheLastNodeAndOneOfNoClusterHaveNobodyToWaitFor) {
  start_all({"a"});
  put_all(5);
  movers["a"]->leave();
  loop.run_for(1s);
  EXPECT_TRUE(movers["a"]->has_left());
}

TEST_F(MoverTest, WhatIsHandedOverKeepsItsAge) {
  start_all({"a", "b"});
  put_all(30);
  loop.run_for(100s);
  movers["b"]->leave();
  run_until([&] { return movers["b"]->has_left(); });
  // What `a` was given is as old as what it had.
  NodeContext& context = nodes["a"]->context();
  std::vector<LookDesk::PathEnd> ends;
  LookDesk::PathCursor cursor;
  while (!cursor.is_done) context.store.with([&](Store& held) { held.list_paths(cursor, TimePoint::min(), ends); });
  ASSERT_GT(ends.size(), 100u);
  for (const LookDesk::PathEnd& end : ends) EXPECT_GT(clock.now() - end.used, 90s);
}

/// Of chains that were asked for again, all is found after any node has died, before the map has changed and after.
TEST_F(MoverTest, WhatWasUsedTwiceHasASecondCopyWhereClientsLookWhenItsOwnerIsDead) {
  copy_uses = 2;
  config.breaker_failures = 1;
  start_all({"a", "b", "c"});
  put_all(40);
  std::vector<std::vector<BlockHash>> used(chains.begin(), chains.begin() + 20);
  for (const auto& each : used) EXPECT_EQ(get(each), each.size());
  loop.run_for(10s);
  const auto sum = [&](const auto& chains_of) {
    std::size_t found = 0;
    for (const auto& each : chains_of) found += get(each);
    return found;
  };
  std::size_t copied = 0;
  for (const char* name : {"a", "b", "c"}) {
    copied += moves(name).copied_blocks;
    EXPECT_EQ(moves(name).failed_copies, 0u);
    EXPECT_EQ(moves(name).moved_blocks, 0u);
  }
  EXPECT_EQ(copied, all() / 2) << "each once, though passes go on";
  kill_unannounced("b");
  for (int i = 0; i < 10; ++i) {  // until the client knows
    (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
  }
  EXPECT_EQ(sum(used), all() / 2);
  EXPECT_LT(sum(chains), all());
  members.erase("b");
  publish();
  loop.run_for(2s);
  (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
  loop.run_for(10ms);
  EXPECT_EQ(sum(used), all() / 2) << "where the copies are they belong now";
  // And of what was used twice there are two again.
  loop.run_for(10s);
  movers["c"]->stop();
  loop.run_for(5s);
  movers.erase("c");
  nodes["c"]->kill();
  for (int i = 0; i < 10; ++i) {
    (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
  }
  EXPECT_EQ(sum(used), all() / 2);
}

/// Back before its lease has ended: the list never lacks it, and no block has another owner.
TEST_F(MoverTest, ANodeThatWasRestartedIsGivenTheSecondCopiesThatItHadAgain) {
  copy_uses = 1;
  start_all({"a", "b"});
  put_all(20);
  loop.run_for(10s);
  const std::size_t copied = moves("a").copied_blocks;
  ASSERT_GT(copied, 0u);
  kill_unannounced("b");
  start("b");
  run_until([&] { return is_serving("b"); });
  loop.run_for(10s);
  EXPECT_EQ(moves("a").copied_blocks, 2 * copied);
  EXPECT_EQ(nodes["b"]->stats().block_count, copied);
  loop.run_for(10s);
  EXPECT_EQ(moves("a").copied_blocks, 2 * copied) << "once";
}

TEST_F(MoverTest, NoCopiesAreMadeUnlessTheyAreAskedFor) {
  start_all({"a", "b", "c"});
  put_all(20);
  for (const auto& each : chains) get(each);
  loop.run_for(10s);
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(moves(name).copied_blocks, 0u);
}

TEST_F(MoverTest, PromptsBehindAHotRootLieWhereClientsLookForThem) {
  start_all({"a", "b", "c"});
  const auto prompt = [&](std::uint32_t seed) {
    std::vector<std::uint32_t> tokens(40 * record.block_size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::uint32_t>(i) + (i < 12 * record.block_size() ? 0 : seed * 1000);
    return hash_chain(record.digest(), tokens, record.block_size());
  };
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    const auto each = prompt(seed);
    (void)loop.run(client->match(space, each, {.deadline = 5s}));
    put(each);
    if (seed > 200) chains.push_back(each);
  }
  ASSERT_GT(nodes["b"]->hot_block_count() + nodes["a"]->hot_block_count() + nodes["c"]->hot_block_count(), 0u);
  ASSERT_EQ(found(), all());
  movers["c"]->leave();
  run_until([&] { return movers["c"]->has_left(); });
  kill("c");
  loop.run_for(2s);
  EXPECT_EQ(found(), all());
}

/// A root that one node alone has counted is forgotten when that node leaves, and known again once others have counted
/// as much. In between the node comes back, and has to be given what lies behind the root that nobody knows just then.
TEST_F(MoverTest, WhatLiesBehindARootThatIsForgottenForAWhileIsHandedOverByIt) {
  start_all({"a", "b", "c"});
  const auto whole = chain(1);
  const std::span<const BlockHash> root = std::span(whole).first(12);
  make_hot("a", root);
  EXPECT_TRUE(loop.run(client->learn_hot_roots(space, 1s)));
  ASSERT_EQ(client->hot_block_count(space, whole), root.size());
  for (std::uint32_t seed = 2; seed <= 60; ++seed) {
    chains.push_back(chain(seed));
    std::ranges::copy(root, chains.back().begin());
    put(chains.back());
  }
  ASSERT_EQ(found(), all());
  movers["a"]->leave();
  run_until([&] { return movers["a"]->has_left(); });
  kill("a");
  loop.run_for(5s);
  (void)found();
  ASSERT_EQ(client->hot_block_count(space, whole), 0u);
  start("a");
  run_until([&] { return is_serving("a"); });
  loop.run_for(10s);
  make_hot("b", root);
  (void)found();
  EXPECT_TRUE(loop.run(client->learn_hot_roots(space, 1s)));
  ASSERT_EQ(client->hot_block_count(space, whole), root.size());
  EXPECT_EQ(found(), all());
}

/// Blocks that a node has just taken for hot, and nobody else yet, lie on it alone.
TEST_F(MoverTest, WhatHasJustBecomeHotHasASecondCopyWhereClientsLookWhenItsOwnerIsDead) {
  copy_uses = 1;
  config.breaker_failures = 1;
  start_all({"a", "b", "c"});
  for (std::uint32_t seed = 1000; seed < 1010; ++seed) put(chain(seed));  // each node has something of them
  ASSERT_EQ(found(), 0u);
  loop.run_for(5s);  // passes go on, and hear of nothing hot
  put_all(20);
  for (const auto& each : chains) make_hot("b", std::span(each).first(32));
  loop.run_for(10s);
  kill_unannounced("b");
  for (int i = 0; i < 10; ++i) {  // until the client knows
    (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
    loop.run_for(10ms);
  }
  ASSERT_EQ(client->hot_block_count(space, chains.front()), 0u);
  EXPECT_EQ(found(), all());
}

/// The first that its mover hears of a namespace is a root that the node itself has just made, behind which nothing was
/// put yet.
TEST_F(MoverTest, WhatBecameHotBeforeTheFirstPassHasASecondCopyWhereClientsLookWhenItsOwnerIsDead) {
  copy_uses = 1;
  config.breaker_failures = 1;
  start_all({"a", "b", "c"});
  loop.run_for(5s);
  put_all(20);
  for (const auto& each : chains) make_hot("b", std::span(each).first(32));
  ASSERT_EQ(moves("b").copied_blocks, 0u);
  loop.run_for(10s);
  kill_unannounced("b");
  for (int i = 0; i < 10; ++i) {  // until the client knows
    (void)loop.run(client->match(space, chain(++last_seed), {.deadline = 5s}));
    loop.run_for(10ms);
  }
  ASSERT_EQ(client->hot_block_count(space, chains.front()), 0u);
  EXPECT_EQ(found(), all());
}

TEST_F(MoverTest, WhatBecameHotBeforeTheFirstPassIsHandedOverToWhereClientsLookWhenItsOwnerHasLeft) {
  start_all({"a", "b", "c"});
  put_all(20);
  for (const auto& each : chains) make_hot("b", std::span(each).first(32));
  movers["b"]->leave();
  run_until([&] { return movers["b"]->has_left(); });
  kill("b");
  loop.run_for(5s);
  start_client();
  ASSERT_EQ(client->hot_block_count(space, chains.front()), 0u);
  EXPECT_EQ(found(), all());
}

}  // namespace
}  // namespace kv
