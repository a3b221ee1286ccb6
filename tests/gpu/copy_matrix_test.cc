// Groups A, B, C and H of the matrix: bytes that move between layouts arrive where BoundLayout::address() says, and no
// other byte changes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "gpu/permute.h"
#include "gpu/plans/row_plan.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

constexpr Element kElements[] = {Element::kInt8, Element::kE4M3, Element::kE5M2,
                                 Element::kFp16, Element::kBf16, Element::kFp32};

class CopyMatrixTest : public MatrixTest {
 protected:
  void SetUp() override {
    MatrixTest::SetUp();
    random_.seed(seed_);
  }

  /// Moves rows and compares every byte with what element-by-element copying gives.
  void expect_copied(TestCache& to, const Rows& to_rows, TestCache& from, const Rows& from_rows, std::int64_t row_count,
                     RoleMask roles = kAllRoles) {
    TestCache want = to;
    copy_elements(want, to_rows, from, from_rows, row_count, roles);
    const TestCache source = from;
    Operation operation;
    operation.roles = roles;
    ASSERT_TRUE(backend().permute(to, to_rows, from, from_rows, row_count, operation));
    ASSERT_TRUE(same_bytes(to, want));
    ASSERT_TRUE(same_bytes(from, source));
  }

  CacheShape cache_shape(const MatrixShape& shape, Element element) const {
    const std::int64_t blocks = (shape.tokens + shape.block_tokens - 1) / shape.block_tokens + 2;
    return {.block_count = blocks,
            .block_tokens = shape.block_tokens,
            .heads = shape.heads,
            .key_size = shape.head_size,
            .layer_count = shape.layers,
            .element = element};
  }

  const std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_;
};

// A: each pairwise shape with one element type and layout after another, so that every layout sees every value.
TEST_P(CopyMatrixTest, RowsGoToTheirSlotsAndBack) {
  SCOPED_TRACE(seed_text(seed_));
  std::size_t turn = 0;
  std::size_t ran = 0;
  for (const MatrixShape& shape : pairwise_shapes(seed_)) {
    for (std::size_t each = 0; each < 5; ++each, ++turn) {
      const NamedMaker& maker = copy_layouts()[turn % copy_layouts().size()];
      const Element element = kElements[(turn / 3) % std::size(kElements)];
      if (shape.misalign_bytes % element_bytes(element) != 0) continue;
      SCOPED_TRACE(std::string(maker.name) + " " + std::string(element_name(element)) + " " + to_string(shape));
      CacheShape measures = cache_shape(shape, element);
      const bool is_latent = std::string(maker.name).find("MLA") != std::string::npos;
      if (maker.may_differ && turn % 2 == 0) measures.value_size = shape.head_size >= 128 ? 64 : 32;
      if (is_latent) measures.heads = 1, measures.value_size = 64;
      const auto layout = maker.make(measures);
      if (!layout) continue;  // a shape that this layout refuses: LayoutTest has those
      ++ran;
      TestCache cache(*layout, shape.misalign_bytes);
      cache.fill_random(random_);
      const std::int64_t rows_there = shape.tokens + (turn % 3 == 0 ? 7 : 0);  // slots shorter than rows
      const Layout rows_layout = turn % 2 == 0 ? strided_rows(*layout, rows_there) : dense_rows(*layout, rows_there);
      TestCache rows(rows_layout, shape.misalign_bytes);
      rows.fill_random(random_);
      const TestCache sent = rows;
      const auto slots = random_slots(random_, shape.tokens, layout->slot_count(), true);
      const std::vector<std::int32_t> narrow(slots.begin(), slots.end());
      const Rows where = turn % 2 == 0 ? Rows::slots(slots.data()) : Rows::slots(narrow.data());
      ASSERT_NO_FATAL_FAILURE(expect_copied(cache, where, rows, Rows::range(), shape.tokens));
      TestCache back(rows_layout, shape.misalign_bytes);
      ASSERT_NO_FATAL_FAILURE(expect_copied(back, Rows::range(), cache, where, shape.tokens));
    }
  }
  EXPECT_GT(ran, 100u);
}

