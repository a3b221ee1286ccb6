// Named contexts through the client: one context, whose parts lie on several nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/client_fixture.h"

namespace kv {
namespace {

class ClientContextTest : public ClientFixture {
 protected:
  std::uint64_t pinned_blocks() {
    std::uint64_t count = 0;
    for (const auto& node : nodes) count += node->stats().pinned_count;
    for (const auto& node : sim_nodes) count += node->stats().pinned_count;
    return count;
  }
  Result<NamedContext> create(Space space, std::span<const BlockHash> chain, const char* name, ContextTime life,
                              std::span<const std::string> tags = {}) {
    const ContextOptions options{.deadline = 5s, .name = name, .life = life, .tags = tags};
    return loop.run(client->create_context(space, chain, options));
  }
  ContextList list(std::string_view name = {}) { return loop.run(client->list_contexts(name, 5s)).value(); }
};

TEST_P(ClientContextTest, OneIsCreatedListedExtendedAndDeletedWhereverItsPartsLie) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 12), other = test_chain(record, 12, 7);
  const Space space = open(record);
  Blocks memory = blocks(12, 4096);
  memory.fill(chain);
  const auto from = std::span(memory.from);
  EXPECT_EQ(loop.run(client->put(space, chain, from, {.deadline = 5s}))->stored, 12u);
  const std::vector<std::string> tags = {"team=x", "a b"};
  const auto made = create(space, chain, "prompt", {.ttl = 3600s}, tags);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->name, "prompt");
  EXPECT_EQ(made->wanted_blocks, 12u);
  EXPECT_EQ(made->kept_blocks, 12u);
  EXPECT_EQ(made->kept_bytes, 12u * 4096);
  EXPECT_FALSE(made->why) << made->why.message();
  EXPECT_EQ(made->tags, tags);
  EXPECT_EQ(made->model, std::string(record.field("model")));
  EXPECT_EQ(made->namespace_id, to_hex(record.id().bytes));
  EXPECT_EQ(made->written_tokens, 12 * record.block_size());
  EXPECT_EQ(made->expires - made->created, std::chrono::microseconds(3600s));
  EXPECT_EQ(pinned_blocks(), 12u);

  memory.clear();
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, {.deadline = 5s}))->block_count, 12u);
  const ContextList listed = list();
  ASSERT_EQ(listed.contexts.size(), 1u);
  EXPECT_TRUE(listed.silent.empty());
  EXPECT_EQ(listed.contexts[0].wanted_blocks, 12u);
  EXPECT_EQ(listed.contexts[0].read_tokens, 12 * record.block_size());
  EXPECT_GT(listed.contexts[0].used.count(), 0);

  EXPECT_EQ(listed.contexts[0].memory_blocks, std::nullopt);
  const auto warm = loop.run(client->warm_context("prompt", 5s));
  ASSERT_TRUE(warm) << warm.error().message();
  EXPECT_EQ(warm->memory_blocks, 12u);
  EXPECT_EQ(warm->disk_blocks, 0u);
  EXPECT_FALSE(warm->is_warming) << "there is no disk";
  EXPECT_EQ(list("prompt").contexts[0].memory_blocks, 12u);
  EXPECT_TRUE(loop.run(client->stop_warming_context("prompt", 5s)));
  EXPECT_EQ(loop.run(client->warm_context("none", 5s)).error(), Errc::kNotFound);

  const auto longer = loop.run(client->extend_context("prompt", {.ttl = 7200s, .is_sliding = true}, 5s));
  ASSERT_TRUE(longer) << longer.error().message();
  EXPECT_TRUE(longer->is_sliding);
  EXPECT_EQ(longer->ttl, std::chrono::microseconds(7200s));

  // Another chain under the same name: no node keeps what it kept for the first one.
  const auto replaced = create(space, std::span(other).first(1), "prompt", {.ttl = 3600s});
  ASSERT_TRUE(replaced) << replaced.error().message();
  EXPECT_EQ(replaced->wanted_blocks, 1u);
  EXPECT_EQ(replaced->kept_blocks, 0u);
  EXPECT_EQ(replaced->why, Errc::kNotFound);
  EXPECT_EQ(list().contexts.size(), 1u);
  EXPECT_EQ(list("prompt").contexts[0].wanted_blocks, 1u);

  ASSERT_TRUE(loop.run(client->delete_context("prompt", 5s)));
  EXPECT_EQ(loop.run(client->delete_context("prompt", 5s)).error(), Errc::kNotFound);
  EXPECT_EQ(loop.run(client->extend_context("prompt", {.ttl = 1s}, 5s)).error(), Errc::kNotFound);
  EXPECT_TRUE(list().contexts.empty());
  EXPECT_TRUE(list("prompt").contexts.empty());
}

