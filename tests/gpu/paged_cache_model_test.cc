// Random sequences on a small pool, against a model that is as plain as possible: user counts are counted in page
// tables, the free queue is a list, names are found by looking at every page. Page ids must be equal, not only counts.
// Beside it a memory of tokens: what is appended is written through slot mappings, copies are carried out, and after
// every step each sequence must read its own tokens: the property that all of this is for. KV_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "gpu/paging/paged_cache.h"
#include "page_names.h"

namespace kv {
namespace {

struct Shape {
  const char* name;
  std::size_t page_count, block_size, window_tokens;
  bool drops_last_block;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

struct ModelSequence {
  SequenceId id;
  std::vector<std::uint32_t> tokens;
  std::vector<PageId> table;
};

class PagedCacheModelTest : public testing::TestWithParam<Shape> {
 protected:
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random{seed};
  const Shape shape = GetParam();
  PagePool pool{shape.page_count};
  PagedCache cache{pool, {shape.block_size, shape.window_tokens, shape.drops_last_block}};

  // -- the model
  std::vector<ModelSequence> sequences;
  std::list<PageId> free;
  std::map<PageId, BlockName> name_of_page;
  std::list<PageId> named;  ///< In the order of naming.
  std::vector<std::uint32_t> memory = std::vector<std::uint32_t>(shape.page_count * shape.block_size);
  std::size_t hit_count = 0, copy_count = 0, refused_count = 0, left_count = 0;

  std::size_t below(std::size_t n) { return random() % n; }
  std::size_t block_count(std::size_t tokens) const { return (tokens + shape.block_size - 1) / shape.block_size; }

  /// Names chained as block hashes are: equal name, equal prefix.
  std::vector<BlockName> chain(const std::vector<std::uint32_t>& tokens) const {
    std::vector<BlockName> names;
    std::uint64_t hash = 1;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      hash = (hash ^ tokens[i]) * 0x9E3779B97F4A7C15 + (hash >> 29);
      if ((i + 1) % shape.block_size == 0) names.push_back(name_of(hash));
    }
    return names;
  }
  std::size_t users(PageId page) const {
    std::size_t count = 0;
    for (const auto& sequence : sequences) count += std::count(sequence.table.begin(), sequence.table.end(), page);
    return count;
  }
  void forget(PageId page) {
    name_of_page.erase(page);
    named.remove(page);
  }
  PageId take() {
    const PageId page = free.front();
    free.pop_front();
    forget(page);
    return page;
  }
  /// Takes the page out of the table, and lets it go if that was the last one.
  void let_go(PageId& entry, PageId instead) {
    const PageId page = std::exchange(entry, instead);
    if (page != kNullPage && users(page) == 0) free.push_back(page);
  }
  std::optional<PageId> find(const BlockName& name) const {
    for (const PageId page : named) {
      if (name_of_page.at(page) == name) return page;
    }
    return std::nullopt;
  }
  /// The longest prefix, by trying every length.
  std::vector<PageId> longest_hit(const std::vector<BlockName>& names, std::size_t tokens) const {
    for (std::size_t end = std::min(names.size(), (tokens - 1) / shape.block_size); end > 0; --end) {
      if (end <= std::size_t{shape.drops_last_block}) break;
      const std::size_t kept = end - shape.drops_last_block;
      const std::size_t reach =
          shape.window_tokens == 0 ? kept : std::max<std::size_t>(1, block_count(shape.window_tokens - 1));
      std::vector<PageId> pages(kept, kNullPage);
      bool is_hit = true;
      for (std::size_t i = kept > reach ? kept - reach : 0; i < end; ++i) {
        const auto page = find(names[i]);
        is_hit &= page.has_value();
        if (page && i < kept) pages[i] = *page;
      }
      if (is_hit) return pages;
    }
    return {};
  }
  std::size_t first_token_read(std::size_t position) const {
    return shape.window_tokens == 0 || position < shape.window_tokens ? 0 : position + 1 - shape.window_tokens;
  }
  bool is_out_of_window(const ModelSequence& sequence, std::size_t block) const {
    return (block + 1) * shape.block_size <= first_token_read(sequence.tokens.size());
  }

  // -- steps: on the cache and on the model
  void write(const ModelSequence& sequence, std::size_t begin) {
    const auto slots = cache.slot_mapping(sequence.id, begin, sequence.tokens.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ASSERT_GE(slots[i], std::int64_t(shape.block_size));  // never into the null page
      memory[slots[i]] = sequence.tokens[begin + i];
    }
  }
  std::vector<std::uint32_t> random_tokens(std::size_t count) {
    std::vector<std::uint32_t> tokens(count);
    for (auto& token : tokens) token = std::uint32_t(1 + below(2));
    return tokens;
  }

  void open() {
    std::vector<std::uint32_t> tokens;
    if (!sequences.empty() && below(2) == 0) tokens = sequences[below(sequences.size())].tokens;
    tokens.resize(below(tokens.size() + 1));
    const auto more = random_tokens(1 + below(3 * shape.block_size));
    tokens.insert(tokens.end(), more.begin(), more.end());
    const auto names = chain(tokens);

    const std::vector<PageId> hit = longest_hit(names, tokens.size());
    const CachedPrefix prefix = cache.find(names, tokens.size());
    ASSERT_EQ(prefix.pages, hit);
    const std::size_t fresh_count = block_count(tokens.size()) - hit.size();
    const auto revived =
        std::count_if(hit.begin(), hit.end(), [&](PageId page) { return page != kNullPage && users(page) == 0; });
    const bool fits = fresh_count + revived <= free.size();
    const auto id = cache.open(prefix, tokens.size());
    ASSERT_EQ(id.has_value(), fits);
    if (!fits) {
      ++refused_count;
      return;
    }
    hit_count += hit.size();
    for (const PageId page : hit) free.remove(page);
    ModelSequence sequence{*id, tokens, hit};
    for (std::size_t i = 0; i < fresh_count; ++i) sequence.table.push_back(take());
    sequences.push_back(sequence);
    write(sequence, hit.size() * shape.block_size);
  }

