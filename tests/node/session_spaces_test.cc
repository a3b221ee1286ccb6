// Whose namespace a request is about: handles are the session's, and each request says its namespace besides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/node/session/space_handles.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

class SessionSpacesTest : public NodeTest {
 protected:
  /// Speaks of `which` as number `handle` from now on.
  void speak_of(const NamespaceRecord& which, std::uint32_t handle) {
    record = which;
    space = handle;
  }
  /// All verbs that name a namespace, about the chain.
  std::map<std::string, Bytes> requests(std::span<const BlockHash> about) {
    return {{"match", frame_bytes(FrameType::kMatch, 7, match_request(about))},
            {"get", frame_bytes(FrameType::kGet, 7, get_request(about))},
            {"put", frame_bytes(FrameType::kPut, 7, put_request(about))},
            {"touch", frame_bytes(FrameType::kTouch, 7, prefix_request(about))},
            {"pin", frame_bytes(FrameType::kRetain, 7, prefix_request(about))},
            {"unpin", frame_bytes(FrameType::kUnretain, 7, prefix_request(about))},
            {"drop", frame_bytes(FrameType::kDrop, 7, prefix_request(about))}};
  }
  void expect_all_refused(RawClient& client, std::span<const BlockHash> about, Errc code, const std::string& field) {
    for (const auto& [verb, frame] : requests(about)) {
      ASSERT_TRUE(client.send_bytes(frame));
      const Answer answer = client.answer();
      ASSERT_TRUE(answer.is_error()) << verb;
      EXPECT_TRUE(answer.is_last()) << verb;
      EXPECT_EQ(answer.error(), code) << verb << ": " << answer.message();
      EXPECT_THAT(answer.message(), HasSubstr(verb + "." + field)) << verb;
    }
  }
  /// The node ends and another life begins, under the same id.
  void restart(std::vector<std::unique_ptr<RawClient>*> clients) {
    for (auto* client : clients) client->reset();
    world.run_until([&] { return session_count == 0; }, 100s);
    ASSERT_EQ(session_count, 0u);
    start(32);
  }

  NamespaceRecord a = make_record("a", kBlockBytes), b = make_record("b", kBlockBytes);
  std::vector<BlockHash> hashes = chain(1, 2);  ///< An engine's own: the same in both namespaces.
};

TEST_F(SessionSpacesTest, AHandleMeansNothingToASessionThatWasNotGivenIt) {
  record = a;
  const auto owner = greet();
  speak_of(b, open(*owner, b));
  EXPECT_EQ(put(*owner, hashes), 2u);
  ASSERT_EQ(space, 2u);
  record = b;
  const auto other = connect();
  EXPECT_FALSE(other->ask(FrameType::kHello, 1, hello_request()).is_error());
  expect_all_refused(*other, hashes, Errc::kNoNamespace, "space: 2");
  space = 1;
  expect_all_refused(*other, hashes, Errc::kNoNamespace, "space: 1");
  EXPECT_EQ(open(*other, b), 1u) << "each session counts for itself";
  EXPECT_EQ(matched(*other, hashes), 2u) << "nothing was done";
}

TEST_F(SessionSpacesTest, ARequestWithTheCheckOfAnotherNamespaceIsNotCarriedOut) {
  record = a;
  const auto client = greet();
  EXPECT_EQ(put(*client, hashes), 2u);
  const std::uint32_t of_a = space;
  open(*client, b);
  speak_of(b, of_a);  // as who mistakes one for the other
  expect_all_refused(*client, hashes, Errc::kMismatch, "namespace_check: " + std::to_string(check()));
  expect_all_refused(*client, {}, Errc::kMismatch, "namespace_check");
  for (const FrameType type : {FrameType::kMatch, FrameType::kDrop}) {  // as who says none
    const Answer answer = client->ask(type, 9, [&](FlatBufferBuilder& builder) -> flatbuffers::Offset<void> {
      if (type == FrameType::kMatch) return wire::CreateMatchRequest(builder, of_a).Union();
      return wire::CreatePrefixRequest(builder, of_a).Union();
    });
    ASSERT_TRUE(answer.is_error());
    EXPECT_EQ(answer.error(), Errc::kMismatch);
  }
  record = a;
  EXPECT_EQ(matched(*client, hashes), 2u) << "nothing was done";
  EXPECT_EQ(stats().dropped_blocks, 0u);
  EXPECT_EQ(metric("kvstore_requests_refused_total{reason=\"mismatch\"}"), 16);
}

