// A prefix's whole way between two engines: out of the pages of one, through a real node, into the pages of another,
// whose layout, page size, place in memory and tensor-parallel size are its own. (docs/kernels.md, "Ranks of other
// sizes".)
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "gpu/named_layouts.h"
#include "gpu/permute.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"
#include "tests/gpu/matrix.h"
#include "tests/gpu/test_cache.h"

namespace kv::e2e {
namespace {

constexpr std::int64_t kBlockTokens = 32;  // of the store: two pages of one engine, half a page of another
constexpr std::int64_t kPathBlocks = 5;
constexpr std::int64_t kPathTokens = kBlockTokens * kPathBlocks;

/// An engine's pages full of random bytes, and where the tokens of one sequence lie in them: anywhere.
struct Engine {
  Engine(Layout layout, std::mt19937_64& random) : cache(std::move(layout)) {
    cache.fill_random(random);
    slots = random_slots(random, kPathTokens, cache.layout().slot_count(), /*has_holes=*/false);
  }
  Rows rows() const { return Rows::slots(slots.data()); }

  TestCache cache;
  std::vector<std::int64_t> slots;
};

CacheShape shape_of(std::int64_t block_tokens, std::int64_t heads = 4, std::int64_t layers = 2) {
  return {.block_count = 2 * kPathTokens / block_tokens,
          .block_tokens = block_tokens,
          .heads = heads,
          .key_size = 64,
          .layer_count = layers};
}
CacheShape latent_shape(std::int64_t block_tokens) {
  CacheShape shape = shape_of(block_tokens, 1);
  shape.key_size = 512, shape.value_size = 64;
  return shape;
}

/// The namespace of blocks that hold what `blocks` describes; of some heads only if `heads` says which.
NamespaceRecord record_of(const Layout& blocks, const std::string& model, const std::string& heads = "") {
  auto record = NamespaceRecord::from_fields({{"model", model},
                                              {"block_size", std::to_string(blocks.block_tokens)},
                                              {"block_bytes", std::to_string(layouts::store_block_bytes(blocks))},
                                              {"layout", "head_group,layer,component,token,head,feature"},
                                              {"head_range", heads}});
  if (!record) throw std::runtime_error(record.error().text);
  return *std::move(record);
}

/// A client whose buffers are store blocks.
class BlockClient {
 public:
  BlockClient(const std::string& endpoint, Transport transport, const Layout& blocks, const std::string& model,
              const std::string& heads = "")
      : client_(endpoint, transport, record_of(blocks, model, heads), static_cast<std::size_t>(blocks.block_count)) {
    void* const memory = client_.memory().data();
    blocks_ = bind_layout(blocks, {&memory, 1}).value();
    std::vector<std::uint32_t> tokens(static_cast<std::size_t>(blocks.block_count * blocks.block_tokens));
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i * i);
    chain_ = hash_chain(client_.record().digest(), tokens, static_cast<std::size_t>(blocks.block_tokens));
  }

  const BoundLayout& blocks() const { return blocks_; }
  std::span<const BlockHash> chain() const { return chain_; }

  /// Puts what the buffers hold; how many blocks the node stored.
  std::size_t put() {
    const auto spans = client_.blocks(chain_.size());
    const std::vector<std::span<const std::byte>> sources(spans.begin(), spans.end());
    const auto put = client_->put(client_.space(), chain_, sources, {.deadline = kDeadline});
    return put ? put->stored : 0;
  }
  /// Wipes the buffers and gets the chain; how many leading blocks there were.
  std::size_t get(GetOptions options = {.deadline = kDeadline}) {
    std::ranges::fill(client_.memory(), std::byte{0xEE});
    const auto spans = client_.blocks(chain_.size());
    const auto got = client_->get(client_.space(), chain_, spans, options);
    return got ? got->block_count : 0;
  }
  /// Forgets block `index` and all after it.
  bool drop_from(std::size_t index) {
    return bool(client_->drop(client_.space(), chain().first(index + 1), kDeadline));
  }

