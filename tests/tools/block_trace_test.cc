#include "store/replay/block_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TraceRequest request(std::uint64_t input_length, std::vector<std::uint64_t> ids) {
  return {.timestamp_ms = 0, .input_length = input_length, .output_length = 1, .hash_ids = std::move(ids)};
}

std::vector<std::uint32_t> blocks(const BlockTrace& trace, std::size_t of) {
  std::vector<std::uint32_t> blocks;
  trace.blocks_of(of, blocks);
  return blocks;
}

TEST(BlockTraceTest, IdsAreNumberedWithoutGaps) {
  const BlockTrace trace({request(1024, {7, 1000}), request(1536, {7, 1000, 3}), request(512, {90})}, {});
  EXPECT_EQ(trace.request_count(), 3u);
  EXPECT_EQ(trace.reference_count(), 6u);
  EXPECT_EQ(trace.block_count(), 4u);
  EXPECT_EQ(trace.longest(), 3u);
  EXPECT_THAT(blocks(trace, 0), ElementsAre(0, 1));
  EXPECT_THAT(blocks(trace, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(blocks(trace, 2), ElementsAre(3));
}

TEST(BlockTraceTest, SplitAnIdStandsForSeveralBlocks) {
  const BlockTrace trace({request(600, {5, 6}), request(512, {5})}, {.block_tokens = 512, .split = 2});
  EXPECT_EQ(trace.block_count(), 4u);
  EXPECT_THAT(blocks(trace, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(blocks(trace, 1), ElementsAre(0, 1));
}

TEST(BlockTraceTest, FullBlocksOnlyAreThoseThatTheInputFills) {
  const BlockTraceOptions options{.block_tokens = 512, .split = 2, .full_only = true};
  const BlockTrace trace({request(767, {5, 6}), request(768, {5, 7}), request(255, {8})}, options);
  EXPECT_THAT(blocks(trace, 0), ElementsAre(0, 1)) << "256 tokens a block: the third lacks one";
  EXPECT_THAT(blocks(trace, 1), ElementsAre(0, 1, 4));
  EXPECT_THAT(blocks(trace, 2), ElementsAre());
  EXPECT_EQ(trace.reference_count(), 5u);
}

std::string refusal(const std::vector<TraceRequest>& requests) {
  try {
    const BlockTrace trace(requests, {});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(BlockTraceTest, AnIdBehindTwoOthersIsRefusedByName) {
  EXPECT_THAT(refusal({request(1024, {1, 2}), request(1024, {3, 2})}), HasSubstr("request 1: hash_ids[1] is 2"));
  EXPECT_THAT(refusal({request(1024, {1, 2}), request(512, {2})}), HasSubstr("request 1: hash_ids[0] is 2"));
  EXPECT_THAT(refusal({request(1024, {1, 1})}), HasSubstr("request 0: hash_ids[1] is 1"));
  EXPECT_THAT(refusal({}), HasSubstr("no blocks"));
  EXPECT_EQ(refusal({request(1024, {1, 2}), request(1024, {1, 3})}), "");
}

}  // namespace
}  // namespace kv
