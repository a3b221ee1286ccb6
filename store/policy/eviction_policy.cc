#include "store/policy/eviction_policy.h"

#include <bit>
#include <cmath>

#include "base/assert.h"
#include "store/policy/age_clock.h"
#include "store/policy/yield_policy.h"

namespace kv {
namespace {

/// Least recently used first; every block is admitted.
class LruPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lru"; }
  LeafQueues queues() const override { return {}; }
  void set_capacity(std::uint64_t /*block_count*/) override {}
  std::uint16_t asked(const Request& request, std::size_t* known) override {
    if (known != nullptr) *known = request.found_count;
    return 0;
  }
  std::uint16_t offered(const Request& /*request*/, Usage /*above*/, Tick /*tick*/) override { return 0; }
  void left(TreeId /*tree*/, const BlockHash& /*hash*/, Usage /*usage*/) override {}
  double worth(std::uint32_t /*queue*/, std::uint64_t age) const override { return -static_cast<double>(age); }
  std::uint64_t next_step(std::uint64_t age) const override { return age + 1; }
  std::uint32_t version() const override { return 0; }
  bool refuses() const override { return false; }
  std::uint64_t clock() const override { return 0; }
  std::uint64_t used_at(Tick /*tick*/) const override { return 0; }
  bool learn() override { return false; }
  std::size_t memory_bytes() const override { return 0; }
};

/// Recency and frequency: each doubling of its uses makes a block half a capacity of insertions younger.
class LfuPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lfu"; }
  LeafQueues queues() const override {
    return {8, [](Usage usage) { return static_cast<std::uint32_t>(std::bit_width(usage.use_count | 1u)) - 1; }};
  }
  void set_capacity(std::uint64_t block_count) override {
    if (block_count == capacity_) return;
    capacity_ = block_count;
    clock_.set_span(8 * block_count);
    ++version_;
  }
  std::uint16_t asked(const Request& request, std::size_t* known) override {
    if (known != nullptr) *known = request.found_count;
    return 0;
  }
  std::uint16_t offered(const Request& request, Usage /*above*/, Tick tick) override {
    clock_.advance(request.hashes.size() - request.found_count, tick);
    return 0;
  }
  void left(TreeId /*tree*/, const BlockHash& /*hash*/, Usage /*usage*/) override {}
  double worth(std::uint32_t queue, std::uint64_t age) const override {
    return 0.5 * static_cast<double>(capacity_) * queue - static_cast<double>(age);
  }
  std::uint64_t next_step(std::uint64_t age) const override { return age + 1; }
  std::uint32_t version() const override { return version_; }
  bool refuses() const override { return false; }
  std::uint64_t clock() const override { return clock_.count(); }
  std::uint64_t used_at(Tick tick) const override { return clock_.used_at(tick); }
  bool learn() override { return false; }
  std::size_t memory_bytes() const override { return sizeof *this + clock_.memory_bytes(); }

 private:
  AgeClock clock_;
  std::uint64_t capacity_ = 0;
  std::uint32_t version_ = 0;
};

}  // namespace

std::size_t ChainPart::new_blocks(std::size_t known_here, std::size_t count) const {
  if (block_count == 0) return count - known_here;
  if (known) return block_count - *known;
  if (known_here == count) return block_count - 1 - last;
  return block_count - first - static_cast<std::size_t>(static_cast<double>(known_here) * stride(count));
}

std::size_t ChainPart::after_last(std::size_t count) const {
  if (block_count == 0 || count == 0) return 0;
  return static_cast<std::size_t>(std::ceil(static_cast<double>(block_count - 1 - last) / stride(count)));
}

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t seed, bool lru_unless_combined) {
  switch (kind) {
    case PolicyKind::kLru: return std::make_unique<LruPolicy>();
    case PolicyKind::kLfu: return std::make_unique<LfuPolicy>();
    case PolicyKind::kYield: return std::make_unique<YieldPolicy>(seed, lru_unless_combined);
  }
  KV_ASSERT(false);
  return nullptr;
}

}  // namespace kv
