// tests/gpu/token_history.h: what layer caches should hold, as plainly as possible: a list of tokens for each sequence.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "gpu/layer_caches/layer_cache.h"

namespace kv {

struct HistoryToken {
  std::vector<float> key, value;  ///< [head][feature]
};

struct TokenHistory {
  TokenShape shape;
  std::vector<std::vector<HistoryToken>> sequences = std::vector<std::vector<HistoryToken>>(shape.batch_count);

  std::int64_t token_count() const { return std::int64_t(sequences[0].size()); }

  /// Random tokens, as an update.
  KvTensor add(std::mt19937_64& random, std::int64_t token_count) {
    std::normal_distribution<float> normal;
    KvTensor added(shape, token_count);
    for (std::int64_t b = 0; b < shape.batch_count; ++b) {
      for (std::int64_t t = 0; t < token_count; ++t) {
        HistoryToken token;
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t f = 0; f < shape.key_size; ++f) {
            token.key.push_back(normal(random));
            added.set_key(b, h, t, f, token.key.back());
          }
          for (std::int64_t f = 0; f < shape.value_size; ++f) {
            token.value.push_back(normal(random));
            added.set_value(b, h, t, f, token.value.back());
          }
        }
        sequences[b].push_back(token);
      }
    }
    return added;
  }
  void crop(std::int64_t token_count) {
    for (auto& sequence : sequences) sequence.resize(token_count);
  }
  void select(const std::vector<std::int64_t>& chosen) {
    std::vector<std::vector<HistoryToken>> selected;
    for (const std::int64_t sequence : chosen) selected.push_back(sequences[sequence]);
    sequences = selected;
    shape.batch_count = std::int64_t(chosen.size());
  }

  /// Token `first` + i of the history is token i of the view, bit for bit.
  void expect_equal(const KvView& view, std::int64_t first) const {
    ASSERT_EQ(view.tensor->shape(), shape);
    ASSERT_LE(first + view.token_count(), token_count());
    for (std::int64_t b = 0; b < shape.batch_count; ++b) {
      for (std::int64_t t = 0; t < view.token_count(); ++t) {
        const HistoryToken& token = sequences[b][first + t];
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t f = 0; f < shape.key_size; ++f) {
            ASSERT_EQ(view.tensor->key(b, h, view.begin + t, f), token.key[h * shape.key_size + f]);
          }
          for (std::int64_t f = 0; f < shape.value_size; ++f) {
            ASSERT_EQ(view.tensor->value(b, h, view.begin + t, f), token.value[h * shape.value_size + f]);
          }
        }
      }
    }
  }
};

}  // namespace kv