// A: gather(scatter(x)) = x, and the order of rows does not matter.
TEST_P(CopyMatrixTest, ScatterThenGatherIsTheIdentityInAnyOrder) {
  SCOPED_TRACE(seed_text(seed_));
  for (const NamedMaker& maker : copy_layouts()) {
    SCOPED_TRACE(maker.name);
    const Layout layout =
        maker
            .make(
                {.block_count = 5, .block_tokens = 32, .heads = 3, .key_size = 96, .value_size = 96, .layer_count = 2})
            .value();
    constexpr std::int64_t kTokens = 77;
    const auto slots = random_slots(random_, kTokens, layout.slot_count(), false);
    TestCache sent(dense_rows(layout, kTokens));
    sent.fill_random(random_);
    TestCache cache(layout);
    TestCache got(dense_rows(layout, kTokens));
    ASSERT_TRUE(backend().permute(cache, Rows::slots(slots.data()), sent, Rows::range(), kTokens, Operation()));
    ASSERT_TRUE(backend().permute(got, Rows::range(), cache, Rows::slots(slots.data()), kTokens, Operation()));
    ASSERT_TRUE(same_bytes(got, sent));
    std::vector<std::int64_t> order(kTokens);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    std::vector<std::int64_t> shuffled(kTokens);
    for (std::size_t i = 0; i < order.size(); ++i) shuffled[i] = slots[static_cast<std::size_t>(order[i])];
    TestCache other(layout);
    ASSERT_TRUE(
        backend().permute(other, Rows::slots(shuffled.data()), sent, Rows::slots(order.data()), kTokens, Operation()));
    ASSERT_TRUE(same_bytes(other, cache));
  }
}

// A: block tables with starts, in both policies, and CSR pages with positions.
TEST_P(CopyMatrixTest, TablesAndPagesNameTheSameRowsAsSlots) {
  SCOPED_TRACE(seed_text(seed_));
  const std::vector<std::int32_t> ids = {4, 1, 6, -1, 2, 0, 3, 5};
  const std::vector<std::int64_t> starts = {5, 0};
  const std::vector<std::int64_t> lengths = {40, 61};
  const std::vector<std::int32_t> indptr = {0, 3, 7};
  const std::vector<std::int32_t> indices = {4, 1, 6, 2, 0, 3, 5};
  for (const NamedMaker& maker : copy_layouts()) {
    SCOPED_TRACE(maker.name);
    const Layout layout =
        maker.make({.block_count = 7, .block_tokens = 16, .heads = 2, .key_size = 64, .value_size = 64}).value();
    TestCache cache(layout);
    cache.fill_random(random_);
    for (const MissingBlock missing : {MissingBlock::kKeepRow, MissingBlock::kDropRow}) {
      std::vector<std::int64_t> slots(200);
      const std::int64_t count = plan_table_rows(slots, {ids, 4}, 16, starts, lengths, missing).value();
      TestCache rows(dense_rows(layout, count));
      ASSERT_NO_FATAL_FAILURE(expect_copied(rows, Rows::range(), cache, Rows::slots(slots.data()), count));
      ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), count));
    }
    const std::vector<std::int32_t> batch = {0, 1, 1, -1, 0, 1};
    const std::vector<std::int32_t> positions = {47, 0, 63, 0, 16, 17};
    std::vector<std::int64_t> slots(batch.size());
    ASSERT_TRUE(plan_append_rows(slots, {indptr, indices}, 16, batch, positions));
    TestCache rows(dense_rows(layout, 6));
    rows.fill_random(random_);
    ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 6));
  }
}

TEST_P(CopyMatrixTest, KeysAloneLeaveValuesUntouched) {
  for (const NamedMaker& maker : copy_layouts()) {
    SCOPED_TRACE(maker.name);
    const Layout layout =
        maker.make({.block_count = 3, .block_tokens = 16, .heads = 4, .key_size = 64, .value_size = 64}).value();
    TestCache cache(layout);
    TestCache rows(dense_rows(layout, 20));
    rows.fill_random(random_);
    const auto slots = random_slots(random_, 20, layout.slot_count(), true);
    ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 20,
                                          role_bit(Role::kKey) | role_bit(Role::kLatent)));
  }
}

