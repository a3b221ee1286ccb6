// store/hit_curve.h: what the hit rate would be with less memory, or more; from a sample of the blocks asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "index/block_hash.h"
#include "store/eviction_policy.h"
#include "store/heavy_blocks.h"
#include "store/name_sample.h"
#include "store/shadow_cache.h"
#include "store/use_order.h"

namespace kv {

struct HitCurveConfig {
  bool is_on = false;
  std::uint32_t one_in = 0;            ///< Blocks; 0: as few as there is room for.
  std::size_t block_count_max = 8192;  ///< Of the sample. At most UseOrder::kEntriesMax.
};

/// The hit rate by capacity: of LRU, and of the policy that the node runs.
///
/// The sample has single blocks, chosen by their own hash. That is right for prefixes too: leaf ends go first, so a
/// block is no older than what is behind it, and LRU has it exactly if its memory is larger than the weight of all that
/// was used since. Sampling whole sessions is off by points. LRU's hits are counted by that weight, so there are those
/// of any capacity; the other policy's are of small caches (ShadowCache), one a capacity. Blocks that many
/// requests begin with (HeavyBlocks) are counted apart, not by sample; of long runs of these some stand for their
/// neighbours.
///
///   1. A request is counted as a whole or not at all, so that a full queue does not favour short ones.
///   2. What is counted ages with a half-life of an hour.
///   3. A hit is a block of a request's leading run, as far as the sample shows it.
///
/// The error has what the blocks of the sample, in groups by hash, differ by; and by how much the sample may misjudge
/// how many blocks were used since. That the small caches are models has an allowance. That a load changes is not in
/// it.
///
/// Thread safety: none, the Store's lock covers it. Clock: the policy's and that of the calls. Memory: below 1 MiB with
/// the defaults. Cost: some ns a block asked for; of the sample, one a call of learn() or a few, some us each. A
/// request of which the queue has no room is not counted.
class HitCurve {
 public:
  /// `has_policy`: the node's policy is another than LRU. `has_disk`: it has a disk tier.
  HitCurve(const HitCurveConfig& config, std::uint64_t seed, bool has_policy, bool has_disk);

  /// How many blocks find room in memory, and on disk besides. Counts stay; the capacities asked about move along.
  void set_capacity(std::uint64_t memory_blocks, std::uint64_t disk_blocks);
  /// `trait`: what the policy said of it. Of the blocks found `memory_count` are in memory.
  /// A request may have been looked at before it came (SampledNames).
  PrintSample sample() const { return sample_; }
  void asked(const EvictionPolicy::Request& request, std::size_t memory_count, std::uint16_t trait, std::uint64_t clock,
             TimePoint now);
  void offered(const EvictionPolicy::Request& request, std::uint16_t trait, std::uint64_t clock);
  /// Goes on with what was asked for: some ten microseconds. Returns whether there is more.
  bool learn(const EvictionPolicy& policy);

  struct Estimate {
    double hit_rate = 0, error = 0;  ///< 19 times in 20 the truth is within `error`.
  };
  struct Point {
    std::uint64_t block_count = 0;
    double scale = 1;       ///< Times what the node has.
    bool has_disk = false;  ///< Of the two tiers together; else of memory.
    bool is_now = false;    ///< What the node has.
    Estimate lru, policy;
  };
  struct Report {
    std::vector<Point> points;                 ///< By capacity: memory alone, then with disk.
    bool has_policy = false;                   ///< False: it is LRU.
    double memory_hit_rate = 0, hit_rate = 0;  ///< What the node found in the same time: in memory; with the disk.
    double asked_blocks = 0;                   ///< Counted, aged.
    double sampled_blocks = 0;                 ///< Of these looked at.
    std::uint32_t one_in = 1;
    std::uint64_t dropped_requests = 0;
  };
  Report report() const;
  Estimate lru(std::uint64_t block_count) const;  ///< Of any capacity.

  std::size_t memory_bytes() const;
  bool check() const;  ///< For tests.

 private:
  static constexpr std::size_t kGroups = 16;  ///< Of the sample, by hash; one more is of heavy blocks.
  static constexpr std::size_t kStepsPerOctave = 8, kDistances = 32 * kStepsPerOctave;
  static constexpr std::size_t kCachesMax = 8;
  static constexpr std::size_t kEventsMax = 4096;

  struct Event {
    std::uint64_t name;
    std::uint32_t at;          ///< The policy's clock.
    std::uint16_t counts = 0;  ///< Heavy: blocks of the request that it stands for. 0: it is of the sample.
    std::uint8_t holds = 0;    ///< Heavy: blocks of the cache that it stands for.
    std::uint16_t trait = 0;
    std::uint8_t passed = 0;
    bool is_use = true;      ///< False: it was stored.
    bool is_parent = false;  ///< Only named as the one before.
    bool is_alone = false;   ///< Of a set.
    bool is_last = false;    ///< Of the request.
  };
  struct Counts {
    double asked = 0;                            ///< Blocks.
    std::array<double, kDistances> distances{};  ///< Of them: by distance.
    std::array<double, kCachesMax> hits{};       ///< Of them: found by each small cache.
  };

  /// Its lower half is the print of the hash alone: a look at that tells most blocks from the sample's.
  std::uint64_t name_of(TreeId tree, const BlockHash& hash) const;
  bool is_sampled(std::uint64_t name) const { return static_cast<std::uint32_t>(name) <= sample_.threshold; }
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
  Sums sums() const;  ///< Counts::distances, each with those before it.
  Estimate lru(const Sums& sums, std::uint64_t block_count) const;

  HitCurveConfig config_;
  std::uint64_t seed_;
  PrintSample sample_;
  std::uint32_t one_in_ = 1;
  std::uint64_t memory_blocks_ = 0, disk_blocks_ = 0;
  HeavyBlocks heavy_;
  std::vector<ShadowBlock> blocks_;
  std::vector<std::uint16_t> free_, slots_;  ///< slots_: open addressing by name.
  UseOrder order_;
  std::vector<ShadowCache> caches_;
  std::size_t thinned_ = 0;  ///< Blocks below are of the sample as it is now.
  std::vector<Event> events_;
  std::size_t next_event_ = 0;
  bool is_full_ = false;  ///< Nothing is counted until half of the events are looked at.
  // The request being looked at.
  std::vector<std::uint16_t> chain_;
  bool is_ending_ = false;                  ///< Its blocks are being put in order, last to first.
  std::uint64_t distance_ = 0;              ///< The largest so far.
  std::uint32_t missed_ = 0, refused_ = 0;  ///< A bit a cache: its leading run is over; it stores no more of it.
  // Counted.
  std::array<Counts, kGroups + 1> counts_{};
  double asked_ = 0, found_memory_ = 0, found_ = 0;
  TimePoint aged_{};
  std::uint64_t dropped_requests_ = 0;
};

}  // namespace kv
