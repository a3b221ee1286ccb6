#include "gpu/paging/cache_size.h"

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
        shape.query_head_count, shape.hidden_size, shape.ffn_size, shape.vocabulary_size}) {
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

double layer_parameter_count(const ModelShape& shape) {
  const auto layers = static_cast<double>(shape.layer_count), hidden = static_cast<double>(shape.hidden_size);
  const double query_size = static_cast<double>(shape.query_head_count) * static_cast<double>(shape.head_size);
  const double kv_size = static_cast<double>(shape.kv_head_count) * static_cast<double>(shape.head_size);
  const double ffn = (shape.has_gated_ffn ? 3 : 2) * static_cast<double>(shape.ffn_size);
  return layers * hidden * (query_size + 2 * kv_size + query_size + ffn);  // Q, K and V, output, FFN
}

/// Each token reads the whole context, and among the new tokens those before it and itself: a triangle, not a square.
double attention_flops(const ModelShape& shape, double token_count, double context_count) {
  const double query_size = static_cast<double>(shape.query_head_count) * static_cast<double>(shape.head_size);
  const double scores = token_count * context_count + token_count * (token_count + 1) / 2;  // (token, token it reads)
  return 4 * static_cast<double>(shape.layer_count) * query_size * scores;                  // q.k, and the sum of v
}

BreakEven break_even(double cache_bytes, double flops, double flops_per_second) {
  KV_ASSERT(cache_bytes > 0 && flops > 0 && flops_per_second > 0);
  const double seconds = flops / flops_per_second;
  return {.recompute_seconds = seconds, .bandwidth = cache_bytes / seconds};
}

}  // namespace kv