TEST_P(CopyMatrixTest, KeyAndValueMayDifferInSize) {
  for (const auto& [key_size, value_size] : {std::pair(192, 128), std::pair(576, 512)}) {
    for (const NamedMaker& maker : copy_layouts()) {
      if (!maker.may_differ) continue;
      SCOPED_TRACE(maker.name);
      const Layout layout =
          maker.make({.block_count = 3, .block_tokens = 16, .heads = 2, .key_size = key_size, .value_size = value_size})
              .value();
      TestCache cache(layout);
      TestCache rows(strided_rows(layout, 33));
      rows.fill_random(random_);
      const auto slots = random_slots(random_, 33, layout.slot_count(), true);
      ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 33));
    }
  }
}

TEST_P(CopyMatrixTest,
       ManyHeadsOfManyFeaturesAreNotCutShort) {  // 64 * 128 elements: more than a thread block has threads
  const Layout layout = layouts::x_packed({.block_count = 2, .heads = 64, .key_size = 128}).value();
  TestCache cache(layout);
  TestCache rows(dense_rows(layout, 3));
  rows.fill_random(random_);
  const std::vector<std::int32_t> slots = {31, 0, 17};
  ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 3));
}

// A transposition has a block of threads for each head, and a grid is at most 65,535 deep.
TEST_P(CopyMatrixTest, MoreHeadsThanAGridIsDeepAreMovedToo) {
  SCOPED_TRACE(seed_text(seed_));
  const Layout layout =
      layouts::x_packed(
          {.block_count = 1, .block_tokens = 2, .heads = 65'537, .key_size = 16, .element = Element::kInt8})
          .value();
  TestCache cache(layout), rows(dense_rows(layout, 1));
  rows.fill_random(random_);
  const std::vector<std::int32_t> slots = {1};
  ASSERT_NO_FATAL_FAILURE(
      expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 1, role_bit(Role::kValue)));
}

// B: elements of several sizes in one entry are bytes like any other.
TEST_P(CopyMatrixTest, MixedLayoutsKeepTheirBytes) {
  SCOPED_TRACE(seed_text(seed_));
  const CacheShape shape{.block_count = 4, .block_tokens = 64, .heads = 4, .key_size = 128, .layer_count = 2};
  CacheShape mixed = shape;
  mixed.element = Element::kInt8;
  mixed.value_element = Element::kFp16;
  CacheShape latent = shape;
  latent.key_size = 512, latent.value_size = 64, latent.heads = 1;
  CacheShape bytes = shape;
  bytes.element = Element::kE4M3;
  for (const Layout& layout :
       {layouts::fractal_nz(mixed).value(), layouts::ds_mla(latent).value(), layouts::indexer(shape).value(),
        layouts::nvfp4(shape, layouts::ScaleOrder::kLinear).value(),
        layouts::nvfp4(shape, layouts::ScaleOrder::kSwizzledValues).value(),
        layouts::with_token_head_scales(layouts::hnd(bytes).value()).value(), layouts::inline_scales_nhd(bytes).value(),
        layouts::head_folded(shape).value()}) {
    SCOPED_TRACE(to_string(layout));
    TestCache cache(layout);
    TestCache rows(dense_rows(layout, 100));
    rows.fill_random(random_);
    const auto slots = random_slots(random_, 100, layout.slot_count(), true);
    ASSERT_NO_FATAL_FAILURE(expect_copied(cache, Rows::slots(slots.data()), rows, Rows::range(), 100));
    TestCache store(layouts::store_block(layout, 1, 3).value());
    const std::vector<std::int64_t> pages = {3, 0, 2};
    const std::vector<std::int64_t> blocks = {0, 1, 2};
    cache.fill_random(random_);
    ASSERT_NO_FATAL_FAILURE(
        expect_copied(store, Rows::blocks(blocks.data(), 64), cache, Rows::blocks(pages.data(), 64), 192));
  }
}

// C: every ordered pair of layouts, whole blocks, there and back.
TEST_P(CopyMatrixTest, EveryPairOfLayoutsConvertsThereAndBack) {
  SCOPED_TRACE(seed_text(seed_));
  for (const Element element : {Element::kBf16, Element::kInt8}) {
    const CacheShape shape{
        .block_count = 6, .block_tokens = 32, .heads = 4, .key_size = 64, .layer_count = 3, .element = element};
    const std::vector<Layout> all = {layouts::nhd(shape).value(),
                                     layouts::hnd(shape).value(),
                                     layouts::packed_hnd(shape).value(),
                                     layouts::x_packed(shape).value(),
                                     layouts::fractal_nz(shape).value(),
                                     layouts::cross_layer(shape).value(),
                                     layouts::store_block(layouts::nhd(shape).value(), 2, 6).value()};
    const std::vector<std::int64_t> to_blocks = {5, 0, 3, -1, 2};
    const std::vector<std::int64_t> from_blocks = {1, 4, 5, 2, 0};
    std::size_t pairs = 0;
    for (const Layout& first : all) {
      for (const Layout& second : all) {
        if (first.name == second.name) continue;
        SCOPED_TRACE(first.name + " to " + second.name + " " + std::string(element_name(element)));
        ++pairs;
        TestCache from(first);
        from.fill_random(random_);
        TestCache to(second);
        ASSERT_NO_FATAL_FAILURE(
            expect_copied(to, Rows::blocks(to_blocks.data(), 32), from, Rows::blocks(from_blocks.data(), 32), 5 * 32));
        TestCache back = from;
        ASSERT_NO_FATAL_FAILURE(
            expect_copied(back, Rows::blocks(from_blocks.data(), 32), to, Rows::blocks(to_blocks.data(), 32), 5 * 32));
        ASSERT_TRUE(same_bytes(back, from));
      }
    }
    EXPECT_EQ(pairs, 42u);
  }
}

// C: a call may end in the middle of a block, on either side, in any layout; the tokens behind its end stay.
TEST_P(CopyMatrixTest, ACallMayEndInTheMiddleOfABlock) {
  SCOPED_TRACE(seed_text(seed_));
  const std::vector<std::int64_t> to_blocks = {5, 0, 3, 2}, from_blocks = {1, 4, 5, 0};
  const Rows to_rows = Rows::blocks(to_blocks.data(), 16), from_rows = Rows::blocks(from_blocks.data(), 16);
  for (const NamedMaker& maker : copy_layouts()) {
    const Layout layout =
        maker.make({.block_count = 6, .block_tokens = 16, .heads = 2, .key_size = 32, .value_size = 32}).value();
    for (const std::int64_t count : {1, 15, 16, 17, 48, 63, 64}) {
      SCOPED_TRACE(std::string(maker.name) + ", " + std::to_string(count) + " rows");
      TestCache to(layout), from(layout);
      from.fill_random(random_);
      ASSERT_NO_FATAL_FAILURE(expect_copied(to, to_rows, from, from_rows, count));
    }
  }
}

// A: an id beyond the cache is refused or skipped, whatever its product with a block's tokens overflows to.
TEST_P(CopyMatrixTest, IdsFarBeyondTheCacheReachNoSlotOfIt) {
  SCOPED_TRACE(seed_text(seed_));
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kNinthOf17 = 0x7878787878787879;  // 17 times it is 9, modulo 2^64
  for (const std::int64_t tokens : {16, 17, 1}) {
    const Layout layout = layouts::nhd({.block_count = 4, .block_tokens = tokens, .heads = 2, .key_size = 32}).value();
    for (const std::int64_t far :
         {std::int64_t{4}, std::int64_t{1} << 28, std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 59,
          std::int64_t{1} << 60, std::int64_t{1} << 62, kMax / tokens, kMax / tokens - 1, kMax - 1, kMax, kNinthOf17}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens a block, id " + std::to_string(far));
      const std::vector<std::int64_t> beyond = {far, 1, 2, 3}, holes = {-1, 1, 2, 3};
      TestCache cache(layout), rows(dense_rows(layout, 4 * tokens));
      rows.fill_random(random_);
      TestCache want = cache;
      const std::int64_t count = 4 * tokens;
      const auto moved =
          backend().permute(cache, Rows::blocks(beyond.data(), tokens), rows, Rows::range(), count, Operation());
      if (backend().refuses_slots()) {
        EXPECT_EQ(moved.error(), Errc::kBadRequest);
      } else {
        ASSERT_TRUE(moved);
        copy_elements(want, Rows::blocks(holes.data(), tokens), rows, Rows::range(), count);
      }
      EXPECT_TRUE(same_bytes(cache, want));
    }
  }
}

// C: what four ranks wrote of a block, two read, and one; the groups are the wire's.
TEST_P(CopyMatrixTest, RanksOfOtherSizesReadEachOthersHeads) {
  const CacheShape whole{.block_count = 4, .block_tokens = 16, .heads = 8, .key_size = 64, .layer_count = 2};
  const Layout wire = layouts::store_block(layouts::nhd(whole).value(), 8, 4).value();
  TestCache source(layouts::nhd(whole).value());
  source.fill_random(random_);
  TestCache store(wire);
  const std::vector<std::int64_t> blocks = {0, 1, 2, 3};
  const Rows rows = Rows::blocks(blocks.data(), 16);
  for (const std::int64_t ranks : {4, 2, 1}) {
    SCOPED_TRACE(ranks);
    const std::int64_t heads = whole.heads / ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      CacheShape part = whole;
      part.heads = heads;
      TestCache mine(layouts::hnd(part).value());
      const auto slice_of = [&](TestCache& cache) {
        std::vector<void*> pointers;
        for (Bytes& tensor : cache.memory()) pointers.push_back(tensor.data() + 64);
        return bind_layout(slice_heads(cache.layout(), rank * heads, heads).value(), pointers).value();
      };
      ASSERT_TRUE(permute(mine.bound(), rows, slice_of(source), rows, 64));
      if (ranks == 4) {
        ASSERT_TRUE(permute(slice_of(store), rows, mine.bound(), rows, 64));
      }
      TestCache again(layouts::hnd(part).value());
      ASSERT_TRUE(permute(again.bound(), rows, slice_of(store), rows, 64));
      ASSERT_TRUE(same_bytes(again, mine));
    }
  }
}

