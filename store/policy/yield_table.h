// store/policy/yield_table.h: learns the hits that a block-second brings, by kind of block and age.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "index/reuse_hint.h"

namespace kv {

/// A block's class combines its use count, the new blocks of its latest request, and the caller's hint. For each class
/// and age the table counts uses and time at risk, and derives the worth of keeping a block: its *expected yield*, the
/// maximum over all horizons of P(used before the horizon) / E[time until then or use]. That is the Gittins index of a
/// block's next use. The present rate would not do: it evicts blocks just before a use that follows a pause.
///
/// Ages are in units of `unit` blocks, in half octaves. Rates lean on those of coarser classes, with the weight of
/// eight uses, until a class has uses of its own.
class YieldTable {
 public:
  static constexpr std::uint32_t kUseClasses = 7;  ///< Last of its request; 1, 2-3, 4-7, 8-15, 16-31, 32+ uses.
  static constexpr std::uint32_t kNewClasses = 5;
  static constexpr std::uint32_t kHintClasses = kReuseHintMax + 1;
  static constexpr std::uint32_t kSilentClasses =
      kUseClasses * kNewClasses;  ///< The first classes: requests without a hint.
  static constexpr std::uint32_t kClassCount = kSilentClasses * kHintClasses;
  static constexpr std::uint32_t kAges = 40;

  static constexpr std::uint32_t class_of(bool is_last, std::uint32_t use_count, std::uint32_t new_class,
                                          ReuseHint hint = ReuseHint::kNone) {
    std::uint32_t uses = 0;
    if (!is_last) {
      while (uses < kUseClasses - 2 && use_count >> (uses + 1) != 0) ++uses;
      ++uses;
    }
    return static_cast<std::uint32_t>(hint) * kSilentClasses + uses * kNewClasses + new_class;
  }
  static constexpr std::uint32_t new_class_of(std::uint64_t new_tokens) {
    return new_tokens <= 512 ? 0 : new_tokens <= 1536 ? 1 : new_tokens <= 3584 ? 2 : new_tokens <= 16384 ? 3 : 4;
  }

  struct Counts {
    std::array<double, kAges> hits{}, time{};
    void add(const Counts& other, double weight = 1) {
      for (std::uint32_t age = 0; age < kAges; ++age) {
        hits[age] += weight * other.hits[age];
        time[age] += weight * other.time[age];
      }
    }
  };

  YieldTable() { set_unit(1); }
  void set_unit(double unit);  ///< Blocks; forgets everything.
  /// The same, but only forgets others' counts, which have another unit: the own counts are spread over the new ages,
  /// and the values in force stay until the next lesson.
  void change_unit(double unit);

  std::uint32_t bucket(std::uint64_t age) const;
  std::uint64_t next_step(std::uint64_t age) const;  ///< The first age of the next bucket.

  void add_use(std::uint32_t of_class, std::uint64_t age) { ++counts_[of_class].hits[bucket(age)]; }
  /// A block of the class has lived from one age to another.
  void add_time(std::uint32_t of_class, std::uint64_t from, std::uint64_t to) {
    add_time(of_class, from, to, bucket(from));
  }
  /// The same for a known bucket(from). Returns bucket(to).
  std::uint32_t add_time(std::uint32_t of_class, std::uint64_t from, std::uint64_t to, std::uint32_t in_bucket);

  /// Learns from the counts, in steps of some microseconds each; the last activates the new values and returns true.
  bool learn_step();
  void use_hints() { hint_classes_ = kHintClasses; }  ///< From the next lesson on.
  void forget(double factor);                         ///< Scales past counts by this factor.

  double unit() const { return unit_; }
  std::size_t memory_bytes() const {  ///< Without the object itself.
    return 2 * sizeof(Values) + (before_.counts.capacity() + before_.here.capacity()) * sizeof(Counts);
  }
  const Counts& counts(std::uint32_t of_class) const { return counts_[of_class]; }  ///< The table's own.
  std::uint32_t class_count() const { return hint_classes_ * kSilentClasses; }      ///< Classes in use.
  /// Other nodes' counts, in ages of the same unit, supplement the own ones in lessons; replaces the earlier ones.
  /// Classes beyond the end have zero counts. nullptr: no other nodes.
  using Combined = std::shared_ptr<const std::vector<Counts>>;
  void set_combined(Combined combined) {
    combined_ = std::move(combined);
    combined_weight_ = 1;
  }

  bool is_combined() const { return combined_ != nullptr; }
  /// The counts of the node's earlier life, in ages of `unit`: they supplement lessons, and are forgotten as fast as
  /// new counts. They are converted again for each later unit of this table.
  void set_before(double unit, std::vector<Counts> counts, double weight);
  Counts with_before(std::uint32_t of_class) const;  ///< counts() plus those from before the restart.

  bool knows() const { return is_known_; }
  /// The chance that a block of this age is used before it is `blocks` older.
  double chance(std::uint32_t of_class, std::uint64_t age, std::uint64_t blocks) const;
  double edge(std::uint32_t age_bucket) const { return edges_[age_bucket]; }  ///< The bucket's first age, in blocks.
  double yield(std::uint32_t of_class, std::uint64_t age) const { return values_->yields[of_class][bucket(age)]; }

 private:
  Counts all_of(std::uint32_t of_class) const;  ///< Own and others', present and past.
  void set_edges(double unit);
  void convert_before();
  static double rate_of(const Counts& counts, std::uint32_t age, double prior);
  void learn_base();
  void learn_coarse(std::uint32_t uses);
  void learn_hint(std::uint32_t hint_class);
  void learn_class(std::uint32_t hint_class, std::uint32_t silent);

  bool is_known_ = false;  // each request reads it
  std::uint32_t step_ = 0, hint_classes_ = 1;
  double unit_ = 1, units_a_block_ = 1;
  std::array<double, kAges + 1> edges_{};
  std::array<Counts, kClassCount> counts_{};
  Combined combined_;
  double combined_weight_ = 1;
  struct Before {
    double unit = 1, weight = 0;
    std::vector<Counts> counts, here;  ///< `here`: in ages of this table.
  };
  Before before_;
  std::array<double, kAges> base_{};
  /// Learned values, by class and age.
  struct Values {
    std::array<std::array<double, kAges>, kClassCount> yields{};
    std::array<std::array<float, kAges>, kClassCount> rates{};  ///< Uses per block of time.
  };
  std::unique_ptr<Values> values_ = std::make_unique<Values>(), next_ = std::make_unique<Values>();
  std::array<std::array<double, kAges>, kSilentClasses> coarse_{};  ///< Rates over all hints.
  std::array<std::array<double, kAges>, kUseClasses> likelier_{};   ///< For the hint being learned.
};

/// Converts counts in ages of `unit`, each of whose blocks is `blocks` here, to ages of `own_unit`; spreads uses and
/// times evenly within a bucket.
YieldTable::Counts convert(const YieldTable::Counts& counts, double unit, double blocks, double own_unit);

}  // namespace kv