TEST_F(SessionSpacesTest, WhatWasOpenedBeforeARestartIsUnknownAfterIt) {
  record = a;
  auto client = greet();
  const std::uint32_t of_a = space, of_b = open(*client, b);
  restart({&client});
  record = b;
  client = connect();  // of the next life, and of another order
  EXPECT_FALSE(client->ask(FrameType::kHello, 1, hello_request()).is_error());
  speak_of(b, open(*client, b));
  EXPECT_EQ(put(*client, hashes), 2u);
  speak_of(b, of_b);
  expect_all_refused(*client, {}, Errc::kNoNamespace, "space");
  speak_of(a, of_a);  // a number that means something here, but not this
  expect_all_refused(*client, {}, Errc::kMismatch, "namespace_check");
  EXPECT_EQ(stats().block_count, 2u);
  EXPECT_EQ(stats().dropped_blocks, 0u);
}

TEST_F(SessionSpacesTest, HelloTellsTheLifeAndOpenTheNamespace) {
  auto client = connect();
  const Answer hello = client->ask(FrameType::kHello, 1, hello_request());
  const auto& told = hello.as<wire::HelloResponse>();
  ASSERT_NE(told.instance(), nullptr);
  ASSERT_EQ(told.instance()->size(), kInstanceBytes);
  EXPECT_EQ(std::memcmp(told.instance()->data(), node->instance.data(), kInstanceBytes), 0);
  const Answer opened = client->ask(FrameType::kOpen, 2, [&](FlatBufferBuilder& builder) {
    return wire::CreateOpenRequestDirect(builder, a.text().c_str());
  });
  const auto* name = opened.as<wire::OpenResponse>().namespace_id();
  ASSERT_NE(name, nullptr);
  EXPECT_EQ(std::memcmp(name->data(), a.id().bytes.data(), 16), 0);
  EXPECT_EQ(name->size(), 16u);
}

TEST_F(SessionSpacesTest, EachStartDrawsAnotherInstance) {
  const InstanceId one = draw_instance_id(), two = draw_instance_id();
  EXPECT_NE(one, two);
  EXPECT_NE(one, InstanceId{});
}

TEST_F(SessionSpacesTest, OpeningTwiceGivesTheSameHandle) {
  record = a;
  const auto client = greet();
  const std::uint32_t first = space;
  EXPECT_NE(open(*client, b), first);
  EXPECT_EQ(open(*client, a), first);
}

TEST_F(SessionSpacesTest, BeyondTheLimitTheNamespaceUsedLongestAgoIsOpenedAgain) {
  record = a;
  const auto client = greet();
  const std::uint32_t of_a = space;
  EXPECT_EQ(put(*client, hashes), 2u);
  speak_of(b, open(*client, b));
  EXPECT_EQ(matched(*client, hashes), 0u);
  const std::uint32_t of_b = space;
  for (std::size_t i = 2; i < SessionSpaces::kCountMax; ++i)
    open(*client, make_record("m" + std::to_string(i), kBlockBytes));
  speak_of(a, of_a);
  EXPECT_EQ(matched(*client, hashes), 2u) << "at the limit all are open";
  open(*client, make_record("one more", kBlockBytes));
  EXPECT_EQ(matched(*client, hashes), 2u) << "b was used longer ago";
  speak_of(b, of_b);
  expect_all_refused(*client, hashes, Errc::kNoNamespace, "space");
  speak_of(b, open(*client, b));
  EXPECT_NE(space, of_b) << "a number is not used again";
  EXPECT_EQ(matched(*client, hashes), 0u);
}

// -- clients of version 1: they open on one session and speak of the namespace on all