 private:
  TestClient client_;
  BoundLayout blocks_;
  std::vector<BlockHash> chain_;
};

class GpuPathTest : public testing::TestWithParam<Transport> {
 protected:
  GpuPathTest() { random_.seed(seed_); }
  void SetUp() override {
    if (const std::string why = lacks(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  std::string endpoint() const { return endpoint_of(node_, GetParam()); }
  /// A client for blocks of everything that `layout` holds, in so many head groups.
  BlockClient client_for(const Layout& layout, const std::string& model, std::int64_t head_groups = 1,
                         const std::string& heads = "") const {
    return {endpoint(), GetParam(), layouts::store_block(layout, head_groups, kPathBlocks, kBlockTokens).value(), model,
            heads};
  }

  const std::uint64_t seed_ = test_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_text(seed_)};
  std::mt19937_64 random_;
  const NodeProcess node_{node_options(GetParam(), {"--capacity", "256MiB"})};
};

INSTANTIATE_TEST_SUITE_P(Transports, GpuPathTest, testing::Values(Transport::kTcp, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

struct LayoutPair {
  const char* name;
  Layout from, to;
};
std::vector<LayoutPair> layout_pairs() {
  using namespace layouts;
  CacheShape quarter = shape_of(16);
  quarter.element = Element::kInt8;
  return {{"NHD to HND", nhd(shape_of(16)).value(), hnd(shape_of(64)).value()},
          {"5-D to x-packed K, transposed V", joint_nhd(shape_of(16)).value(), x_packed(shape_of(16)).value()},
          {"packed to 5-D", packed_hnd(shape_of(32)).value(), joint_hnd(shape_of(8)).value()},
          {"kv-first to NZ", kv_first_nhd(shape_of(16)).value(), fractal_nz(shape_of(16)).value()},
          {"NZ to packed, one byte", fractal_nz(quarter).value(), packed_nhd(quarter).value()},
          {"MLA whole to split", mla(latent_shape(64)).value(), mla_split(latent_shape(16)).value()},
          {"ds_mla to pages of another size", ds_mla(latent_shape(64)).value(), ds_mla(latent_shape(1)).value()},
          {"cross-layer to slot pool", cross_layer(shape_of(16)).value(), slot_pool(shape_of(1)).value()},
          {"NVFP4 to swizzled scales", nvfp4(shape_of(16), ScaleOrder::kLinear).value(),
           nvfp4(shape_of(16), ScaleOrder::kSwizzledValues).value()},
          {"pages to a plain batch", hnd(shape_of(16)).value(), batched(shape_of(2 * kPathTokens)).value()}};
}

TEST_P(GpuPathTest, WhatLiesInPagesOfOneLayoutReturnsInPagesOfAnother) {
  for (auto& [name, from, to] : layout_pairs()) {
    SCOPED_TRACE(name);
    Engine writer(from, random_), reader(to, random_);
    {
      BlockClient client = client_for(from, name);
      ASSERT_TRUE(gather(client.blocks(), writer.cache.bound(), writer.rows(), kPathTokens));
      ASSERT_EQ(client.put(), kPathBlocks);
    }
    BlockClient client = client_for(to, name);
    ASSERT_EQ(client.get(), kPathBlocks);
    for (std::size_t i = 0; i < 7; ++i) reader.slots[i] = -1;  // the reader has these tokens already
    TestCache want = reader.cache;
    copy_elements(want, reader.rows(), writer.cache, writer.rows(), kPathTokens);
    ASSERT_FALSE(same_bytes(reader.cache, want));
    ASSERT_TRUE(scatter(reader.cache.bound(), reader.rows(), client.blocks(), kPathTokens));
    EXPECT_TRUE(same_bytes(reader.cache, want));  // every element of every token, and nothing else
  }
}

TEST_P(GpuPathTest, EachLayerIsInItsPagesBeforeTheNextHasLanded) {
  const Layout from = layouts::nhd(shape_of(16, 8, 3)).value();  // 64 KiB a layer: a stripe, so segments end there
  Engine writer(from, random_), reader(layouts::x_packed(shape_of(16, 8, 3)).value(), random_);
  BlockClient client = client_for(from, "by layer");
  ASSERT_TRUE(gather(client.blocks(), writer.cache.bound(), writer.rows(), kPathTokens));
  ASSERT_EQ(client.put(), kPathBlocks);

  struct Arrival {
    const BoundLayout& blocks;
    Engine& reader;
    Engine& writer;
    TestCache want;
    std::vector<std::size_t> layers = {};
    bool is_right = true;
  } arrival{client.blocks(), reader, writer, reader.cache};
  const auto on_segment = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& [blocks, to, from_engine, want, layers, is_right] = *static_cast<Arrival*>(context);
    const auto layer = static_cast<std::int64_t>(segment);
    const std::int64_t tokens = static_cast<std::int64_t>(block_count) * kBlockTokens;
    layers.push_back(segment);
    is_right = is_right &&
               scatter(slice_layers(to.cache.bound(), layer, 1), to.rows(), slice_layers(blocks, layer, 1), tokens);
    for (std::int64_t row = 0; row < tokens; ++row) {
      for (const Role role : {Role::kKey, Role::kValue}) {
        for (std::int64_t head = 0; head < 8; ++head) {
          for (std::int64_t f = 0; f < 64; ++f) {
            is_right = is_right && to.cache.code(layer, role, to.slots[static_cast<std::size_t>(row)], head, f) ==
                                       from_engine.cache.code(
                                           layer, role, from_engine.slots[static_cast<std::size_t>(row)], head, f);
          }
        }
      }
    }
  };
  const std::uint64_t ends[] = {64 << 10, 128 << 10, 192 << 10};
  GetOptions options{.deadline = kDeadline};
  options.segment_ends = ends;
  options.on_segment = {on_segment, &arrival};
  EXPECT_EQ(client.get(options), kPathBlocks);
  EXPECT_TRUE(arrival.is_right);
  EXPECT_EQ(arrival.layers, (std::vector<std::size_t>{0, 1, 2}));
}

/// A model of 8 kv heads. Whatever the rank count, rank r holds heads [r, r + 1) * 8 / ranks, in a layout of its own.
class HeadGroupTest : public GpuPathTest {
 protected:
  static constexpr std::int64_t kHeads = 8, kGroups = 4, kGroupHeads = kHeads / kGroups;

  HeadGroupTest() : model_(layouts::hnd(shape_of(16, kHeads)).value(), random_) {}

  /// Rank `rank`'s own cache, with what the model computed for its heads in it if it `has_tokens`.
  std::unique_ptr<Engine> make_rank(std::int64_t ranks, std::int64_t rank, bool has_tokens) {
    const CacheShape shape = shape_of(ranks == 2 ? 16 : 32, kHeads / ranks);
    auto engine = std::make_unique<Engine>(
        (ranks == 4 ? layouts::fractal_nz(shape) : layouts::joint_nhd(shape)).value(), random_);
    if (has_tokens) for_each_element(ranks, [&](auto... at) { copy_element(*engine, ranks, rank, at...); });
    return engine;
  }
  /// Whether each element of the rank's cache is what the model computed for that token and head.
  bool is_right(const Engine& engine, std::int64_t ranks, std::int64_t rank, std::int64_t tokens = kPathTokens) {
    bool is_equal = true;
    for_each_element(ranks, [&](std::int64_t layer, Role role, std::size_t token, std::int64_t head, auto f) {
      if (static_cast<std::int64_t>(token) >= tokens) return;
      const std::int64_t first = rank * kHeads / ranks;
      is_equal = is_equal && engine.cache.code(layer, role, engine.slots[token], head, f) ==
                                 model_.cache.code(layer, role, model_.slots[token], first + head, f);
    });
    return is_equal;
  }
  /// One client for each head group: its blocks are a namespace of their own.
  BlockClient group_client(std::int64_t group) const {
    const Layout heads = slice_heads(model_.cache.layout(), group * kGroupHeads, kGroupHeads).value();
    const std::int64_t first = group * kGroupHeads;
    return client_for(heads, "sliced", 1, std::to_string(first) + "-" + std::to_string(first + kGroupHeads - 1));
  }
  /// Each of `ranks` ranks puts the groups that it holds.
  void put_by(std::int64_t ranks) {
    const std::int64_t groups = kGroups / ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto engine = make_rank(ranks, rank, true);
      for (std::int64_t i = 0; i < groups; ++i) {
        BlockClient client = group_client(rank * groups + i);
        const BoundLayout part = slice_heads(engine->cache.bound(), i * kGroupHeads, kGroupHeads).value();
        ASSERT_TRUE(gather(client.blocks(), part, engine->rows(), kPathTokens));
        ASSERT_EQ(client.put(), kPathBlocks);
      }
    }
  }
  /// One of `ranks` ranks gets the groups that it holds: the prefix is what all of them have.
  std::size_t get_by(Engine& engine, std::int64_t ranks, std::int64_t rank) {
    const std::int64_t groups = kGroups / ranks;
    std::size_t block_count = kPathBlocks;
    for (std::int64_t i = 0; i < groups; ++i) {
      BlockClient client = group_client(rank * groups + i);
      block_count = std::min(block_count, client.get());
      const BoundLayout part = slice_heads(engine.cache.bound(), i * kGroupHeads, kGroupHeads).value();
      EXPECT_TRUE(scatter(part, engine.rows(), client.blocks(), static_cast<std::int64_t>(block_count) * kBlockTokens));
    }
    return block_count;
  }

  Engine model_;  ///< What one rank alone would have computed.

 private:
  /// visit(layer, role, token, head, feature) with the rank's own head numbers.
  template <class Visit>
  void for_each_element(std::int64_t ranks, Visit visit) const {
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (const Role role : {Role::kKey, Role::kValue}) {
        for (std::size_t token = 0; token < kPathTokens; ++token) {
          for (std::int64_t head = 0; head < kHeads / ranks; ++head) {
            for (std::int64_t f = 0; f < 64; ++f) visit(layer, role, token, head, f);
          }
        }
      }
    }
  }
  void copy_element(Engine& engine, std::int64_t ranks, std::int64_t rank, std::int64_t layer, Role role,
                    std::size_t token, std::int64_t head, std::int64_t f) const {
    const std::int64_t first = rank * kHeads / ranks;
    std::memcpy(engine.cache.at(layer, engine.cache.column(role), engine.slots[token], head, f),
                model_.cache.at(layer, model_.cache.column(role), model_.slots[token], first + head, f), 2);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, HeadGroupTest,
                         testing::Values(Transport::kTcp, Transport::kShm, Transport::kVerbs),
                         [](const auto& one) { return std::string(transport_name(one.param)); });

TEST_P(HeadGroupTest, FourRanksAndOneReadWhatTwoRanksWrote) {
  put_by(2);
  for (const std::int64_t ranks : {4, 2, 1}) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto engine = make_rank(ranks, rank, false);
      ASSERT_FALSE(is_right(*engine, ranks, rank));
      EXPECT_EQ(get_by(*engine, ranks, rank), kPathBlocks);
      EXPECT_TRUE(is_right(*engine, ranks, rank)) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST_P(HeadGroupTest, APrefixIsWhatEveryHeadGroupHas) {
  put_by(2);
  ASSERT_TRUE(group_client(2).drop_from(3));
  const auto whole = make_rank(1, 0, false);
  EXPECT_EQ(get_by(*whole, 1, 0), 3u);
  EXPECT_TRUE(is_right(*whole, 1, 0, 3 * kBlockTokens));
  const auto quarter = make_rank(4, 1, false);
  EXPECT_EQ(get_by(*quarter, 4, 1), kPathBlocks);  // what others lack is no concern of this rank
}

TEST_P(HeadGroupTest, RanksThatShareMemoryFillAndReadByteRangesOfOneBlock) {
  BlockClient client = client_for(model_.cache.layout(), "shared", kGroups);
  const std::int64_t block_bytes = layouts::store_block_bytes(client.blocks().layout);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const auto engine = make_rank(2, rank, true);
    const BoundLayout part = slice_heads(client.blocks(), rank * kHeads / 2, kHeads / 2).value();
    EXPECT_EQ(part.bases[0] - client.blocks().bases[0], rank * block_bytes / 2);  // a half of the block, in one piece
    ASSERT_TRUE(gather(part, engine->cache.bound(), engine->rows(), kPathTokens));
  }
  ASSERT_EQ(client.put(), kPathBlocks);
  ASSERT_EQ(client.get(), kPathBlocks);  // once for all ranks
  for (const std::int64_t ranks : {4, 1}) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto engine = make_rank(ranks, rank, false);
      ASSERT_FALSE(is_right(*engine, ranks, rank));
      const BoundLayout part = slice_heads(client.blocks(), rank * kHeads / ranks, kHeads / ranks).value();
      ASSERT_TRUE(scatter(engine->cache.bound(), engine->rows(), part, kPathTokens));
      EXPECT_TRUE(is_right(*engine, ranks, rank)) << "rank " << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace kv::e2e
