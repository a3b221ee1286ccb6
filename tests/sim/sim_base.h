// tests/sim/sim_base.h: what both worlds are made of: dice, blocks whose bytes follow from their names, virtual time.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"
#include "tests/fakes/virtual_clock.h"

namespace kv::sim {

inline std::uint64_t mix(std::uint64_t value) {  // splitmix64's finaliser
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

/// The bytes that a block must have, wherever it turns up. No word needs the one before it: so they are made several at
/// a time, and a world writes and compares hundreds of megabytes.
inline void fill_block(const NamespaceId& space, const BlockHash& hash, std::span<std::byte> bytes) {
  std::uint64_t words[6], state = 0;  // all of the name, mixed by none of the functions under test
  std::memcpy(words, space.bytes.data(), sizeof space.bytes);
  std::memcpy(words + 2, hash.bytes.data(), sizeof hash.bytes);
  for (const std::uint64_t word : words) state = mix(state ^ word);
  const std::size_t whole = bytes.size() / sizeof state;
  for (std::size_t i = 0; i < whole; ++i) {
    const std::uint64_t word = mix(state + i * 0x9E3779B97F4A7C15);
    std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
  }
  const std::uint64_t last = mix(state + whole * 0x9E3779B97F4A7C15);
  std::memcpy(bytes.data() + whole * sizeof last, &last, bytes.size() % sizeof last);
}

/// A number of the environment, such as which seeds to run.
inline std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// All that a world leaves to chance: the same for equal seeds.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

 protected:
  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  bool chance(double probability) { return real(0, 1) < probability; }
  std::vector<std::uint32_t> random_tokens(std::size_t count) {
    std::vector<std::uint32_t> tokens(count);
    for (auto& token : tokens) token = static_cast<std::uint32_t>(random_());
    return tokens;
  }

  std::mt19937_64 random_;
};

/// Runs what is ready; when nothing is, moves time to the next alarm.
class Pace {
 public:
  enum class Step : std::uint8_t { kRan, kMoved, kStuck };  ///< kStuck: nothing will ever happen again.

  Pace(asio::io_context& context, VirtualClock& clock) : context_(context), clock_(clock) {}

  Step step() {
    // poll() leaves nothing ready behind, and each costs calls of the kernel: it is not asked twice.
    if (!is_quiet_ && context_.poll() > 0) {
      is_quiet_ = true;
      return Step::kRan;
    }
    is_quiet_ = false;
    if (!clock_.has_alarm()) return Step::kStuck;
    clock_.advance_to(clock_.next_alarm());
    return Step::kMoved;
  }
  /// To be called after anything that was done from outside, which may have made something ready.
  void disturb() { is_quiet_ = false; }

  void run_for(Duration time) {
    const TimePoint until = clock_.now() + time;
    disturb();
    while (clock_.now() <= until) {
      if (context_.poll() > 0) continue;
      if (!clock_.has_alarm() || clock_.next_alarm() > until) break;
      clock_.advance_to(clock_.next_alarm());
    }
    if (clock_.now() < until) clock_.advance_to(until);
  }

 private:
  asio::io_context& context_;
  VirtualClock& clock_;
  bool is_quiet_ = false;
};

}  // namespace kv::sim
