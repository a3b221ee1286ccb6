// gpu/named_layouts.h: engines' layouts by name. Each is a line or three over make_layout (gpu/layout.h);
// docs/kernels.md draws one of each family and shows how to add another.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "gpu/layout.h"

namespace kv {

/// Dimensions of most caches. key_size and value_size are head sizes; value_size 0 means key_size.
struct CacheShape {
  std::int64_t block_count = 0;
  std::int64_t block_tokens = 16;
  std::int64_t heads = 1;
  std::int64_t key_size = 128;
  std::int64_t value_size = 0;
  std::int64_t layer_count = 1;
  Element element = Element::kBf16;
  Element value_element = Element::kByte;  ///< kByte means `element`.
};

/// Shapes are written [NB blocks, BS tokens, H heads, D features]. By default each layer has its own allocation.
/// Errors: a shape that the layout cannot hold, as a sentence.
namespace layouts {

Checked<Layout> nhd(const CacheShape& shape);           ///< K, V: [NB, BS, H, D]
Checked<Layout> hnd(const CacheShape& shape);           ///< K, V: [NB, H, BS, D]
Checked<Layout> joint_nhd(const CacheShape& shape);     ///< [NB, 2, BS, H, D]
Checked<Layout> joint_hnd(const CacheShape& shape);     ///< [NB, 2, H, BS, D]
Checked<Layout> kv_first_nhd(const CacheShape& shape);  ///< [2, NB, BS, H, D]
Checked<Layout> kv_first_hnd(const CacheShape& shape);  ///< [2, NB, H, BS, D]
Checked<Layout> packed_hnd(const CacheShape& shape);    ///< [NB, H, BS, 2D]: K, then V inside the row
Checked<Layout> packed_nhd(const CacheShape& shape);    ///< [NB, BS, H, 2D]
Checked<Layout> x_packed(const CacheShape& shape);      ///< K [NB, H, D/x, BS, x], x = 16 bytes; V [NB, H, D, BS]
Checked<Layout> fractal_nz(const CacheShape& shape);    ///< K, V: [NB, H*D/X, BS, X], X = 32 bytes; BS % 16 == 0
/// [NB, layers, 2, H, BS, D]: one allocation for all layers.
Checked<Layout> cross_layer(const CacheShape& shape);
/// K, V and a count of averaged tokens: [NB, BS, 1, D], [NB, BS]. Heads are folded into the blocks: a slot belongs to
/// one (sequence, head), see gpu/compress.h. Ignores `shape.heads`.
Checked<Layout> head_folded(const CacheShape& shape);

Checked<Layout> mla(const CacheShape& shape);        ///< [NB, BS, key_size + value_size]: latent (512), then rope (64)
Checked<Layout> mla_split(const CacheShape& shape);  ///< [NB, BS, key_size], [NB, BS, value_size]
/// [NB, BS, 656 bytes]: 512 e4m3 latents, 4 fp32 scales, 64 bf16 rope. Uses the counts of `shape` alone.
Checked<Layout> ds_mla(const CacheShape& shape);
/// Per block BS * key_size e4m3 (128), then BS fp32 scales.
Checked<Layout> indexer(const CacheShape& shape);

/// NVFP4: two e2m1 in a byte, an e4m3 scale for 16 values; [NB, H, BS, D/2] and [NB, H, BS, D/16]. Swizzled: each
/// head's tile of value scales has four tokens of one feature block side by side. The caller keeps the global scale.
enum class ScaleOrder { kLinear, kSwizzledValues };
Checked<Layout> nvfp4(const CacheShape& shape, ScaleOrder order);

/// `cache` (any layout with K and V of one byte) with fp32 scales per token and head, in separate tensors [NB, BS, H].
Checked<Layout> with_token_head_scales(Layout cache);
/// [NB, BS, H, D + 4 bytes]: each head's row is followed by its fp32 scale. K, V in two allocations. One-byte elements.
Checked<Layout> inline_scales_nhd(const CacheShape& shape);

Checked<Layout> slot_pool(const CacheShape& shape);  ///< K, V: [slots, H, D]; pages of block_tokens slots, 1 or more
Checked<Layout> batched(const CacheShape& shape);    ///< K, V: [B, H, S, D]; a block is a sequence, block_tokens its S
Checked<Layout> ragged(const CacheShape& shape);  ///< K, V: [T, H, D], sequences end to end; T = block_tokens, NB = 1
Checked<Layout> chunk(const CacheShape& shape);   ///< K, V of one chunk side by side: [NB, 2, H, c, D]

/// Any of the above by the name of its function, "nvfp4" and "nvfp4_swizzled" by the order of scales, as C and Python
/// have them; nullopt for another name.
std::optional<Checked<Layout>> named(std::string_view name, const CacheShape& shape);

/// The store's own block of all components of `cache`: [head group][layer][component][token][head][feature], one
/// allocation of `block_count` such blocks, so that a tensor-parallel rank reads contiguous bytes. Requires: each
/// component's head count is 1 or a multiple of `head_groups`.
/// `block_tokens`: in a store's block, if not as many as in the cache's.
Checked<Layout> store_block(const Layout& cache, std::int64_t head_groups, std::int64_t block_count,
                            std::optional<std::int64_t> block_tokens = std::nullopt);
/// Bytes of one store block: the namespace's block_bytes.
std::int64_t store_block_bytes(const Layout& store_block);

}  // namespace layouts
}  // namespace kv
