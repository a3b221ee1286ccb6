// A block's whole way over real sockets: put by one client, got by another, byte for byte.
#include <gtest/gtest.h>

#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"

namespace kv::e2e {
namespace {

class E2eTransferTest : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  static std::vector<std::string> options(std::vector<std::string> more) {
    return node_options(GetParam(), std::move(more));
  }
  std::string endpoint(const NodeProcess& node) const { return endpoint_of(node, GetParam()); }
  /// That it went the way it should.
  static void expect_path(const NodeProcess& node) {
    const char* const path = GetParam() == Transport::kVerbs ? "verbs"
                             : GetParam() == Transport::kShm ? "memfd"
                                                             : "inline";
    for (const char* each : {"verbs", "memfd", "inline"}) {
      for (const char* direction : {"in", "out"}) {
        const std::string name = std::string("kvstore_bytes_") + direction + "_total{path=\"" + each + "\"}";
        EXPECT_EQ(node.metric(name) > 0, std::string(each) == path) << name;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, E2eTransferTest,
                         testing::Values(Transport::kTcp, Transport::kUnix, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

TEST_P(E2eTransferTest, WhatOneClientPutsAnotherGetsByteForByte) {
  const NodeProcess node(options({"--capacity", "256MiB"}));
  constexpr std::size_t kBlockBytes = 2 << 20, kCount = 24;
  const auto chain = make_chain(1, kCount);
  {
    TestClient writer(endpoint(node), GetParam(), kBlockBytes, kCount);
    const PutResult put = writer.put(chain);
    EXPECT_EQ(put.stored, kCount);
    EXPECT_FALSE(put.why) << put.why.message();
  }
  TestClient reader(endpoint(node), GetParam(), kBlockBytes, kCount + 4);
  const auto match = reader->match(reader.space(), chain, {.deadline = kDeadline});
  ASSERT_TRUE(match);
  EXPECT_EQ(match->block_count, kCount);
  auto longer = chain;
  longer.resize(kCount + 4);  // nobody stored the last four
  const GetResult got = reader.get(longer);
  EXPECT_EQ(got.block_count, kCount);
  EXPECT_FALSE(got.why) << got.why.message();
  EXPECT_EQ(got.corrupt_count, 0u);
  EXPECT_EQ(reader.wrong_bytes(chain, kCount), 0u);
  expect_path(node);
}

TEST_P(E2eTransferTest, MixedBlockSizesLiveTogether) {
  const NodeProcess node(options({"--capacity", "1GiB"}));
  constexpr std::size_t kSizes[] = {4096, 196 * 1024, 1'153'434, 2 << 20, 32 << 20, 80 << 20};
  for (const std::size_t block_bytes : kSizes) {
    const std::size_t count = block_bytes >= (32u << 20) ? 2 : 20;
    TestClient writer(endpoint(node), GetParam(), block_bytes, count);
    EXPECT_EQ(writer.put(make_chain(block_bytes, count)).stored, count) << block_bytes;
  }
  for (const std::size_t block_bytes : kSizes) {
    const std::size_t count = block_bytes >= (32u << 20) ? 2 : 20;
    TestClient reader(endpoint(node), GetParam(), block_bytes, count);
    const auto chain = make_chain(block_bytes, count);
    const GetResult got = reader.get(chain);
    EXPECT_EQ(got.block_count, count) << block_bytes;
    EXPECT_EQ(reader.wrong_bytes(chain, got.block_count), 0u) << block_bytes;
  }
}

TEST_P(E2eTransferTest, EvictionShortensAPrefixAndNeverBendsIt) {
  const NodeProcess node(options({"--capacity-blocks", "64", "--capacity-block-bytes", "65536"}));
  TestClient client(endpoint(node), GetParam(), 65536, 40);
  const auto old = make_chain(1, 40), young = make_chain(2, 40);
  EXPECT_EQ(client.put(old).stored, 40u);
  EXPECT_EQ(client.put(young).stored, 40u);
  EXPECT_EQ(node.metric("kvstore_blocks"), 64);
  const GetResult kept = client.get(young);
  EXPECT_EQ(kept.block_count, 40u);
  EXPECT_EQ(client.wrong_bytes(young, 40), 0u);
  const GetResult cut = client.get(old);  // its leaf ends went first
  EXPECT_EQ(cut.block_count, 24u);
  EXPECT_EQ(client.wrong_bytes(old, 24), 0u);
}

TEST_P(E2eTransferTest, SegmentsArriveInOrderAndVerified) {
  const NodeProcess node(options({"--capacity", "64MiB"}));
  TestClient client(endpoint(node), GetParam(), 1 << 20, 8);
  const auto chain = make_chain(3, 8);
  ASSERT_EQ(client.put(chain).stored, 8u);
  struct Marks {
    std::vector<std::pair<std::size_t, std::size_t>> seen;
  } marks;
  const std::uint64_t ends[] = {256 << 10, 512 << 10, 1 << 20};
  GetOptions options{.deadline = kDeadline};
  options.segment_ends = ends;
  options.on_segment = {[](void* context, std::size_t segment, std::size_t count) {
                          static_cast<Marks*>(context)->seen.emplace_back(segment, count);
                        },
                        &marks};
  const auto targets = client.blocks(8);
  const auto got = client->get(client.space(), chain, targets, options);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->block_count, 8u);
  EXPECT_EQ(client.wrong_bytes(chain, 8), 0u);
  EXPECT_EQ(marks.seen, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 8}, {1, 8}, {2, 8}}));
  expect_path(node);
}

}  // namespace
}  // namespace kv::e2e
