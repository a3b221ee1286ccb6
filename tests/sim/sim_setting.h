// tests/sim/sim_setting.h: the nodes, namespaces and prompts that a seed draws, and what must hold of the nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_run.h"
#include "tests/sim/sim_world.h"

namespace kv::sim {

class Setting : public SimRun<WorldOutcome> {
 public:
  explicit Setting(std::uint64_t seed) : SimRun(seed, 3'000'000) {
    // Swarm testing: each seed draws its own mixture of sizes, pressures and faults; many draw none of a kind.
    node_count_ = pick(1, 4);
    worker_count_ = pick(1, 4);
    constexpr std::size_t kExtentBlocks[] = {1, 2, 3, 5, 256};
    extent_blocks_ = kExtentBlocks[mix(seed ^ 1) % std::size(kExtentBlocks)];
    has_two_rules_ = mix(seed ^ 2) % 8 == 0;
    calm_ = chance(0.15);
    SimFaults faults;
    faults.delay_max = Duration(std::chrono::microseconds(pick(20, 3000)));
    faults.chunk_bytes_max = std::size_t{1} << pick(6, 18);
    if (!calm_ && chance(0.5)) faults.break_probability = real(0, 0.01);
    if (!calm_ && chance(0.3)) faults.flip_probability = real(0, 0.02);
    if (!calm_ && chance(0.4)) faults.stall_probability = real(0, 0.05);
    faults.capacity_bytes = std::size_t{1} << pick(12, 19);
    faults.full_probability = 0.1;
    flips_bits_ = faults.flip_probability > 0;
    network_.set_faults(faults);
    if (!calm_ && chance(0.6)) event_rate_ = real(0, 0.05);

    constexpr std::size_t kBlockBytes[] = {64, 4096, 5000, 65536, 100'000, 200'000};
    for (std::size_t i = 0, count = pick(1, 4); i < count; ++i) {
      // Of one size, a mix-up of two namespaces is seen by nothing but their blocks.
      const std::size_t block_bytes =
          i > 0 && chance(0.6) ? records_[0].block_bytes() : kBlockBytes[pick(0, std::size(kBlockBytes) - 1)];
      naming_.push_back(chance(0.4)   ? Naming::kOurs
                        : chance(0.5) ? Naming::kEngine
                        : chance(0.5) ? Naming::kPadded
                                      : Naming::kPaddedInFront);
      is_kept_.push_back(chance(0.5));
      auto record = NamespaceRecord::from_fields({{"model", "sim"},
                                                  {"block_size", "4"},
                                                  {"block_bytes", std::to_string(block_bytes)},
                                                  {"salt", std::to_string(i)}});
      records_.push_back(record.value());
    }
    for (std::size_t i = 0, count = pick(0, 2); i < count; ++i) {
      constexpr std::size_t kBounds[] = {100, 5000, 70'000, 150'000};
      auto record = NamespaceRecord::from_fields({{"model", "sim"},
                                                  {"kind", "set"},
                                                  {"block_bytes_max", std::to_string(kBounds[pick(0, 3)])},
                                                  {"salt", std::to_string(i)}});
      sets_.push_back(record.value());
    }
    StoreConfig config;
    config.policy = static_cast<PolicyKind>(seed % std::size(kPolicyNames));  // and no number drawn for it
    config.curve = {.is_on = seed % 2 == 0, .one_in = 2, .block_count_max = 128};
    config.arena.capacity_bytes = chance(0.2) ? 20'000'000 : pick(600'000, 6'000'000);
    config.arena.granule_bytes = std::size_t{4096} << pick(0, 7);
    config.arena.huge_pages = false;
    config.arena.touch = false;
    config.lease_duration = std::chrono::milliseconds(pick(1, 2000));
    config.lease_count_per_session_max = pick(1, 8);
    config.leased_fraction_max = 1.0 / static_cast<double>(config.lease_count_per_session_max);
    DiskFaults disk;
    if (chance(0.5)) {
      config.disk.capacity_bytes = pick(300'000, 8'000'000);
      disk_capacity_ = config.disk.capacity_bytes;
      config.disk.segment_bytes = pick(20'000, 400'000);
      config.disk.promote_reads = static_cast<std::uint8_t>(pick(1, 3));
      config.spill.reserve = real(0.01, 0.5);
      config.spill.write_through = chance(0.3);
      config.spill.skip_unused = chance(0.2);
      disk.delay_max = Duration(std::chrono::microseconds(pick(50, 20'000)));
      if (!calm_ && chance(0.4)) disk.failure_probability = real(0, 0.1);
      if (!calm_ && chance(0.3)) disk.stall_probability = real(0, 0.02);
      if (!calm_ && chance(0.3)) disk.flip_probability = real(0, 0.05);
      if (!calm_ && chance(0.5)) disk.lost_at_kill_max = pick(0, 100);
    }
    if (chance(0.4)) {  // RDMA; each node and each worker with a device of its own
      network_.set_passes_descriptors(false);
      verbs::FakeOptions options{.seed = seed, .device_count = static_cast<std::uint32_t>(node_count_ + worker_count_)};
      options.delay_max = Duration(std::chrono::microseconds(pick(5, 2000)));
      options.packet_bytes_max = std::uint32_t{1} << pick(8, 16);
      if (!calm_ && chance(0.5)) options.fault_probability = real(0, 0.01);
      verbs_ = std::make_unique<verbs::FakeVerbs>(clock_, context_.get_executor(), options);
    }
    for (std::size_t i = 0; i < node_count_; ++i) {
      kept_.emplace_back();
      nodes_.push_back(std::make_unique<SimNode>(context_, network_, clock_, "node" + std::to_string(i), config, disk,
                                                 mix(seed + i), verbs_.get(), std::vector{device(i)}));
    }
    // Chains that share prefixes, some deep: a tree of prompts as conversations make it.
    for (std::size_t i = 0; i < 40; ++i) {
      std::vector<std::uint32_t> tokens;
      if (!prompts_.empty() && chance(0.7)) {
        const auto& parent = prompts_[pick(0, prompts_.size() - 1)];
        tokens.assign(parent.begin(), parent.begin() + static_cast<std::ptrdiff_t>(pick(0, parent.size())));
      }
      const std::size_t more = pick(1, 60);
      const auto drawn = random_tokens(more);
      tokens.insert(tokens.end(), drawn.begin(), drawn.end());
      prompts_.push_back(std::move(tokens));
    }
  }

 protected:
  void look() override {
    for (const auto& node : nodes_) {
      node->learn();
      node->check_devices();
      const std::string broken = node->check();
      if (!broken.empty()) fail(node->name() + ": " + broken);
    }
    for (std::size_t i = 0; i < nodes_.size() && !is_audited_; ++i) check_kept(i);
  }

  /// What nobody drops stays, as long as nothing is evicted or lost.
  void check_kept(std::size_t number) {
    const SimNode& node = *nodes_[number];
    const StoreStats stats = node.stats();
    if (!node.is_alive() || lost_count(stats) > 0) return;
    Kept& kept = kept_[number];
    if (kept.life != node.life_count()) kept = {node.life_count(), {}};
    for (const SpaceDesk::View& each : node.namespaces()) {
      const auto which = std::ranges::find(records_, each.record->text(), &NamespaceRecord::text) - records_.begin();
      if (static_cast<std::size_t>(which) == records_.size()) continue;  // a set
      if (!is_kept_[static_cast<std::size_t>(which)]) continue;
      std::uint64_t& most = kept.most[each.record->text()];
      if (each.block_count < most)
        fail(node.name() + ": " + std::to_string(most - each.block_count) + " blocks went that nobody dropped");
      most = std::max(most, each.block_count);
      if (most > 0 && stats.dropped_blocks > 0) ++outcome_.kept_beside_drops;
    }
  }

  static std::uint64_t lost_count(const StoreStats& stats) {
    return stats.evicted_blocks + stats.disk_evicted_blocks + stats.lost_blocks + stats.lost_unspilled_blocks;
  }
  std::uint64_t lost_count() const {
    std::uint64_t count = 0;
    for (const auto& node : nodes_) count += lost_count(node->stats());
    return count;
  }
  static std::string device(std::size_t number) { return "fake" + std::to_string(number); }
  bool has_device(const std::string& name) const { return std::ranges::count(verbs_->device_names(), name) > 0; }
  void heal_devices() {
    for (std::size_t i = 0; i < node_count_ + worker_count_; ++i) {
      if (!has_device(device(i))) verbs_->return_device(device(i));
      verbs_->set_link(device(i), true);
    }
  }
  std::unique_ptr<Client> make_client(std::size_t worker) {
    return std::make_unique<Client>(context_.get_executor(), client_config(worker), network_, clock_, verbs_.get());
  }

  ClientConfig client_config(std::size_t worker) {
    ClientConfig config;
    for (const auto& node : nodes_) config.nodes.push_back({.endpoint = "sim://" + node->name()});
    config.identity = "worker" + std::to_string(worker);
    config.connections_per_node = pick(1, 3);
    config.connect_timeout = std::chrono::milliseconds(pick(5, 500));
    config.backoff_min = 5ms;
    config.backoff_max = 200ms;
    config.breaker_open = std::chrono::milliseconds(pick(5, 300));
    config.seed = random_() | 1;
    if (config.seed % 4 == 3) config.staging_bytes = 256 << 10;  // and no number drawn for it
    config.extent_blocks = has_two_rules_ && worker == 1 ? extent_blocks_ + 1 : extent_blocks_;
    if (verbs_) {
      config.rdma_devices = {device(node_count_ + worker % worker_count_)};
      config.rdma_lanes = pick(1, 3);
    }
    return config;
  }

  std::vector<BlockHash> chain_of(std::size_t which, std::span<const std::uint32_t> tokens) const {
    const NamespaceRecord& record = records_[which];
    if (naming_[which] == Naming::kOurs) return hash_chain(record.digest(), tokens, record.block_size());
    // An engine's own hashes know nothing of our namespaces: equal prompts have equal hashes in all of them.
    std::vector<BlockHash> chain(tokens.size() / record.block_size());
    std::uint64_t state = 0;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      for (const std::uint32_t token : tokens.subspan(i * record.block_size(), record.block_size()))
        state = mix(state ^ token);
      const std::uint64_t words[] = {mix(state + 1), mix(state + 2), mix(state + 3), mix(state + 4)};
      const bool is_whole = naming_[which] == Naming::kEngine;
      const std::size_t at = naming_[which] == Naming::kPaddedInFront ? sizeof words - sizeof words[0] : 0;
      std::memcpy(chain[i].bytes.data() + at, words, is_whole ? sizeof words : sizeof words[0]);
    }
    return chain;
  }

  /// Where no bit is flipped, nobody has a reason to find a frame malformed.
  void check_frames(const char* op, error_code why) {
    if (why == Errc::kBadFrame && !flips_bits_) fail(std::string(op) + ": a malformed frame, and no bit was flipped");
  }

  /// Sets and their pins leave room for what is looked at next.
  asio::awaitable<void> drop_sets(Client& client) {
    for (const NamespaceRecord& each : sets_) {
      const auto set = co_await client.open(each, 1s);
      if (!set) continue;
      const std::span<const BlockHash> none;
      const auto dropped = co_await client.drop(*set, none, 1s);
      static_cast<void>(dropped);
    }
  }

  std::size_t node_count_ = 1, worker_count_ = 1;
  std::size_t extent_blocks_ = 1;  ///< Small, so that chains of some blocks have many extents; or the default.
  bool has_two_rules_ = false;     ///< One worker has another one: it may find less, and never a wrong byte.
  bool flips_bits_ = false;        ///< On their way.
  bool calm_ = false;
  double event_rate_ = 0;
  std::vector<NamespaceRecord> records_;  ///< Of chains.
  std::vector<NamespaceRecord> sets_;
  enum class Naming { kOurs, kEngine, kPadded, kPaddedInFront };  ///< 64 bits of an engine's, before or after zeros.
  std::vector<Naming> naming_;                                    ///< By record.
  std::vector<bool> is_kept_;                                     ///< Nobody ever drops any of it.
  struct Kept {
    int life = 0;
    std::map<std::string, std::uint64_t> most;  ///< Blocks seen in that life, by record.
  };
  std::vector<Kept> kept_;  ///< By node.
  std::uint64_t disk_capacity_ = 0;
  bool is_audited_ = false;
  std::vector<std::vector<std::uint32_t>> prompts_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
};

}  // namespace kv::sim
