// store/curve/hit_curve.h: estimates the hit rate with less or more memory, from a sample of the requested blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"
#include "store/curve/heavy_blocks.h"
#include "store/curve/shadow_cache.h"
#include "store/curve/use_order.h"
#include "store/policy/block_sample.h"
#include "store/policy/eviction_policy.h"

namespace kv {

struct HitCurveConfig {
  bool is_on = false;
  std::uint32_t one_in = 0;            ///< One in so many blocks is sampled; 0: as many as fit.
  std::size_t block_count_max = 8192;  ///< In the sample. At most UseOrder::kEntriesMax.
};

/// The hit rate by capacity: for LRU, and for the policy that the node runs.
///
/// The sample has single blocks, chosen by their own hash. That is right for prefixes too: leaf ends go first, so a
/// block is no older than those behind it, and LRU has it exactly if its memory is larger than the weight of all blocks
/// used since. Sampling whole sessions is off by points. LRU's hits are counted by that weight, which gives those of
/// any capacity; the other policy's hits come from small caches (ShadowCache), one per capacity. Blocks that many
/// requests begin with (HeavyBlocks) are counted separately, without sampling; in long runs some stand for others.
///
///   1. A request is counted as a whole or not at all, so that a full queue does not favour short ones.
///   2. Counts age with a half-life of an hour.
///   3. A hit is a block of a request's leading run, as far as the sample shows it.
///
/// The error includes the spread between groups of the sample (by hash), and the sample's misjudgement of how many
/// blocks were used since. It allows for the small caches being models, but not for a changing load.
///
/// Thread safety: the Store's lock. Clock: the policy's and that of the calls. Memory: below 1 MiB with the defaults.
/// Cost: some ns per requested block; for the sample, one block or a few per call of learn(), some us each. A request
/// that does not fit the queue is not counted.
class HitCurve {
 public:
  /// `has_policy`: the node's policy is not LRU. `has_disk`: it has a disk tier.
  HitCurve(const HitCurveConfig& config, std::uint64_t seed, bool has_policy, bool has_disk);

  /// The number of blocks with room in memory, and on disk besides. Counts stay; the examined capacities move along.
  void set_capacity(std::uint64_t memory_blocks, std::uint64_t disk_blocks);
  /// `trait`: as the policy returned. `memory_count`: how many of the found blocks are in memory. A request may have
  /// been looked up before it came (SampledNames).
  BlockSample sample() const { return sample_; }
  void asked(const EvictionPolicy::Request& request, std::size_t memory_count, std::uint16_t trait, std::uint64_t clock,
             TimePoint now);
  void offered(const EvictionPolicy::Request& request, std::uint16_t trait, std::uint64_t clock);
  /// Works on queued requests for some ten microseconds. Returns whether there is more.
  bool learn(const EvictionPolicy& policy);

  struct Estimate {
    double hit_rate = 0, error = 0;  ///< 19 times in 20 the truth is within `error`.
  };
  struct Point {
    std::uint64_t block_count = 0;
    double scale = 1;
    bool has_disk = false;  ///< Both tiers together; else memory only.
    bool is_now = false;    ///< The node's own capacity.
    Estimate lru, policy;
  };
  struct Report {
    std::vector<Point> points;                 ///< By capacity: memory alone, then with disk.
    bool has_policy = false;                   ///< False: it is LRU.
    double memory_hit_rate = 0, hit_rate = 0;  ///< The node's own, over the same time: memory; with the disk.
    double asked_blocks = 0;                   ///< Counted, aged.
    double sampled_blocks = 0;                 ///< How many of these were examined.
    std::uint32_t one_in = 1;
    std::uint64_t dropped_requests = 0;
  };
  Report report() const;

  std::size_t memory_bytes() const;
  bool check() const;  ///< For tests.

 private:
  static constexpr std::size_t kGroups = 16;  ///< Of the sample, by hash; one more for heavy blocks.
  static constexpr std::size_t kStepsPerOctave = 8, kDistances = 32 * kStepsPerOctave;
  static constexpr std::size_t kCachesMax = 8;
  static constexpr std::size_t kEventsMax = 4096;

  struct Event {
    std::uint64_t name;
    std::uint32_t at;          ///< By the policy's clock.
    std::uint16_t counts = 0;  ///< Heavy: the request's blocks that it stands for. 0: sampled.
    std::uint8_t holds = 0;    ///< Heavy: the cache's blocks that it stands for.
    std::uint16_t trait = 0;
    std::uint8_t passed = 0;
    bool is_use = true;      ///< False: it was stored.
    bool is_parent = false;  ///< Only named as the block before.
    bool is_alone = false;   ///< In a set.
    bool is_last = false;
  };
  struct Counts {
    double asked = 0;
    std::array<double, kDistances> distances{};
    std::array<double, kCachesMax> hits{};
  };

  /// Its lower half is the print of the hash alone, which excludes most blocks from the sample.
  std::uint64_t name_of(TreeId tree, const BlockHash& hash) const;
  bool is_sampled(std::uint64_t name) const { return static_cast<std::uint32_t>(name) <= sample_.print_max; }
  void add_events(const EvictionPolicy::Request& request, std::uint16_t trait, std::uint64_t clock, bool is_use);
  std::vector<Point> points() const;  ///< Without estimates.
  void set_one_in(std::uint32_t one_in);
  void thin_out();
  std::size_t look_at(const Event& event, const EvictionPolicy& policy);
  void count(const Event& event, std::uint16_t block);
  std::size_t enter(const Event& event, std::uint16_t block, const EvictionPolicy& policy);
  std::uint16_t find(std::uint64_t name) const;
  std::uint16_t add(std::uint64_t name);
  void remove(std::uint16_t block);
  void set_parent(std::uint16_t block, std::uint16_t parent);
  void set_weight(std::uint16_t block, std::uint32_t weight);
  void age(TimePoint now);
  void forget();  ///< Also clears the queue.
  template <class Hits>
  Estimate estimate(Hits&& hits) const;
  static std::size_t bucket_of(std::uint64_t distance);
  using Sums = std::array<std::array<double, kDistances>, kGroups + 1>;
  Sums sums() const;  ///< Counts::distances as running sums.
  Estimate lru(const Sums& sums, std::uint64_t block_count) const;

  HitCurveConfig config_;
  BlockSample sample_;
  std::uint32_t one_in_ = 1;
  std::uint64_t memory_blocks_ = 0, disk_blocks_ = 0;
  HeavyBlocks heavy_;
  std::vector<ShadowBlock> blocks_;
  std::vector<std::uint16_t> free_, places_;  ///< places_: open addressing by name.
  UseOrder order_;
  std::vector<ShadowCache> caches_;
  std::size_t thinned_ = 0;  ///< Blocks below belong to the present sample.
  std::vector<Event> events_;
  std::size_t next_event_ = 0;
  bool is_full_ = false;  ///< Counting pauses until half of the events are processed.
  std::vector<std::uint16_t> chain_;
  bool is_ending_ = false;                  ///< Its blocks are being put in order, last to first.
  std::uint64_t distance_ = 0;              ///< The largest so far.
  std::uint32_t missed_ = 0, refused_ = 0;  ///< Bits per cache: leading run over; stores no more.
  std::array<Counts, kGroups + 1> counts_{};
  double asked_ = 0, found_memory_ = 0, found_ = 0;
  TimePoint aged_{};
  std::uint64_t dropped_requests_ = 0;
};

}  // namespace kv
