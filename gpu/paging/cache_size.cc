#include "gpu/paging/cache_size.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

// Far above any model; products of two members are exact in a double. A larger member is a mistake.
constexpr std::uint64_t kMemberMax = std::uint64_t{1} << 24;
constexpr std::uint64_t kSparseIndexBytes = 128 + sizeof(float);
// DeepSeek's packed row: the latent part in e4m3 with a scale for every 128 elements, the rotated part in bf16.
constexpr std::uint64_t kDsMlaLatent = 512, kDsMlaRope = 64, kDsMlaBytes = 512 + 4 * sizeof(float) + 64 * 2;

/// One head's key or value of one token; 0: the format does not fit.
std::uint64_t head_bytes(std::uint64_t head_size, CacheFormat format) {
  switch (format) {
    case CacheFormat::kFp32: return 4 * head_size;
    case CacheFormat::kFp16: return 2 * head_size;
    case CacheFormat::kFp8: return head_size;
    case CacheFormat::kInt8PerTokenHead: return head_size + sizeof(float);
    case CacheFormat::kNvFp4: return head_size % 16 == 0 ? head_size / 2 + head_size / 16 : 0;
    case CacheFormat::kFp8DsMla: return 0;
  }
  return 0;
}

/// One token's entry in one layer; 0: the format does not fit.
std::uint64_t layer_bytes(const ModelShape& shape, CacheFormat format) {
  if (shape.latent_size == 0) return 2 * shape.kv_head_count * head_bytes(shape.head_size, format);
  if (format == CacheFormat::kFp8DsMla) {
    return shape.latent_size == kDsMlaLatent && shape.rope_size == kDsMlaRope ? kDsMlaBytes : 0;
  }
  if (format == CacheFormat::kInt8PerTokenHead || format == CacheFormat::kNvFp4) return 0;
  return head_bytes(shape.latent_size + shape.rope_size, format);
}

}  // namespace

std::string_view cache_format_name(CacheFormat format) {
  constexpr std::string_view kNames[] = {"fp32", "fp16", "fp8", "int8_per_token_head", "nvfp4", "fp8_ds_mla"};
  return kNames[static_cast<std::size_t>(format)];
}

std::optional<CacheFormat> cache_format_from_name(std::string_view name) {
  for (const CacheFormat format : kCacheFormats) {
    if (cache_format_name(format) == name) return format;
  }
  if (name == "bf16") return CacheFormat::kFp16;
  return std::nullopt;
}

Result<void> check_shape(const ModelShape& shape) {
  for (const std::uint64_t member :
       {shape.layer_count, shape.kv_head_count, shape.head_size, shape.latent_size, shape.rope_size,
        shape.query_head_count, shape.value_head_size, shape.query_latent_size, shape.hidden_size, shape.ffn_size,
        shape.vocabulary_size}) {
    if (member > kMemberMax) return Errc::kBadRequest;
  }
  const bool has_heads = shape.latent_size > 0 || (shape.kv_head_count > 0 && shape.head_size > 0);
  if (shape.layer_count == 0 || !has_heads) return Errc::kBadRequest;
  // 2^31 tokens must fit 64 bits at 4 bytes an element. Tested in doubles, since the product could overflow.
  const double elements = 2 * static_cast<double>(shape.kv_head_count) * static_cast<double>(shape.head_size + 1) +
                          static_cast<double>(shape.latent_size + shape.rope_size + kSparseIndexBytes + kDsMlaBytes);
  if (4 * elements * static_cast<double>(shape.layer_count) >= 0x1p32) return Errc::kBadRequest;
  return {};
}

Result<std::uint64_t> cache_bytes_per_token(const ModelShape& shape, CacheFormat format) {
  const auto valid = check_shape(shape);
  if (!valid) return valid.error();
  const std::uint64_t bytes = layer_bytes(shape, format);
  if (bytes == 0) return Errc::kUnsupported;
  return shape.layer_count * (bytes + (shape.has_sparse_index ? kSparseIndexBytes : 0));
}

std::string_view layer_kind_name(LayerKind kind) {
  constexpr std::string_view kNames[] = {"full", "window", "chunk", "state"};
  return kNames[static_cast<std::size_t>(kind)];
}

ModelCache uniform_cache(const ModelShape& shape) {
  ModelCache cache{.shape = shape, .groups = {LayerGroup{}}};
  cache.groups[0].layers.resize(shape.layer_count);
  std::iota(cache.groups[0].layers.begin(), cache.groups[0].layers.end(), 0U);
  return cache;
}