// H: copy on write, fan-out and swap, in every layout.
TEST_P(CopyMatrixTest, WholeBlocksAreCopiedInEveryLayout) {
  SCOPED_TRACE(seed_text(seed_));
  for (const NamedMaker& maker : copy_layouts()) {
    SCOPED_TRACE(maker.name);
    const Layout layout =
        maker
            .make(
                {.block_count = 9, .block_tokens = 16, .heads = 3, .key_size = 32, .value_size = 32, .layer_count = 4})
            .value();
    TestCache cache(layout);
    cache.fill_random(random_);
    TestCache want = cache;
    const TestCache before = cache;
    const std::vector<std::int64_t> pairs = {0, 5, 3, 7, 0, 8};
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      copy_elements(want, Rows::range(pairs[i + 1] * 16), before, Rows::range(pairs[i] * 16), 16);
    }
    ASSERT_TRUE(copy_blocks(cache.bound(), pairs));
    ASSERT_TRUE(same_bytes(cache, want));
    const std::vector<std::int64_t> sources = {5, 1, 7};
    const std::vector<std::int64_t> targets = {2, 0, 6};
    const std::vector<std::int64_t> ends = {2, 2, 3};
    const TestCache middle = cache;
    copy_elements(want, Rows::range(2 * 16), middle, Rows::range(5 * 16), 16);
    copy_elements(want, Rows::range(0), middle, Rows::range(5 * 16), 16);
    copy_elements(want, Rows::range(6 * 16), middle, Rows::range(7 * 16), 16);
    ASSERT_TRUE(copy_blocks(cache.bound(), sources, targets, ends));
    ASSERT_TRUE(same_bytes(cache, want));
    TestCache host(layout);
    const std::vector<std::int64_t> out = {4, 8, 1};
    const std::vector<std::int64_t> in = {0, 2, 7};
    ASSERT_NO_FATAL_FAILURE(expect_copied(host, Rows::blocks(in.data(), 16), cache, Rows::blocks(out.data(), 16), 48));
  }
}

