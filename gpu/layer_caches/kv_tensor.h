// gpu/layer_caches/kv_tensor.h: keys and values of a batch in the shape of tensor libraries, in host memory. Layer
// caches (gpu/layer_caches/layer_cache.h) take tensors, keep them and return views.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/layout.h"
#include "gpu/named_layouts.h"
#include "gpu/permute.h"

namespace kv {

struct TokenShape {
  std::int64_t batch_count = 1;
  std::int64_t heads = 1;
  std::int64_t key_size = 0;
  std::int64_t value_size = 0;
  Element element = Element::kFp32;
  friend bool operator==(const TokenShape&, const TokenShape&) = default;
};

/// One layer's K and V of `token_count` tokens of every sequence, each [batch, heads, tokens, head size], zero at
/// first. A move keeps elements in place. Requires dimensions for layouts::batched(), and at least one token.
class KvTensor {
 public:
  KvTensor(const TokenShape& shape, std::int64_t token_count);
  KvTensor(KvTensor&&) = default;
  KvTensor& operator=(KvTensor&&) = default;

  const TokenShape& shape() const { return shape_; }
  std::int64_t token_count() const { return bound_.layout.block_tokens; }
  const BoundLayout& layout() const { return bound_; }  ///< For permute(): a block is a sequence of the batch.
  std::int64_t memory_bytes() const { return static_cast<std::int64_t>(memory_->keys.size() + memory_->values.size()); }
  /// Keeps the elements for views that may outlive the tensor, as those of Python do.
  std::shared_ptr<const void> memory() const { return memory_; }

  float key(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature) const;
  float value(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature) const;
  void set_key(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature, float number);
  void set_value(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature, float number);

 private:
  std::int64_t place(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature,
                     std::int64_t size) const;

  struct Memory {
    std::vector<std::byte> keys, values;
  };
  TokenShape shape_;
  std::shared_ptr<Memory> memory_;
  BoundLayout bound_;
};

/// Copies token from_tokens[i] of every sequence of `from` to token to_tokens[i] of the same sequence of `to`. An
/// operation's rotation.deltas has one element for each i. Requires: equal shapes, tokens in range, `to` is not `from`.
void move_tokens(KvTensor& to, std::span<const std::int64_t> to_tokens, const KvTensor& from,
                 std::span<const std::int64_t> from_tokens, const Operation& operation = Operation());

/// Copies tokens [from_begin, from_begin + count) to [to_begin, to_begin + count).
void copy_tokens(KvTensor& to, std::int64_t to_begin, const KvTensor& from, std::int64_t from_begin,
                 std::int64_t count);

/// A batch of these sequences, in this order; one may come several times.
KvTensor select_sequences(const KvTensor& from, std::span<const std::int64_t> sequences);

}  // namespace kv