TEST_F(SessionSpacesTest, AnOldClientUsesAHandleOnAllItsSessions) {
  record = a;
  const auto first = greet(1), second = connect();
  EXPECT_FALSE(second->ask(FrameType::kHello, 1, hello_request(1, 1)).is_error());
  EXPECT_EQ(put(*first, hashes, 1), 2u);
  EXPECT_EQ(matched(*second, hashes), 2u);
  EXPECT_TRUE(get(*second, hashes).bytes == blocks(hashes));
  const Answer answer = second->ask(FrameType::kMatch, 7, [&](FlatBufferBuilder& builder) {
    const auto wanted = wire_hashes(hashes);
    return wire::CreateMatchRequestDirect(builder, space, &wanted);  // it knows no check
  });
  EXPECT_EQ(answer.as<wire::MatchResponse>().host_blocks(), 2u);
  const auto other = connect();
  EXPECT_FALSE(other->ask(FrameType::kHello, 1, hello_request()).is_error());
  expect_all_refused(*other, hashes, Errc::kNoNamespace, "space");
}

TEST_F(SessionSpacesTest, AnOldClientIsToldWhatVersionOneHas) {
  const auto client = connect();
  const Answer hello = client->ask(FrameType::kHello, 1, hello_request(1, 1));
  EXPECT_EQ(hello.as<wire::HelloResponse>().version(), 1);
  EXPECT_EQ(hello.as<wire::HelloResponse>().instance(), nullptr);
  const Answer opened = client->ask(FrameType::kOpen, 2, [&](FlatBufferBuilder& builder) {
    return wire::CreateOpenRequestDirect(builder, a.text().c_str());
  });
  EXPECT_EQ(opened.as<wire::OpenResponse>().namespace_id(), nullptr);
}

TEST_F(SessionSpacesTest, AnOldClientsHandlesMeanNothingInTheNextLife) {
  record = a;
  auto client = greet(1);
  const std::uint32_t of_a = space, of_b = open(*client, b);
  EXPECT_EQ(open(*client, a), of_a);
  for (int life = 0; life < 3; ++life) {
    restart({&client});
    record = b;
    client = greet(1);  // opens b first
    const std::uint32_t new_b = space;
    EXPECT_EQ(put(*client, hashes, 1), 2u);
    for (const std::uint32_t stale : {of_a, of_b}) {
      ASSERT_NE(stale, new_b);
      speak_of(a, stale);
      expect_all_refused(*client, {}, Errc::kNoNamespace, "space: " + std::to_string(stale));
    }
    EXPECT_EQ(stats().block_count, 2u) << "b is whole";
    speak_of(a, open(*client, a));  // as it does when it is told so
    EXPECT_EQ(matched(*client, hashes), 0u);
  }
}

TEST(NodeHandlesTest, TheOldestIsForgottenBeyondTheLimit) {
  const auto space = [](std::uint32_t i) {
    return OpenSpace(
        SpaceId{i},
        {NamespaceRecord::from_fields({{"model", std::to_string(i)}, {"block_size", "1"}, {"block_bytes", "64"}})
             .value()});
  };
  NodeHandles handles;
  InstanceId instance{};
  instance.fill(std::byte{0xFF});  // numbers go on behind 2^32 - 1
  const std::uint32_t first = handles.open(instance, space(0));
  std::uint32_t last = first;
  for (std::uint32_t i = 1; i < NodeHandles::kCountMax; ++i) last = handles.open(instance, space(i));
  EXPECT_EQ(handles.open(instance, space(0)), first);
  ASSERT_TRUE(handles.find(first));
  EXPECT_EQ(handles.find(first)->id, SpaceId{0});
  const std::uint32_t more = handles.open(instance, space(NodeHandles::kCountMax));
  EXPECT_EQ(more, last + 1);
  EXPECT_FALSE(handles.find(first));
  EXPECT_TRUE(handles.find(last));
  EXPECT_TRUE(handles.find(more));
  EXPECT_EQ(handles.open(instance, space(0)), more + 1) << "a number is not used again";
}

}  // namespace
}  // namespace kv
