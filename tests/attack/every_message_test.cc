// Every message in every state of a session: each request, and numbers that are none, right and wrong in each way of
// forged_message.h. Whatever it is, each request gets one last answer, or the session ends with an error; the Store
// stays in order, and nothing is held for a session that has ended.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>

#include "tests/attack/forged_message.h"
#include "tests/node/node_world.h"

namespace kv::attack {
namespace {

enum class State {
  kFresh,
  kGreeted,
  kOpened,
  kWithRegion,
  kGetInFlight,
  kPutWanted,
  kPutFromRegionWanted,
  kPutDraining,  ///< Half of the bytes are there.
  kPutWaiting,   ///< For memory.
  kAfterCancel,
  kNodeDraining,
};
const char* const kStateNames[] = {
    "Fresh",       "Greeted",    "Opened",      "WithRegion",  "GetInFlight", "PutWanted", "PutFromRegionWanted",
    "PutDraining", "PutWaiting", "AfterCancel", "NodeDraining"};

class EveryMessageTest : public NodeTest, public testing::WithParamInterface<State> {
 protected:
  static constexpr std::uint64_t kFreshId = 70, kInFlightId = 50, kPingId = 900;

  /// A session in this state, and what it owes.
  struct Reached {
    std::unique_ptr<RawClient> client;
    Bytes before;  ///< To be sent together with the message.
    Bytes after;   ///< The same, behind it.
    Scene scene;
    std::map<std::uint64_t, std::size_t> owed;  ///< Last answers, by request id.
  };

