// tests/transport/golden_context_frames.cc: what is said of named contexts.
#include <gtest/gtest.h>

#include <vector>

#include "tests/transport/golden_frames.h"

namespace kv::golden {

void add_context_frames(Frames& frames) {
  frames.add<wire::ContextRequest>(
      "context.request", kRequest, 31,
      [](auto& b) {
        const std::vector<std::uint32_t> counts = {1, 1};
        const std::vector<flatbuffers::Offset<flatbuffers::String>> tags = {b.CreateString("team=x")};
        return wire::CreateContextRequestDirect(b, 1, "prompt", 1, kCheck, &kHashes, &counts, &tags, 3'600'000'000, 0,
                                                true);
      },
      [](const auto& t) {
        EXPECT_EQ(t.act(), 1u);
        EXPECT_EQ(t.name()->str(), "prompt");
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.chain_counts()->Get(1), 1u);
        EXPECT_EQ(t.tags()->Get(0)->str(), "team=x");
        EXPECT_EQ(t.ttl_us(), 3'600'000'000u);
        EXPECT_TRUE(t.sliding());
        EXPECT_EQ(t.namespace_check(), kCheck);
      });
  frames.add<wire::ContextRequest>(
      "context.list", kRequest, 31,
      [](auto& b) {
        wire::ContextRequestBuilder list(b);
        list.add_act(2);
        return list.Finish();
      },
      [](const auto& t) {
        EXPECT_EQ(t.act(), 2u);
        EXPECT_EQ(t.name(), nullptr);
      });
  frames.add<wire::ContextResponse>(
      "context.answer", kAnswer, 31,
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<flatbuffers::String>> tags = {b.CreateString("team=x")};
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {
            wire::CreateContextStatusDirect(b, "prompt", &tags, &name, "m", 16, 2, 1, 131072, 16, 1, true,
                                            3'600'000'000, 1'000'000, 3'601'000'000, 2'000'000, 32, 48, 12.5)};
        return wire::CreateContextResponseDirect(b, &contexts, true);
      },
      [](const auto& t) {
        const wire::ContextStatus& one = *t.contexts()->Get(0);
        EXPECT_EQ(one.name()->str(), "prompt");
        EXPECT_EQ(one.wanted_blocks(), 2u);
        EXPECT_EQ(one.kept_blocks(), 1u);
        EXPECT_EQ(one.why(), 16u);
        EXPECT_EQ(one.lost_blocks(), 1u);
        EXPECT_EQ(one.expires_us(), 3'601'000'000u);
        EXPECT_EQ(one.read_tokens(), 48u);
        EXPECT_EQ(one.stored_token_seconds(), 12.5);
        EXPECT_TRUE(t.more());
      });
  frames.add<wire::ContextRequest>(
      "context.warm", kRequest, 31, [](auto& b) { return wire::CreateContextRequestDirect(b, 5, "prompt"); },
      [](const auto& t) {
        EXPECT_EQ(t.act(), 5u);
        EXPECT_EQ(t.name()->str(), "prompt");
      });
  frames.add<wire::ContextResponse>(
      "context.warming", kAnswer, 31,
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {
            wire::CreateContextStatusDirect(b, "prompt", nullptr, &name, "m", 16, 9, 2, 262144, 16, 0, false,
                                            3'600'000'000, 1'000'000, 3'601'000'000, 0, 32, 0, 12.5, true, true, 3, 6)};
        return wire::CreateContextResponseDirect(b, &contexts);
      },
      [](const auto& t) {
        const wire::ContextStatus& one = *t.contexts()->Get(0);
        EXPECT_TRUE(one.warming());
        EXPECT_TRUE(one.looked());
        EXPECT_EQ(one.memory_blocks(), 3u);
        EXPECT_EQ(one.disk_blocks(), 6u);
      });
  frames.add<wire::ContextRequest>(
      "context.place", kRequest, 31,
      [](auto& b) {
        return wire::CreateContextRequestDirect(b, 1, "prompt", 1, kCheck, &kHashes, nullptr, nullptr, 1'000'000, 0,
                                                false, nullptr, 9, 12, &kPositions, 7);
      },
      [](const auto& t) {
        EXPECT_EQ(t.priority(), 9u);
        EXPECT_EQ(t.prefix_blocks(), 12u);
        EXPECT_EQ(t.positions()->Get(1), 9u);
        EXPECT_EQ(t.first(), 7u);
      });
  frames.add<wire::ContextResponse>(
      "context.told", kAnswer, 31,
      [](auto& b) {
        const std::vector<std::uint8_t> name(16, 7);
        const std::vector<flatbuffers::Offset<wire::ContextStatus>> contexts = {wire::CreateContextStatusDirect(
            b, "prompt", nullptr, &name, "m", 16, 9, 2, 262144, 10, 0, false, 3'600'000'000, 1'000'000, 3'601'000'000,
            0, 32, 0, 12.5, false, false, 0, 0, 2, 4)};
        return wire::CreateContextResponseDirect(b, &contexts, true, 77, "model=m\n", 12, &kHashes, &kPositions);
      },
      [](const auto& t) {
        EXPECT_EQ(t.contexts()->Get(0)->priority(), 2u);
        EXPECT_EQ(t.contexts()->Get(0)->yielded_blocks(), 4u);
        EXPECT_EQ(t.context(), 77u);
        EXPECT_EQ(t.record()->str(), "model=m\n");
        EXPECT_EQ(t.prefix_blocks(), 12u);
        EXPECT_EQ(t.hashes()->size(), 2u);
        EXPECT_EQ(t.positions()->Get(0), 3u);
        EXPECT_TRUE(t.more());
      });
}

}  // namespace kv::golden
