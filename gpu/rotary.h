// gpu/rotary.h: the angles of rotary position embedding, as models make them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace kv {

/// base^(-2i/R) for i < R/2: radians that pair i turns per position. A model with scaled frequencies (YaRN, LongRoPE,
/// Llama 3) passes its inv_freq instead; keys of different frequencies cannot be turned into one another.
inline std::vector<double> rope_frequencies(double base, std::int64_t rotary_size) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotary_size / 2; ++i) {
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_size)));
  }
  return frequencies;
}

}  // namespace kv