/// Address space of which only touched pages become memory.
class HugeMemory {
 public:
  explicit HugeMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~HugeMemory() { munmap(memory_, bytes_); }
  HugeMemory(const HugeMemory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_;
  std::size_t bytes_;
};

TEST(HugeCacheTest, OffsetsPassFourGibibytesAndSlotsTwoToTheThirtyOne) {
  CacheShape many_bytes{.block_count = 640, .block_tokens = 1024, .heads = 64, .key_size = 64};
  CacheShape many_slots{
      .block_count = 1 << 24, .block_tokens = 144, .heads = 1, .key_size = 16, .element = Element::kInt8};
  std::mt19937_64 random(1);
  for (const CacheShape& shape : {many_bytes, many_slots}) {
    const Layout layout = layouts::hnd(shape).value();
    ASSERT_GT(layout.tensor_bytes(0) / element_bytes(shape.element), std::int64_t{1} << 31);
    const HugeMemory keys(layout.tensor_bytes(0)), values(layout.tensor_bytes(1));
    if (keys.get() == MAP_FAILED || values.get() == MAP_FAILED) GTEST_SKIP() << "no address space of this size";
    TestCache rows(dense_rows(layout, 3));
    rows.fill_random(random);
    const BoundLayout cache = bind_layout(layout, std::array{keys.get(), values.get()}).value();
    const std::vector<std::int64_t> slots = {layout.slot_count() - 1, 0, layout.slot_count() / 2 + 1};
    ASSERT_TRUE(scatter(cache, Rows::slots(slots.data()), rows.bound(), 3));
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::size_t c = 0; c < 2; ++c) {
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          EXPECT_EQ(
              std::memcmp(cache.address(0, c, slots[static_cast<std::size_t>(i)], head, 0), rows.at(0, c, i, head, 0),
                          static_cast<std::size_t>(shape.key_size * element_bytes(shape.element))),
              0);
        }
      }
    }
  }
}

