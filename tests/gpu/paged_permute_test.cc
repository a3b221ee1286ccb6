// PagedCache decides, permute() moves: sequences that share, fork and slide read back the tokens that were written for
// them, through pages of an engine's layout.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "gpu/named_layouts.h"
#include "gpu/paging/paged_cache.h"
#include "gpu/permute.h"
#include "page_names.h"

namespace kv {
namespace {

constexpr std::int64_t kPageTokens = 4, kHeads = 2, kHeadSize = 8, kPages = 12;

/// A layout of one layer with memory of its own.
struct Tokens {
  explicit Tokens(Layout layout)
      : keys(std::size_t(layout.tensor_bytes(0))),
        values(std::size_t(layout.tensor_bytes(1))),
        bound(bind_layout(std::move(layout), std::array<void*, 2>{keys.data(), values.data()}).value()) {}
  std::vector<std::byte> keys, values;
  BoundLayout bound;
};

Tokens row_tokens(std::int64_t count) {
  return Tokens(
      layouts::ragged(
          {.block_count = 1, .block_tokens = count, .heads = kHeads, .key_size = kHeadSize, .element = Element::kFp16})
          .value());
}

class PagedPermuteTest : public testing::Test {
 protected:
  PagePool pool{kPages};
  Tokens pages{layouts::x_packed({.block_count = kPages,
                                  .block_tokens = kPageTokens,
                                  .heads = kHeads,
                                  .key_size = kHeadSize,
                                  .element = Element::kFp16})
                   .value()};

  /// Tokens from `begin` on; each byte of a row names its token.
  void write(PagedCache& cache, SequenceId sequence, std::size_t begin, const std::vector<int>& tokens) {
    Tokens rows = row_tokens(std::int64_t(tokens.size()));
    const std::size_t row_bytes = rows.keys.size() / tokens.size();
    for (std::size_t i = 0; i < rows.keys.size(); ++i) {
      rows.keys[i] = std::byte(tokens[i / row_bytes]);
      rows.values[i] = std::byte(tokens[i / row_bytes] + 100);
    }
    const auto slots = cache.slot_mapping(sequence, begin, begin + tokens.size());
    ASSERT_TRUE(scatter(pages.bound, Rows::slots(slots.data()), rows.bound, std::int64_t(tokens.size())));
  }
  /// What the sequence reads; 0 where it has no page any more.
  std::vector<int> read(PagedCache& cache, SequenceId sequence) {
    const std::size_t count = cache.token_count(sequence);
    Tokens rows = row_tokens(std::int64_t(count));
    const auto slots = cache.slot_mapping(sequence, 0, count);
    EXPECT_TRUE(gather(rows.bound, pages.bound, Rows::slots(slots.data()), std::int64_t(count)));
    std::vector<int> tokens;
    const std::size_t row_bytes = rows.keys.size() / count;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.push_back(int(rows.keys[i * row_bytes]));
      for (std::size_t b = 0; b < row_bytes; ++b) {
        EXPECT_EQ(int(rows.keys[i * row_bytes + b]), tokens.back());
        EXPECT_EQ(int(rows.values[i * row_bytes + b]), tokens.back() == 0 ? 0 : tokens.back() + 100);
      }
    }
    return tokens;
  }
  void append(PagedCache& cache, SequenceId sequence, const std::vector<int>& tokens) {
    const auto copies = cache.append(sequence, tokens.size()).value();
    std::vector<std::int64_t> pairs;
    for (const PageCopy& copy : copies) {
      pairs.push_back(std::int64_t(copy.from));
      pairs.push_back(std::int64_t(copy.to));
    }
    ASSERT_TRUE(copy_blocks(pages.bound, pairs));
    write(cache, sequence, cache.token_count(sequence) - tokens.size(), tokens);
  }
};

TEST_F(PagedPermuteTest, ForksReadTheirCommonBeginningAndTheirOwnEnds) {
  PagedCache cache(pool, {.block_size = kPageTokens});
  const SequenceId parent = cache.open({}, 6).value();
  write(cache, parent, 0, {1, 2, 3, 4, 5, 6});
  const SequenceId child = cache.fork(parent);
  append(cache, child, {17});
  append(cache, parent, {7, 8, 9});
  append(cache, child, {18, 19});
  EXPECT_EQ(read(cache, parent), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(read(cache, child), (std::vector<int>{1, 2, 3, 4, 5, 6, 17, 18, 19}));
}

TEST_F(PagedPermuteTest, AHitReadsWhatAnotherSequenceWrote) {
  PagedCache cache(pool, {.block_size = kPageTokens});
  const auto names = names_of({1, 2});
  const SequenceId first = cache.open({}, 9).value();
  write(cache, first, 0, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  cache.name_blocks(first, names);
  cache.close(first);
  const SequenceId second = cache.open(cache.find(names, 10), 10).value();
  write(cache, second, 8, {29, 30});
  EXPECT_EQ(read(cache, second), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 29, 30}));
}

TEST_F(PagedPermuteTest, RowsBehindAWindowAreSkipped) {
  PagedCache cache(pool, {.block_size = kPageTokens, .window_tokens = 5});
  const SequenceId sequence = cache.open({}, 8).value();
  write(cache, sequence, 0, {1, 2, 3, 4, 5, 6, 7, 8});
  append(cache, sequence, {9});
  EXPECT_EQ(read(cache, sequence), (std::vector<int>{0, 0, 0, 0, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace kv
