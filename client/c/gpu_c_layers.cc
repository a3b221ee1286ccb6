// client/c/gpu_c_layers.cc: kvstore_paging.h's caches by layer. Exceptions stop here.
#include <memory>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "client/kvstore_paging.h"
#include "gpu/layer_caches/growing_cache.h"
#include "gpu/layer_caches/quantised_cache.h"
#include "gpu/layer_caches/sink_cache.h"
#include "gpu/layer_caches/static_cache.h"

struct kvs_layer {
  kv::TokenShape shape;
  bool keeps_batch_count = false;
  std::vector<double> frequencies;  // before the cache that borrows them
  std::unique_ptr<kv::LayerCache> cache;
  const kv::SinkCache* sink = nullptr;  // the same object, if it is one
};

namespace kv {
namespace {

using namespace c_api;

/// Refuses with layouts::batched()'s error for this many tokens of this shape.
void check_tokens(const TokenShape& shape, std::int64_t token_count) {
  const auto layout = layouts::batched({.block_count = shape.batch_count,
                                        .block_tokens = token_count,
                                        .heads = shape.heads,
                                        .key_size = shape.key_size,
                                        .value_size = shape.value_size,
                                        .element = shape.element});
  if (!layout) refuse(KVS_BAD_REQUEST, layout.error().text);
}

void make_sink(const kvs_layer_options& from, kvs_layer* layer) {
  if (from.sink_tokens < 0 || from.sink_tokens >= from.token_capacity) {
    refuse_value("options: sink_tokens", from.sink_tokens, "from 0 to below token_capacity");
  }
  check_rotation("options", from, std::min(kRotarySizeMax, from.key_size), "even, from 2 to 1024 and key_size");
  layer->frequencies.assign(from.frequencies, from.frequencies + from.frequency_count);
  const Rotation rotation{static_cast<RopeStyle>(from.rope_style - 1), from.rotary_size, layer->frequencies.data(),
                          nullptr, 0};
  auto sink = std::make_unique<SinkCache>(layer->shape, from.sink_tokens, from.token_capacity, rotation);
  layer->sink = sink.get();
  layer->cache = std::move(sink);
}

void make_quantised(const kvs_layer_options& from, kvs_layer* layer) {
  QuantisedCache::Config config;
  if (from.bits != 0) config.bits = from.bits;
  if (from.group_size != 0) config.group_size = from.group_size;
  // 0 is the default, as in every struct; so -1 means zero tokens.
  if (from.residual_tokens != 0) config.residual_tokens = from.residual_tokens == -1 ? 0 : from.residual_tokens;
  if (config.bits != 2 && config.bits != 4 && config.bits != 8) {
    refuse_value("options: bits", config.bits, "2, 4 or 8");
  }
  if (config.group_size < 8 || config.group_size % 8 != 0 || config.group_size > kHeadFeaturesMax) {
    refuse_value("options: group_size", config.group_size, "a multiple of 8, at most 4096");
  }
  if (from.residual_tokens < -1) refuse_value("options: residual_tokens", from.residual_tokens, "-1 or more");
  const std::int64_t group = std::min(config.group_size, layer->shape.value_size);
  if (group % 8 != 0 || layer->shape.value_size % group != 0) {
    refuse_value("options: value_size", layer->shape.value_size,
                 "a multiple of group_size, or smaller and a multiple of 8");
  }
  layer->cache = std::make_unique<QuantisedCache>(layer->shape, config);
}

void make_layer(const kvs_layer_options& from, kvs_layer* layer) {
  if (from.kind < KVS_LAYER_GROWING || from.kind > KVS_LAYER_QUANTISED) {
    refuse_value("options: kind", from.kind, "one of KVS_LAYER_*");
  }
  // These two compute with their content, by rotating or quantising, which bytes and narrow floats do not allow here.
  const bool is_computed = from.kind == KVS_LAYER_SINK || from.kind == KVS_LAYER_QUANTISED;
  if (from.element < (is_computed ? KVS_FP16 : KVS_BYTE) || from.element > KVS_FP32) {
    refuse_value("options: element", from.element,
                 is_computed ? "KVS_FP16, KVS_BF16 or KVS_FP32" : "one of kvstore_gpu.h");
  }
  layer->shape = {from.batch_count, from.heads, from.key_size, from.value_size == 0 ? from.key_size : from.value_size,
                  static_cast<Element>(from.element)};
  layer->keeps_batch_count = from.kind == KVS_LAYER_STATIC || from.kind == KVS_LAYER_SLIDING;
  const bool is_bounded = layer->keeps_batch_count || from.kind == KVS_LAYER_SINK;
  if (is_bounded && from.token_capacity < 1) {
    refuse_value("options: token_capacity", from.token_capacity, "1 or more");
  }
  // A bounded cache allocates its capacity at once, so sizes are checked before; a growing one at each update.
  check_tokens(layer->shape, is_bounded ? from.token_capacity : 1);
  switch (from.kind) {
    case KVS_LAYER_GROWING: layer->cache = std::make_unique<GrowingCache>(); break;
    case KVS_LAYER_STATIC: layer->cache = std::make_unique<StaticCache>(layer->shape, from.token_capacity); break;
    case KVS_LAYER_SLIDING: layer->cache = std::make_unique<SlidingCache>(layer->shape, from.token_capacity); break;
    case KVS_LAYER_SINK: make_sink(from, layer); break;
    default: make_quantised(from, layer);
  }
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_layer_create(const kvs_layer_options* given, kvs_layer** layer) {
  return gpu_call([&] {
    if (layer == nullptr) refuse(KVS_BAD_REQUEST, "layer is NULL");
    *layer = nullptr;
    const auto from = read_struct(given);
    auto made = std::make_unique<kvs_layer>();
    make_layer(from, made.get());
    *layer = made.release();
  });
}

void kvs_layer_free(kvs_layer* layer) { delete layer; }

int kvs_layer_update(kvs_layer* layer, const void* keys, const void* values, int64_t token_count,
                     kvs_layer_view* view) {
  return gpu_call([&] {
    if (layer == nullptr || keys == nullptr || values == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    kvs_layer_view out = KVS_LAYER_VIEW_INIT;
    // Checked before an update is made whose view could not be returned.
    write_struct(out, view);
    if (token_count < 1) refuse_value("token_count", token_count, "1 or more");
    check_tokens(layer->shape, token_count);
    // A copy: a cache keeps tensors beyond this call, which only borrows the caller's memory.
    KvTensor added(layer->shape, token_count);
    const BoundLayout& bound = added.layout();
    std::memcpy(bound.base(0, 0), keys, static_cast<std::size_t>(bound.layout.tensor_bytes(0)));
    std::memcpy(bound.base(0, 1), values, static_cast<std::size_t>(bound.layout.tensor_bytes(1)));
    const auto seen = layer->cache->update(added);
    if (!seen && seen.error() == Errc::kTooLarge) {
      refuse(KVS_TOO_LARGE, "token_count: " + std::to_string(token_count) + " more than the cache holds");
    }
    if (!seen) refuse(seen.error());
    const BoundLayout& read = seen->tensor->layout();
    out.keys = read.base(0, 0);
    out.values = read.base(0, 1);
    out.token_capacity = seen->tensor->token_count();
    out.begin = seen->begin;
    out.end = seen->end;
    KV_ASSERT(out.begin >= 0 && out.begin <= out.end && out.end <= out.token_capacity);  // bounds of the caller's reads
    write_struct(out, view);
  });
}

int kvs_layer_next_position(const kvs_layer* layer, int64_t added_count, int64_t* position) {
  return gpu_call([&] {
    if (layer == nullptr || position == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    constexpr std::int64_t kAddedMax = std::int64_t{1} << 31;
    if (added_count < 1 || added_count > kAddedMax) refuse_value("added_count", added_count, "from 1 to 2^31");
    *position = layer->sink != nullptr ? layer->sink->next_position(added_count) : layer->cache->token_count();
  });
}

int kvs_layer_token_count(const kvs_layer* layer, int64_t* token_count) {
  return gpu_call([&] {
    if (layer == nullptr || token_count == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    *token_count = layer->cache->token_count();
  });
}

int kvs_layer_crop(kvs_layer* layer, int64_t token_count) {
  return gpu_call([&] {
    if (layer == nullptr) refuse(KVS_BAD_REQUEST, "layer is NULL");
    const std::int64_t before = layer->cache->token_count();
    if (token_count < -before || token_count > before) {
      refuse_value("token_count", token_count, "within " + std::to_string(before) + " tokens");
    }
    const auto cropped = layer->cache->crop(token_count);
    if (!cropped && cropped.error() == Errc::kUnsupported) {
      refuse(KVS_UNSUPPORTED, "token_count: " + std::to_string(token_count) +
                                  " leaves tokens to be read that are gone, or cuts a quantised block");
    }
    demand(cropped);
  });
}

int kvs_layer_select(kvs_layer* layer, const int64_t* sequences, size_t count) {
  return gpu_call([&] {
    if (layer == nullptr || sequences == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    const auto batch = static_cast<std::size_t>(layer->shape.batch_count);
    if (count < 1 || count > (std::size_t{1} << 32) || (layer->keeps_batch_count && count != batch)) {
      refuse(KVS_BAD_REQUEST, "count: " + std::to_string(count) + " is not " +
                                  (layer->keeps_batch_count ? "the batch's " + std::to_string(batch) : "1 or more"));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (sequences[i] < 0 || sequences[i] >= layer->shape.batch_count) {
        refuse_value("sequences", sequences[i], "from 0 to below " + std::to_string(batch));
      }
    }
    TokenShape selected = layer->shape;
    selected.batch_count = static_cast<std::int64_t>(count);
    check_tokens(selected, 1);
    layer->cache->select({sequences, count});
    // After select(), which reads the old batch: the next update has the selected number of sequences.
    layer->shape = selected;
  });
}