TEST_P(CopyMatrixTest, RefusesBeforeItWrites) {
  const CacheShape shape{.block_count = 2, .block_tokens = 16, .heads = 2, .key_size = 32};
  TestCache cache(layouts::nhd(shape).value());
  const TestCache before = cache;
  TestCache rows(dense_rows(cache.layout(), 4));
  const std::vector<std::int64_t> beyond = {0, 1, 32, 2};
  if (backend().refuses_slots()) {
    EXPECT_EQ(backend().permute(cache, Rows::slots(beyond.data()), rows, Rows::range(), 4, Operation()).error(),
              Errc::kBadRequest);
    EXPECT_EQ(backend().permute(cache, Rows::range(), rows, Rows::range(), 5, Operation()).error(), Errc::kBadRequest);
  } else {
    TestCache skipped = cache;
    TestCache want = cache;
    const std::vector<std::int64_t> holes = {0, 1, -1, 2};
    copy_elements(want, Rows::slots(holes.data()), rows, Rows::range(), 4);
    ASSERT_TRUE(backend().permute(skipped, Rows::slots(beyond.data()), rows, Rows::range(), 4, Operation()));
    EXPECT_TRUE(same_bytes(skipped, want));
  }
  CacheShape other = shape;
  other.heads = 4;
  TestCache wider(dense_rows(layouts::nhd(other).value(), 4));
  EXPECT_EQ(backend().permute(cache, Rows::range(), wider, Rows::range(), 4, Operation()).error(), Errc::kMismatch);
  EXPECT_EQ(explain_mismatch(cache.layout(), wider.layout(), Operation())->text,
            "store block to NHD: K: head axis: 4 go to 2");
  other = shape;
  other.element = Element::kFp16;
  EXPECT_EQ(explain_mismatch(cache.layout(), layouts::hnd(other).value(), Operation())->text,
            "HND to NHD: K: fp16 is copied to bf16: a cast is needed");
  EXPECT_TRUE(same_bytes(cache, before));
}

KV_INSTANTIATE_MATRIX(CopyMatrixTest);

}  // namespace
}  // namespace kv
