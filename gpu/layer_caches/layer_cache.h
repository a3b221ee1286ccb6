// gpu/layer_caches/layer_cache.h: caches that a model on the host calls layer by layer. Start here:
//
//   kv_tensor.h        the tensors that go in and come out
//   layer_cache.h      the interface of all kinds
//   growing_cache.h    GrowingCache: keeps all tokens ("dynamic")
//   static_cache.h     StaticCache: memory of fixed size and place; SlidingCache: the last tokens
//   sink_cache.h       SinkCache: attention sinks and a rolling window, with keys turned to their places
//   quantised_cache.h  QuantisedCache: old tokens in few bits, recent ones whole
//
// A model with layers of several kinds has one object of the right kind for each layer.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "gpu/layer_caches/kv_tensor.h"

namespace kv {

/// Tokens [begin, end) of a tensor, which lives until the cache's next call.
struct KvView {
  const KvTensor* tensor = nullptr;
  std::int64_t begin = 0, end = 0;

  std::int64_t token_count() const { return end - begin; }
};

/// Keys and values of one layer for a batch whose sequences grow alike. Thread safety: none.
class LayerCache {
 public:
  virtual ~LayerCache() = default;

  /// Adds the next tokens of every sequence, and returns the tokens that they read, themselves last. Errors: kTooLarge
  /// for a fixed size, without a change. Requires: the earlier shape, and another tensor than the view's.
  virtual Result<KvView> update(const KvTensor& added) = 0;

  /// Tokens added so far less those cropped. Tokens that have left a window still count.
  virtual std::int64_t token_count() const = 0;

  /// Keeps the first `token_count` tokens; a negative number removes that many. Errors: kBadRequest if there are not as
  /// many; kUnsupported if the next token's attention would need dropped tokens.
  Result<void> crop(std::int64_t token_count) {
    const std::int64_t kept = token_count < 0 ? this->token_count() + token_count : token_count;
    if (kept < 0 || kept > this->token_count()) return Errc::kBadRequest;
    return keep_first(kept);
  }

  /// Replaces the batch by these of its sequences, in this order (beams, forks). Requires: indices in range.
  virtual void select(std::span<const std::int64_t> sequences) = 0;

  /// Lets go of the last view's tensor unless the cache reads it again: a model with many layers would otherwise keep
  /// as many rebuilt views. The view stays valid with KvTensor::memory().
  virtual void drop_view() {}

  /// Bytes of the tokens kept, and of a view that was built and not dropped.
  virtual std::int64_t memory_bytes() const = 0;

 private:
  virtual Result<void> keep_first(std::int64_t token_count) = 0;  ///< crop() of a number from 0 to token_count().
};

}  // namespace kv