ModelCache without_windows(ModelCache cache) {
  LayerGroup full;
  std::vector<LayerGroup> groups;
  for (LayerGroup& group : cache.groups) {
    if (group.kind == LayerKind::kState) {
      groups.push_back(std::move(group));
    } else {
      full.layers.insert(full.layers.end(), group.layers.begin(), group.layers.end());
      full.sharing_layer_count += group.sharing_layer_count;
    }
  }
  std::ranges::sort(full.layers);
  if (!full.layers.empty()) groups.insert(groups.begin(), std::move(full));
  cache.groups = std::move(groups);
  return cache;
}

Result<std::uint64_t> group_bytes_per_token(const ModelShape& shape, const LayerGroup& group, CacheFormat format) {
  if (group.kind == LayerKind::kState) return std::uint64_t{0};
  ModelShape own = shape;
  own.layer_count = group.layers.size();
  return cache_bytes_per_token(own, format);
}

std::uint64_t group_state_bytes(const LayerGroup& group, CacheFormat format) {
  const std::uint64_t element = format == CacheFormat::kFp32 ? 4 : 2;
  return group.layers.size() * (group.convolution_size * element + group.recurrence_size * sizeof(float));
}

Result<std::uint64_t> group_bytes(const ModelShape& shape, const LayerGroup& group, CacheFormat format,
                                  std::uint64_t token_count) {
  if (token_count > kTokenCountMax) return Errc::kBadRequest;
  const auto token_bytes = group_bytes_per_token(shape, group, format);
  if (!token_bytes) return token_bytes.error();
  const std::uint64_t kept = group.token_limit == 0 ? token_count : std::min(token_count, group.token_limit);
  return *token_bytes * kept + group_state_bytes(group, format);
}

Result<std::uint64_t> cache_bytes(const ModelCache& cache, CacheFormat format, std::uint64_t token_count) {
  std::uint64_t sum = 0;
  for (const LayerGroup& group : cache.groups) {
    const auto bytes = group_bytes(cache.shape, group, format, token_count);
    if (!bytes) return bytes.error();
    sum += *bytes;
  }
  return sum;
}

namespace {

/// Q, K and V, and the output.
double attention_parameter_count(const ModelShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden_size), heads = static_cast<double>(shape.query_head_count);
  const double query_size = heads * static_cast<double>(shape.head_size);
  if (shape.latent_size == 0) {
    const double kv_size = static_cast<double>(shape.kv_head_count) * static_cast<double>(shape.head_size);
    return hidden * (query_size + 2 * kv_size + query_size);
  }
  const auto latent = static_cast<double>(shape.latent_size), rope = static_cast<double>(shape.rope_size);
  const auto query_latent = static_cast<double>(shape.query_latent_size);
  const double query = query_latent == 0 ? hidden * query_size : (hidden + query_size) * query_latent;
  const double value_size = heads * static_cast<double>(shape.value_head_size);
  const double expand = latent * (query_size - heads * rope + value_size);  // the latent row to keys and values
  return query + hidden * (latent + rope) + expand + value_size * hidden;
}

}  // namespace

double layer_parameter_count(const ModelShape& shape) {
  if (shape.query_head_count == 0 || shape.hidden_size == 0 || shape.ffn_size == 0) return 0;
  // An indexer's own weights are in no formula here.
  if (shape.latent_size > 0 && (shape.value_head_size == 0 || shape.has_sparse_index)) return 0;
  const double ffn = (shape.has_gated_ffn ? 3 : 2) * static_cast<double>(shape.ffn_size);
  return static_cast<double>(shape.layer_count) *
         (attention_parameter_count(shape) + static_cast<double>(shape.hidden_size) * ffn);
}

double layer_parameter_count(const ModelCache& cache) {
  const bool is_alike = std::ranges::all_of(cache.groups, [](const LayerGroup& group) {
    return group.kind != LayerKind::kState && group.sharing_layer_count == 0;
  });
  return is_alike ? layer_parameter_count(cache.shape) : 0;
}

/// Each token reads the whole context, and among the new tokens those before it and itself: a triangle, not a square.
double attention_flops(const ModelShape& shape, double token_count, double context_count) {
  const std::uint64_t value_size = shape.value_head_size > 0 ? shape.value_head_size : shape.head_size;
  const double row = static_cast<double>(shape.query_head_count) * static_cast<double>(shape.head_size + value_size);
  const double scores = token_count * context_count + token_count * (token_count + 1) / 2;  // (token, token it reads)
  return 2 * static_cast<double>(shape.layer_count) * row * scores;                         // q.k, and the sum of v
}

BreakEven break_even(double cache_bytes, double flops, double flops_per_second) {
  KV_ASSERT(cache_bytes > 0 && flops > 0 && flops_per_second > 0);
  const double seconds = flops / flops_per_second;
  return {.recompute_seconds = seconds, .bandwidth = cache_bytes / seconds};
}

}  // namespace kv