  void append(ModelSequence& sequence) {
    const auto more = random_tokens(1 + below(below(4) == 0 ? 3 * shape.block_size : 2));
    const std::size_t before = sequence.tokens.size();
    std::size_t behind = 0;
    while (behind < sequence.table.size() && is_out_of_window(sequence, behind)) ++behind;
    for (std::size_t i = behind; i-- > 0;) {
      left_count += sequence.table[i] != kNullPage;
      let_go(sequence.table[i], kNullPage);
    }
    const bool is_partial = before % shape.block_size != 0;
    const bool copies = is_partial && users(sequence.table.back()) > 1;
    const std::size_t fresh_count = block_count(before + more.size()) - sequence.table.size() + copies;
    const auto result = cache.append(sequence.id, more.size());
    ASSERT_EQ(result.has_value(), fresh_count <= free.size());
    if (!result) {
      ++refused_count;
      return;
    }
    ASSERT_EQ(result->size(), std::size_t{copies});
    if (copies) {
      const PageCopy expected{sequence.table.back(), take()};
      ASSERT_EQ((*result)[0], expected);
      ++copy_count;
      let_go(sequence.table.back(), expected.to);
      std::copy_n(memory.begin() + page_index(expected.from) * shape.block_size, shape.block_size,
                  memory.begin() + page_index(expected.to) * shape.block_size);
    } else if (is_partial) {
      forget(sequence.table.back());
    }
    while (sequence.table.size() < block_count(before + more.size())) sequence.table.push_back(take());
    sequence.tokens.insert(sequence.tokens.end(), more.begin(), more.end());
    write(sequence, before);
  }

  void crop(ModelSequence& sequence) {
    const std::size_t count = below(sequence.tokens.size() + 1);
    bool can_crop = true;  // whether all that the next token reads, and the page it is written to, are still there
    for (std::size_t i = first_token_read(count) / shape.block_size; i < block_count(count); ++i) {
      can_crop &= sequence.table[i] != kNullPage;
    }
    ASSERT_EQ(cache.crop(sequence.id, count).has_value(), can_crop);
    if (!can_crop) return;
    while (sequence.table.size() > block_count(count)) {
      let_go(sequence.table.back(), kNullPage);
      sequence.table.pop_back();
    }
    sequence.tokens.resize(count);
  }

  void name(const ModelSequence& sequence) {
    auto names = chain(sequence.tokens);
    names.resize(below(3) == 0 ? below(names.size() + 1) : names.size());
    cache.name_blocks(sequence.id, names);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const PageId page = sequence.table[i];
      if (page != kNullPage && name_of_page.try_emplace(page, names[i]).second) named.push_back(page);
    }
  }

  void fork(const ModelSequence& sequence) {
    ModelSequence forked = sequence;
    forked.id = cache.fork(sequence.id);
    sequences.push_back(forked);
  }

  void close(std::size_t index) {
    cache.close(sequences[index].id);
    while (!sequences[index].table.empty()) {
      let_go(sequences[index].table.back(), kNullPage);
      sequences[index].table.pop_back();
    }
    sequences.erase(sequences.begin() + std::ptrdiff_t(index));
  }

  void check() {
    ASSERT_EQ(pool.check(), "");
    ASSERT_EQ(pool.free_pages(), std::vector<PageId>(free.begin(), free.end()));
    for (const auto& sequence : sequences) {
      const auto table = cache.page_table(sequence.id);
      ASSERT_EQ(std::vector<PageId>(table.begin(), table.end()), sequence.table);
      const auto slots = cache.slot_mapping(sequence.id, 0, sequence.tokens.size());
      for (std::size_t t = first_token_read(sequence.tokens.size()); t < sequence.tokens.size(); ++t) {
        ASSERT_GE(slots[t], 0);
        ASSERT_EQ(memory[slots[t]], sequence.tokens[t]);
      }
    }
  }
};

TEST_P(PagedCacheModelTest, EverySequenceReadsItsOwnTokens) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (std::size_t i = 1; i < shape.page_count; ++i) free.push_back(page_at(i));
  for (int step = 0; step < 20'000; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const std::size_t dice = below(100);
    if (sequences.empty() || dice < 15) {
      open();
    } else {
      const std::size_t i = below(sequences.size());
      if (dice < 60) {
        append(sequences[i]);
      } else if (dice < 75) {
        name(sequences[i]);
      } else if (dice < 80) {
        if (sequences.size() < 8) fork(sequences[i]);
      } else if (dice < 86) {
        crop(sequences[i]);
      } else {
        close(i);
      }
    }
    if (HasFatalFailure()) return;
    check();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(hit_count, 100u);  // or the test does not test much
  EXPECT_GT(copy_count, 100u);
  EXPECT_GT(refused_count, 10u);
  if (shape.window_tokens > 0) {
    EXPECT_GT(left_count, 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PagedCacheModelTest,
                         testing::Values(Shape{"full", 24, 3, 0, false}, Shape{"draft", 24, 3, 0, true},
                                         Shape{"window", 24, 3, 5, false}, Shape{"window_draft", 30, 2, 5, true},
                                         Shape{"narrow", 20, 4, 1, false}),
                         [](const auto& shape) { return shape.param.name; });

}  // namespace
}  // namespace kv
