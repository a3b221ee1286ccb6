// store/curve/heavy_blocks.h: blocks that more than one request in 400 begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kv {

/// A system prompt is in so many requests that the sample's result would depend on whether it has one of the prompt's
/// blocks. Such blocks are counted separately, every one of them. HotRoots are rarer and found sooner: one match in 100
/// of a cluster, in a window of 512, with all their hashes, for clients; here it is one request of this node in 400,
/// in a window of 8192, at some ten lookups under the Store's lock.
///
/// All blocks before a heavy one are heavy too. So a binary search finds how many a request begins with, and behind
/// these it is enough to count the blocks at distances of 1, 2, 4, ...: when one turns out heavy, so are all before it.
/// The search starts where the heavy blocks of the last request with the same first block ended. Counts are halved now
/// and then; those of rare names give way. Names are kept as 32 bits: if one of two with equal bits is heavy, both are.
/// Not thread-safe. Cost of a request: some ten lookups, mostly overlapping; for a newly found run, one a block.
class HeavyBlocks {
 public:
  static constexpr std::size_t kMax = 4096;    ///< Further ones count as ordinary.
  static constexpr std::size_t kRunMax = 256;  ///< Found with one request.

  HeavyBlocks() { forget(); }

  /// The number of heavy leading blocks. `name(i)`: that of the i-th block, evenly spread.
  template <class NameOf>
  std::size_t count_leading(std::size_t block_count, NameOf&& name) const {
    const auto heavy = [&](std::size_t i) { return has(name(i)); };
    if (block_count == 0 || !heavy(0)) return 0;
    std::size_t known = 1, end = 2;  // the first `known` are heavy; the run ends before `end`
    for (; end <= block_count && heavy(end - 1); end *= 2) known = end;
    end = std::min(end, block_count + 1);
    while (end - known > 1) {
      const std::size_t middle = (known + end) / 2;
      (heavy(middle - 1) ? known : end) = middle;
    }
    return known;
  }

  /// The same for a request that counts.
  template <class NameOf>
  std::size_t ask(std::size_t block_count, NameOf&& name) {
    if (block_count == 0) return 0;
    const std::uint64_t first = name(0);
    Ending& ending = endings_[first % kEndings];
    const std::size_t expected = ending.first == print_of(first) ? ending.leading : 0;
    prefetch(block_count, expected, name);
    const bool is_as_expected = expected <= block_count && (expected == 0 || has(name(expected - 1))) &&
                                (expected == block_count || !has(name(expected)));
    const std::size_t leading = is_as_expected ? expected : count_leading(block_count, name);
    if (!is_as_expected) ending = {print_of(first), static_cast<std::uint32_t>(leading)};
    begin_request();
    std::size_t run = 0;
    for (std::size_t step = 1; step <= kRunMax && leading + step <= block_count; step *= 2)
      if (count(name(leading + step - 1))) run = step;
    for (std::size_t i = leading; i < leading + run; ++i) add(name(i));
    return leading;
  }

  std::size_t count() const { return size_; }
  std::size_t memory_bytes() const {
    return candidates_.capacity() * sizeof(Candidate) + names_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::size_t kWays = 4, kSets = 1024, kSlots = 2 * kMax;
  static constexpr std::uint32_t kWindow = 8192;
  /// With one in 100, a few tools' prompts missing from the sample were one per cent of all requested blocks.
  static constexpr std::uint32_t kOneIn = 400;
  static constexpr std::uint32_t kUsesMin = 16;        ///< In few requests, a share means little.
  static constexpr std::uint64_t kLifetime = 1 << 16;  ///< Requests; then all are found anew.

  static constexpr std::size_t kEndings = 256;

  /// The number of heavy blocks of the last request with this first block. The next request usually has as many, which
  /// two lookups confirm: a search takes a dozen, each a cache miss, one after another.
  struct Ending {
    std::uint32_t first = 0, leading = 0;
  };
  struct Candidate {
    std::uint32_t name = 0;
    std::uint32_t uses = 0;
  };

  void forget() {
    candidates_.assign(kWays * kSets, {});
    names_.assign(kSlots, 0);
    endings_ = {};
    size_ = window_ = 0;
    request_count_ = 0;
  }
  static std::uint32_t print_of(std::uint64_t name) {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(name >> 32));
  }
  /// Prefetches all that ask() reads if the request has `leading` heavy blocks.
  template <class NameOf>
  void prefetch(std::size_t block_count, std::size_t leading, NameOf&& name) const {
    for (std::size_t i = leading > 0 ? leading - 1 : 0; i < std::min(leading + 1, block_count); ++i)
      __builtin_prefetch(&names_[name(i) % kSlots]);
    for (std::size_t step = 1; step <= kRunMax && leading + step <= block_count; step *= 2)
      __builtin_prefetch(&candidates_[name(leading + step - 1) % kSets * kWays], 1);
  }
  bool has(std::uint64_t name) const {
    const std::uint32_t print = print_of(name);
    for (std::size_t at = name % kSlots; names_[at] != 0; at = (at + 1) % kSlots)
      if (names_[at] == print) return true;
    return false;
  }
  void add(std::uint64_t name) {
    if (size_ >= kMax || has(name)) return;
    std::size_t at = name % kSlots;
    while (names_[at] != 0) at = (at + 1) % kSlots;
    names_[at] = print_of(name);
    ++size_;
  }
  void begin_request() {
    if (++request_count_ >= kLifetime) forget();
    if (++window_ < kWindow) return;
    window_ /= 2;
    for (Candidate& each : candidates_) each.uses /= 2;
  }
  /// Returns whether the block becomes heavy.
  bool count(std::uint64_t name) {
    Candidate* const set = &candidates_[name % kSets * kWays];
    const std::uint32_t print = print_of(name);
    Candidate* least = set;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set[way].name == print) return ++set[way].uses >= std::max(kUsesMin, window_ / kOneIn) && size_ < kMax;
      if (set[way].uses < least->uses) least = &set[way];
    }
    if (least->uses > 1) {
      --least->uses;
    } else {
      *least = {print, 1};
    }
    return false;
  }

  std::vector<Candidate> candidates_;
  std::vector<std::uint32_t> names_;
  std::array<Ending, kEndings> endings_{};
  std::size_t size_ = 0;
  std::uint32_t window_ = 0;
  std::uint64_t request_count_ = 0;
};

}  // namespace kv