TEST_P(ClientContextTest, WhatItIsOfIsPutTogetherFromAllNodes) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 12);
  const Space space = open(record);
  ASSERT_TRUE(create(space, chain, "prompt", {.ttl = 3600s}));
  const auto told = loop.run(client->tell_context("prompt", 5s));
  ASSERT_TRUE(told) << told.error().message();
  EXPECT_EQ(told->record, record.text());
  EXPECT_EQ(told->prefix_blocks, 12u);
  EXPECT_EQ(told->hashes, chain);
  EXPECT_EQ(told->context.wanted_blocks, 12u);
  EXPECT_EQ(loop.run(client->tell_context("none", 5s)).error(), Errc::kNotFound);
  EXPECT_EQ(loop.run(client->tell_context("", 5s)).error(), Errc::kBadRequest);
}

TEST_P(ClientContextTest, APriorityGoesToAllNodes) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 12);
  const Space space = open(record);
  const ContextOptions options{.deadline = 5s, .name = "prompt", .life = {.ttl = 3600s}, .priority = 8};
  EXPECT_EQ(loop.run(client->create_context(space, chain, options))->priority, 8u);
  EXPECT_EQ(loop.run(client->extend_context("prompt", {.ttl = 60s}, 5s))->priority, 8u);
  EXPECT_EQ(loop.run(client->extend_context("prompt", {.ttl = 60s}, 5s, {}, 3))->priority, 3u);
  EXPECT_EQ(loop.run(client->extend_context("prompt", {.ttl = 60s}, 5s, {}, 10)).error(), Errc::kBadRequest);
  EXPECT_EQ(list().contexts[0].priority, 3u);
}

TEST_P(ClientContextTest, APartOfAChainIsHadWithoutWhatComesBefore) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 12);
  const Space space = open(record);
  Blocks memory = blocks(12, 4096);
  memory.fill(chain);
  EXPECT_EQ(loop.run(client->put(space, std::span(chain).first(10), std::span(memory.from).first(10), {.deadline = 5s}))
                ->stored,
            10u);
  for (const std::size_t first : {1u, 5u, 9u}) {
    memory.clear();
    std::vector<std::span<std::byte>> to = memory.to;
    for (std::size_t i = 0; i < first; ++i) to[i] = {};
    std::vector<std::uint64_t> sums(12);
    const GetOptions options{.deadline = 5s, .first_block = first, .checksums = sums};
    const auto got = loop.run(client->get(space, chain, to, options));
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_EQ(got->block_count, 10u) << first;
    std::vector<std::byte> expected(4096);
    for (std::size_t i = 0; i < 10; ++i) {
      fill_block(chain[i], expected);
      const bool is_right = std::memcmp(expected.data(), memory.to[i].data(), expected.size()) == 0;
      EXPECT_EQ(is_right, i >= first) << first << " " << i;
      EXPECT_EQ(sums[i] != 0, i >= first);
    }
  }
  const GetOptions beyond{.deadline = 5s, .first_block = 11};
  EXPECT_LE(loop.run(client->get(space, chain, memory.to, beyond))->block_count, 11u);
  const GetOptions none{.deadline = 5s, .first_block = 12};
  EXPECT_EQ(loop.run(client->get(space, chain, memory.to, none)).error(), Errc::kBadRequest);
}

TEST_P(ClientContextTest, WhatIsAMistakeIsToldBeforeOrByTheNode) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 4);
  const Space space = open(record);
  EXPECT_EQ(create(space, {}, "a", {.ttl = 1s}).error(), Errc::kBadRequest);
  EXPECT_EQ(create(space, chain, "", {.ttl = 1s}).error(), Errc::kBadRequest);
  EXPECT_EQ(create(space, chain, "a b", {.ttl = 1s}).error(), Errc::kBadRequest);
  EXPECT_EQ(create(space, chain, "a", {}).error(), Errc::kBadRequest);
  EXPECT_EQ(create(Space{77}, chain, "a", {.ttl = 1s}).error(), Errc::kBadRequest);
  EXPECT_TRUE(list().contexts.empty());
}

TEST_P(ClientContextTest, ALongListHasAllPagesOfAllNodes) {
  const NamespaceRecord record = test_record(4096);
  const auto chain = test_chain(record, 12);
  const Space space = open(record);
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back("c" + std::to_string(1000 + i));
  for (const std::string& name : names) ASSERT_TRUE(create(space, chain, name.c_str(), {.ttl = 3600s}));
  const ContextList all = list();
  ASSERT_EQ(all.contexts.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(all.contexts[i].name, names[i]);
    EXPECT_EQ(all.contexts[i].wanted_blocks, 12u);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientContextTest,
                         testing::Values(Setup{"tcp", 3}, Setup{"unix", 1}, Setup{"sim", 1}, Setup{"sim", 4}),
                         [](const auto& each) {
                           return std::string(each.param.transport) + "_" + std::to_string(each.param.node_count);
                         });

}  // namespace
}  // namespace kv
