// Whose namespace a request is about: handles are the session's, and each request says its namespace besides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/node/session/tables/space_handles.h"
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
  /// All requests that name a namespace, about the chain.
  std::map<std::string, Bytes> requests(std::span<const BlockHash> about) {
    return {{"match", frame_bytes(FrameType::kMatch, 7, match_request(about))},
            {"get", frame_bytes(FrameType::kGet, 7, get_request(about))},
            {"put", frame_bytes(FrameType::kPut, 7, put_request(about))},
            {"touch", frame_bytes(FrameType::kTouch, 7, prefix_request(about))},
            {"retain", frame_bytes(FrameType::kRetain, 7, prefix_request(about))},
            {"unretain", frame_bytes(FrameType::kUnretain, 7, prefix_request(about))},
            {"drop", frame_bytes(FrameType::kDrop, 7, prefix_request(about))}};
  }
  void expect_all_refused(RawClient& client, std::span<const BlockHash> about, Errc code, const std::string& field) {
    for (const auto& [op, frame] : requests(about)) {
      ASSERT_TRUE(client.send_bytes(frame));
      const Answer answer = client.answer();
      ASSERT_TRUE(answer.is_error()) << op;
      EXPECT_TRUE(answer.is_last()) << op;
      EXPECT_EQ(answer.error(), code) << op << ": " << answer.message();
      EXPECT_THAT(answer.message(), HasSubstr(op + "." + field)) << op;
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

}  // namespace
}  // namespace kv