  Reached reach(State state) {
    Reached reached{.client = nullptr, .before = {}, .after = {}, .scene = {.record = record}, .owed = {}};
    Scene& scene = reached.scene;
    scene.chain = chain(1, 3);
    scene.id_in_flight = kInFlightId;
    reached.client = connect();
    if (state == State::kFresh) return reached;
    EXPECT_FALSE(reached.client->ask(FrameType::kHello, 1, hello_request()).is_error());
    if (state == State::kGreeted) return reached;
    space = open(*reached.client, record);
    const attack::OpenedSpace opened = scene.space = {space, check()};
    const NamespaceRecord set =
        NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "100"}}).value();
    scene.set = {open(*reached.client, set), namespace_check(set.id())};
    const auto hashes = chain(2, state == State::kPutDraining ? 3 : 30);
    switch (state) {
      case State::kNodeDraining: node->draining = true; break;
      case State::kWithRegion: scene.region = lend(*reached.client, *memory_); break;
      case State::kGetInFlight: {
        put(*reached.client, chain(3, 31));
        scene.region = lend(*reached.client, *memory_);
        const Offsets offsets(31);  // more than is copied in one turn
        reached.before =
            frame_bytes(FrameType::kGet, kInFlightId, attack::get_request(opened, chain(3, 31), scene.region, offsets));
        reached.owed[kInFlightId] = 1;
        break;
      }
      case State::kPutFromRegionWanted:
        scene.region = lend(*reached.client, *memory_);
        reached.client->ask(FrameType::kPut, kInFlightId,
                            attack::put_request(opened, hashes, scene.region, Offsets(hashes.size())));
        reached.owed[kInFlightId] = 1;
        break;
      case State::kPutWanted:
      case State::kPutDraining:
      case State::kPutWaiting:
      case State::kAfterCancel: {
        reached.client->ask(FrameType::kPut, kInFlightId, attack::put_request(opened, hashes));
        reached.owed[kInFlightId] = 1;
        if (state == State::kPutWaiting) {
          reached.before = frame_bytes(FrameType::kPut, kInFlightId + 1,
                                       attack::put_request(opened, chain(4, 20), 0, {}, 2'000'000));
          reached.owed[kInFlightId + 1] = 1;
        } else if (state == State::kAfterCancel) {
          reached.before = frame_bytes(FrameType::kCancel, kInFlightId + 2, cancel_request(kInFlightId));
        } else if (state == State::kPutDraining) {
          const Bytes payload(hashes.size() * kBlockBytes);
          Bytes frame = frame_bytes(
              FrameType::kPutData, kInFlightId,
              attack::put_data(static_cast<std::uint32_t>(hashes.size()), sums_of(record, hashes, std::byte{0})),
              payload);
          reached.after.assign(payload.size() / 2, std::byte{0});
          frame.resize(frame.size() - reached.after.size());
          EXPECT_TRUE(reached.client->send_bytes(frame));
        }
        break;
      }
      default: break;
    }
    return reached;
  }

  /// Sends the message, then asks for an end of everything, and counts the answers.
  void play(State state, std::uint8_t type, Forgery forgery, std::uint64_t id, std::mt19937_64& random) {
    Reached reached = reach(state);
    RawClient& client = *reached.client;
    const Bytes message = forge(type, forgery, reached.scene, id, random);
    Bytes all = reached.before;
    all.insert(all.end(), message.begin(), message.end());
    const bool is_taken_as_payload = state == State::kPutDraining;
    if (is_taken_as_payload) {
      reached.after.resize(reached.after.size() - std::min(reached.after.size(), message.size()));
      all.insert(all.end(), reached.after.begin(), reached.after.end());
    }
    client.read();
    if (client.send_bytes(all)) {
      for (const std::uint64_t each : {kFreshId, kInFlightId, kInFlightId + 1})
        client.send_bytes(frame_bytes(FrameType::kCancel, kPingId + 1, cancel_request(each)));
      client.send_bytes(frame_bytes(FrameType::kPing, kPingId, ping_request()));
    }
    std::map<std::uint64_t, std::size_t> answered;
    bool is_last_an_error = false;
    const auto is_complete = [&] {
      for (const auto& [request, count] : reached.owed) {
        if (answered[request] < count) return false;
      }
      return answered[kPingId] > 0;
    };
    while (!is_complete()) {
      const auto answer = client.next(50s);
      if (!answer) break;
      is_last_an_error = answer->is_error();
      EXPECT_TRUE((answer->header.flags & kFrameResponse) != 0);
      if (answer->is_last()) ++answered[answer->header.request_id];
    }
    if (answered[kPingId] == 0) {
      EXPECT_TRUE(client.ended()) << "neither an answer nor an end";
      EXPECT_TRUE(is_last_an_error) << "the session ended without a word";
    } else {
      const auto frame_type = static_cast<FrameType>(type);
      const bool wants_answer =
          !is_taken_as_payload && frame_type != FrameType::kCancel && frame_type != FrameType::kPutData;
      const std::size_t due = reached.owed[id] + (wants_answer ? 1 : 0);
      const bool may_be_refused = !is_taken_as_payload && frame_type == FrameType::kCancel;
      for (int i = 0; i < 20 && answered[id] < due; ++i) {
        const auto answer = client.next(10s);
        if (answer && answer->is_last()) ++answered[answer->header.request_id];
      }
      EXPECT_GE(answered[id], due);
      EXPECT_LE(answered[id], due + (may_be_refused ? 1 : 0));
      for (const auto& [request, count] : reached.owed) {
        if (request != id) {
          EXPECT_EQ(answered[request], count) << "request " << request;
        }
      }
    }
    client.close();
    EXPECT_TRUE(world.run_until([&] { return session_count == 0; }, 100s)) << "the session does not end";
    node->draining = false;
    EXPECT_EQ(stats().incoming_count, 0u);
    EXPECT_EQ(stats().lease_count, 0u);
  }

 private:
  std::unique_ptr<SharedMemory> memory_ = SharedMemory::create(2 * kBlockBytes).value();
};

TEST_P(EveryMessageTest, IsAnsweredOnceOrEndsTheSessionWithAnError) {
  const std::uint64_t seed = seed_or(11);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  spdlog::set_level(spdlog::level::off);  // thousands of sessions end with a warning
  std::mt19937_64 random(seed);
  for (const std::uint8_t type : all_types()) {
    for (int forgery = 0; forgery < kForgeryCount; ++forgery) {
      for (const std::uint64_t id : {kFreshId, kInFlightId}) {
        SCOPED_TRACE("type " + std::to_string(type) + ", forgery " + std::to_string(forgery) + ", id " +
                     std::to_string(id));
        play(GetParam(), type, static_cast<Forgery>(forgery), id, random);
        if (HasFailure()) return;
      }
    }
    ASSERT_EQ(store->with([](Store& each) { return each.check(); }), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryMessageTest,
                         testing::Values(State::kFresh, State::kGreeted, State::kOpened, State::kWithRegion,
                                         State::kGetInFlight, State::kPutWanted, State::kPutFromRegionWanted,
                                         State::kPutDraining, State::kPutWaiting, State::kAfterCancel,
                                         State::kNodeDraining),
                         [](const auto& each) { return kStateNames[static_cast<int>(each.param)]; });

}  // namespace
}  // namespace kv::attack
