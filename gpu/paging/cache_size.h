// gpu/paging/cache_size.h: size of a KV cache, cost of computing it, and whether fetching is faster. Arithmetic on a
// model's shape; 1 multiplication and addition counts as 2 floating point operations. gpu/paging/generation_work.h has
// the work of generating tokens, with a cache and without.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kv {

enum class CacheFormat : std::uint8_t {
  kFp32,
  kFp16,              ///< and bf16
  kFp8,               ///< and int8, with scales independent of the token
  kInt8PerTokenHead,  ///< int8 or fp8, and an fp32 scale for each token, head and component
  kNvFp4,             ///< 4 bits an element, and an e4m3 scale for every 16
  kFp8DsMla,          ///< MLA: 512 e4m3, 4 fp32 scales, 64 bf16
};
inline constexpr CacheFormat kCacheFormats[] = {CacheFormat::kFp32,  CacheFormat::kFp16,
                                                CacheFormat::kFp8,   CacheFormat::kInt8PerTokenHead,
                                                CacheFormat::kNvFp4, CacheFormat::kFp8DsMla};
std::string_view cache_format_name(CacheFormat format);  ///< "fp16", ...
std::optional<CacheFormat> cache_format_from_name(std::string_view name);

/// A transformer's size parameters. Members for FLOPs only may be 0, and then cost nothing.
struct ModelShape {
  std::uint64_t layer_count = 0;
  std::uint64_t kv_head_count = 0;  ///< 1 with MLA
  std::uint64_t head_size = 0;      ///< Of keys and of values. MLA: of the computed queries and keys.
  std::uint64_t latent_size = 0;    ///< MLA: compressed elements that replace keys and values; 0: no MLA
  std::uint64_t rope_size = 0;      ///< MLA: rotated elements of the key, kept beside them
  bool has_sparse_index = false;    ///< An indexer's keys too: 128 e4m3 and an fp32 scale in every layer

  std::uint64_t query_head_count = 0;
  std::uint64_t value_head_size = 0;    ///< MLA: of the computed values
  std::uint64_t query_latent_size = 0;  ///< MLA: of the compressed queries; 0: computed from the hidden state
  std::uint64_t hidden_size = 0;
  std::uint64_t ffn_size = 0;  ///< Of all experts that one token visits.
  bool has_gated_ffn = true;   ///< Three matrices instead of two.
  std::uint64_t vocabulary_size = 0;
};

inline constexpr std::uint64_t kTokenCountMax = std::uint64_t{1} << 31;  ///< Of all sequences that are sized together.

/// Checks that every member is at most 2^24 and that 2^31 tokens fit 64 bits. Errors: kBadRequest for a shape without
/// layers, heads or head size, or with a member out of range.
Result<void> check_shape(const ModelShape& shape);

/// Bytes of one token's keys and values in all layers. Errors: of check_shape(); kUnsupported if the format does not
/// fit the shape (NVFP4 needs head sizes that 16 divides and no MLA, kFp8DsMla needs MLA of 512 and 64).
Result<std::uint64_t> cache_bytes_per_token(const ModelShape& shape, CacheFormat format);

// -- models whose layers differ

enum class LayerKind : std::uint8_t {
  kFull,    ///< Keys and values of every token.
  kWindow,  ///< Of the last `token_limit` tokens.
  kChunk,   ///< Of the tokens since the last multiple of `token_limit`.
  kState,   ///< One state, however many tokens it stands for.
};
std::string_view layer_kind_name(LayerKind kind);  ///< "full", ...

/// Layers that keep the same kind of data for a sequence.
struct LayerGroup {
  LayerKind kind = LayerKind::kFull;
  std::uint64_t token_limit = 0;
  std::vector<std::uint32_t> layers;
  /// Further layers, which read the keys and values of these and keep none.
  std::uint64_t sharing_layer_count = 0;
  /// Elements of one layer's state: of its convolution (16 bits unless the cache is fp32), and its recurrence (fp32).
  std::uint64_t convolution_size = 0, recurrence_size = 0;
};

/// The cache of a whole model. A layer with attention and a state is in two groups.
struct ModelCache {
  ModelShape shape;  ///< Of a layer with attention; its heads are 0 if no layer has any. Counts all layers.
  std::vector<LayerGroup> groups;
};

/// The same shape in all layers.
ModelCache uniform_cache(const ModelShape& shape);

/// Windows and chunks as full attention, for stores of whole prefixes.
ModelCache without_windows(ModelCache cache);

/// Bytes of one token in the group's layers, and of their states. Errors: as cache_bytes_per_token().
Result<std::uint64_t> group_bytes_per_token(const ModelShape& shape, const LayerGroup& group, CacheFormat format);
std::uint64_t group_state_bytes(const LayerGroup& group, CacheFormat format);
/// Bytes that a group or the whole cache needs at most while a sequence grows to `token_count` tokens. Errors: also
/// kBadRequest for more than 2^31 tokens.
Result<std::uint64_t> group_bytes(const ModelShape& shape, const LayerGroup& group, CacheFormat format,
                                  std::uint64_t token_count);
Result<std::uint64_t> cache_bytes(const ModelCache& cache, CacheFormat format, std::uint64_t token_count);

// -- floating point operations, of all layers unless said otherwise

/// Weights in the layers that apply to every token, without norms, biases and routers. 0 if the shape lacks a size.
double layer_parameter_count(const ModelShape& shape);
/// The same, 0 also for layers with states, and for layers that share others' keys: they have other weights.
double layer_parameter_count(const ModelCache& cache);
/// Scores and weighted sums of `token_count` tokens behind `context_count` others, as full attention in all layers.
double attention_flops(const ModelShape& shape, double token_count, double context_count = 0);

/// Fetching takes bytes / bandwidth, computing takes operations / rate. Both are linear in the number of tokens (except
/// attention's share, which favours fetching), so one bandwidth decides.
struct BreakEven {
  double recompute_seconds;
  double bandwidth;  ///< Bytes a second at which both take equally long: a faster store wins.

  double fetch_speedup(double bytes_per_second) const { return bytes_per_second / bandwidth; }
};
/// For some tokens: their cache's bytes, and the operations that compute it, to first order 2 * parameters per token.
/// `flops_per_second` is prefill's actual rate, not the data sheet's. Requires: all arguments positive.
BreakEven break_even(double cache_bytes, double flops, double flops_per_second);

}  // namespace kv
