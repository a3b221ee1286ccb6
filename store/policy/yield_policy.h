// store/policy/yield_policy.h: keeps the blocks that bring most hits a block-second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/policy/age_clock.h"
#include "store/policy/block_sample.h"
#include "store/policy/eviction_policy.h"
#include "store/policy/ghost_table.h"
#include "store/policy/hint_trust.h"
#include "store/policy/reuse_shadow.h"
#include "store/policy/yield_table.h"

namespace kv {

/// Expected yield (YieldTable), learned at run time from a sample of blocks (ReuseShadow); blocks that left keep their
/// use count for a while (GhostTable). Acts as LRU until it has learned enough, and for a while after a spell in which
/// LRU would have found more of the sample than was found: learning by class does not suit every load, but must not
/// harm it.
class YieldPolicy final : public EvictionPolicy {
 public:
  explicit YieldPolicy(std::uint64_t seed, bool lru_unless_combined = false);

  std::string_view name() const override { return "yield"; }
  LeafQueues queues() const override;
  /// Changes the sample and forgets blocks that left. Counts stay, beyond the first few or from before a restart.
  void set_capacity(std::uint64_t block_count) override;
  void expect_miss(TreeId tree, const BlockHash& missed) const override;
  std::uint16_t asked(const Request& request, std::size_t* known = nullptr) override;
  std::optional<BlockSample> sample() const override { return sample_; }
  std::uint16_t offered(const Request& request, Usage above, Tick tick) override;
  void left(TreeId tree, const BlockHash& hash, Usage usage) override;
  std::size_t remembered_uses(TreeId tree, std::span<const BlockHash> hashes,
                              std::span<std::uint8_t> uses) const override;
  /// As `*known` of asked(). Costs the logarithm of the number of blocks.
  std::size_t known_count(const Request& request) const;
  double worth(std::uint32_t queue, std::uint64_t age) const override;
  std::uint64_t next_step(std::uint64_t age) const override;
  double chance(std::uint32_t queue, std::uint64_t age, std::uint64_t blocks) const override;
  std::uint32_t version() const override { return version_; }
  bool refuses() const override { return is_learned(); }
  std::uint64_t clock() const override { return clock_.count(); }
  std::uint64_t used_at(Tick tick) const override { return clock_.used_at(tick); }
  bool learn() override;
  std::uint64_t unlearned_uses() const override { return unlearned_uses_; }
  const YieldTable* table() const override { return &table_; }
  void set_combined(YieldTable::Combined combined) override;
  void set_before(double unit, std::vector<YieldTable::Counts> counts) override;
  /// Recent requests show that this is one of several nodes.
  bool is_apart() const { return parts_seen_ > kPartsMax / 2; }
  std::size_t memory_bytes() const override;

 private:
  /// A use of a sampled block, not entered in the shadow yet.
  struct Event {
    std::uint64_t name;
    std::uint32_t at;
    ReuseShadow::Kind how;
    bool is_use, is_found, is_known = false;
    bool is_capacity = false;  ///< Not a use: from here on `name` blocks find room.
  };

  std::uint32_t new_class_of(const Request& request, std::size_t known) const;

  /// Facts about a request besides its blocks.
  struct Kind {
    std::uint32_t new_class;
    std::uint8_t tenant = 0;  ///< HintTrust.
    ReuseHint believed = ReuseHint::kNone;
    std::uint32_t last_blocks_log2 = 0;
  };
  Kind kind_of(const Request& request, std::size_t known);
  static std::uint16_t trait_of(const Request& request, const Kind& kind);
  void learn_from_events();
  void begin_capacity(std::uint64_t block_count);
  void end_lesson(bool knew);
  bool knows_first_missed(const Request& request) const;
  std::size_t search_known(const Request& request) const;
  void make_event_room(std::size_t count);
  void hear(const Request& request, Kind& kind);
  void look_and_note(const Request& request, const Kind& kind, std::size_t first, bool is_use);
  void add_events(const Request& request, const Kind& kind, std::span<const std::uint32_t> positions, bool is_use);

  // First the members that each request needs, in few cache lines: other members hold kilobytes.
  BlockSample sample_;         ///< Its seed is that of all names here.
  std::vector<Event> events_;  ///< With room behind the last one.
  std::size_t next_event_ = 0, event_end_ = 0;
  std::uint64_t unlearned_uses_ = 0;
  std::uint64_t lru_left_ = 0;  ///< Uses until yield is tried again.
  bool lru_unless_combined_;
  std::uint32_t parts_seen_ = 0;  ///< Incremented for a part of a chain, decremented for a whole one.
  AgeClock clock_;
  GhostTable ghosts_;
  YieldTable table_;
  HintTrust trust_;
  ReuseShadow shadow_{table_, trust_};
  std::uint64_t capacity_ = 0;
  std::uint64_t spell_ = 0;                              ///< The contest's length, in uses of the shadow's sample.
  std::uint64_t learned_at_ = 0, learn_at_ = 0;          ///< In the shadow's events.
  std::uint64_t counted_from_ = 0, settled_events_ = 1;  ///< Events at the change; events until settled.
  bool is_settled_ = false;                              ///< The counts survive a change of the capacity.
  bool is_learning_ = false;
  bool is_told_anew_ = false;  ///< Counts from elsewhere, or a new unit, arrived since the last lesson began.
  std::uint32_t version_ = 0;
  // The contest with LRU, in uses of the sample.
  struct Contest {
    std::uint64_t uses = 0, found = 0, lru_found = 0;
  };
  void compare();
  bool is_learned() const {
    return table_.knows() && lru_left_ == 0 && !(lru_unless_combined_ && is_apart() && !table_.is_combined());
  }
  void count_part(const Request& request);
  Contest contest_;
  static constexpr std::uint32_t kPartsMax = 64;
  std::uint64_t penalty_ = 0;  ///< The length of the last wait.
};

}  // namespace kv
