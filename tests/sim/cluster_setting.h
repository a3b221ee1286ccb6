// tests/sim/cluster_setting.h: the members, etcd and clients that a seed draws, and what must hold of them at any time.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/sim_etcd.h"
#include "tests/sim/sim_member.h"
#include "tests/sim/sim_run.h"

namespace kv::sim {

inline constexpr std::size_t kRoots = 3;
inline constexpr std::byte kScribble{0xA5};  ///< What the memory of a call that has ended holds.

class ClusterSetting : public SimRun<ClusterOutcome> {
 public:
  explicit ClusterSetting(std::uint64_t seed)
      : SimRun(seed, 5'000'000), etcd_(clock_, context_.get_executor(), mix(seed + 1)) {
    // Each seed draws its own mixture, and many draw none of a kind.
    lends_ = mix(seed ^ 3) % 2 == 0;
    hedges_at_once_ = mix(seed ^ 4) % 4 == 0;
    slot_count_ = pick(2, 5);
    worker_count_ = pick(1, 3);
    constexpr std::uint32_t kExtentBlocks[] = {2, 3, 8, 8, 64};
    is_calm_ = chance(0.3);
    has_room_ = is_calm_ || chance(0.7);
    SimFaults faults;
    faults.delay_max = std::chrono::microseconds(pick(20, 3000));
    faults.chunk_bytes_max = std::size_t{1} << pick(8, 18);
    if (!is_calm_ && chance(0.4)) faults.break_probability = real(0, 0.003);
    if (!is_calm_ && chance(0.3)) faults.stall_probability = real(0, 0.02);
    has_steady_network_ = faults.break_probability == 0 && faults.stall_probability == 0;
    network_.set_faults(faults);

    constexpr std::size_t kBlockBytes[] = {64, 512, 5000};
    const std::size_t block_bytes = kBlockBytes[pick(0, 2)];
    for (std::size_t i = 0, count = pick(1, 2); i < count; ++i) {
      records_.push_back(NamespaceRecord::from_fields({{"model", "cluster"},
                                                       {"block_size", "4"},
                                                       {"block_bytes", std::to_string(block_bytes)},
                                                       {"salt", std::to_string(i)}})
                             .value());
    }
    StoreConfig store;
    store.policy = has_room_ ? PolicyKind::kLru : static_cast<PolicyKind>(seed % std::size(kPolicyNames));
    store.arena.granule_bytes = 16 << 10;
    store.arena.capacity_bytes = has_room_ ? 48 << 20 : std::max<std::size_t>(block_bytes * pick(100, 600), 256 << 10);
    store.arena.huge_pages = false;
    store.arena.touch = false;
    store.lease_duration = std::chrono::milliseconds(pick(100, 3000));
    DiskFaults disk;
    if (chance(0.3)) {
      has_disk_ = true;
      store.disk.capacity_bytes = 64 << 20;
      store.disk.segment_bytes = 200'000;
      store.spill.reserve = 0.1;
      disk.delay_max = std::chrono::microseconds(pick(50, 2000));
    }
    config_.lease = std::chrono::seconds(pick(2, 10));
    config_.extent_blocks = kExtentBlocks[pick(0, std::size(kExtentBlocks) - 1)];
    config_.move_rate = chance(0.2) ? 200'000 : 1 << 30;
    config_.join_max = std::chrono::seconds(config_.move_rate < (1 << 20) ? 300 : pick(20, 300));
    config_.copy_uses = chance(0.5) ? 0 : pick(1, 2);
    for (std::size_t i = 0; i < slot_count_; ++i) {
      SimMemberConfig config = config_;
      config.weight = chance(0.3) ? real(0.5, 3) : 1;
      members_.push_back(std::make_unique<SimMember>(context_, network_, clock_, etcd_, "n" + std::to_string(i), store,
                                                     config, disk, mix(seed + i),
                                                     [this](std::exception_ptr error) { part_ended(error); }));
      if (i >= 1 && chance(0.3)) members_.back()->kill();  // it comes later
    }
    last_epochs_.resize(slot_count_);
    check_due_.resize(slot_count_);
    for (std::size_t root = 0; root < kRoots; ++root) roots_.push_back(random_tokens(4 * pick(1, 20)));
    for (std::size_t i = 0; i < 50; ++i) {
      std::vector<std::uint32_t> tokens = roots_[i % kRoots];
      if (i >= kRoots && chance(0.3)) {  // as conversations go on
        const auto& parent = prompts_[pick(0, prompts_.size() - 1)];
        tokens.assign(parent.begin(), parent.begin() + static_cast<std::ptrdiff_t>(pick(4, parent.size())));
      }
      const auto more = random_tokens(pick(4, 160));
      tokens.insert(tokens.end(), more.begin(), more.end());
      prompts_.push_back(std::move(tokens));
    }
  }

 protected:
  struct Worker {
    std::unique_ptr<Client> client;
    std::vector<Space> spaces;
    std::vector<bool> open;
    std::uint64_t epoch = 0;
    std::span<std::byte> lent;        ///< Where its calls' blocks lie, in worlds where memory is lent.
    std::size_t scribbled_bytes = 0;  ///< So many of it hold kScribble since the last call has ended.
  };

  /// For a person who looks into a failure, among what the nodes log: KV_SIM_LOG.
  void tell(const std::string& what) const { spdlog::info("at {:.3f} s: {}", seconds(), what); }
  void fail(const std::string& what) override {
    tell("FAILS: " + what);
    SimRun::fail(what + ", " + std::to_string(seconds()) + " s after the start");
  }
  double seconds() const { return std::chrono::duration<double>(clock_.now() - began_).count(); }

  void look() override {
    for (std::size_t i = 0; i < slot_count_; ++i) {
      SimMember& member = *members_[i];
      member.look();
      if (!member.is_alive()) continue;
      check_store(i);
      const auto view = member.view();
      LastEpoch& last = last_epochs_[i];
      if (last.life != member.node().life_count()) last = {member.node().life_count(), 0};
      if (view->epoch < last.epoch) fail(member.node().name() + ": its epoch fell");
      if (view->epoch == last.epoch) continue;
      last.epoch = view->epoch;
      // Of one epoch, whoever tells it, there is one list.
      const auto [known, is_new] = views_.emplace(view->epoch, digest_of(*view));
      outcome_.epochs += is_new;
      if (!is_new && view->epoch > lost_epoch_ && known->second != digest_of(*view))
        fail(member.node().name() + ": another list of epoch " + std::to_string(view->epoch));
    }
  }

  /// That counts all of its blocks: a Store of many is looked at less often, or nothing else would be done. What it
  /// finds broken stays broken most often; and all are looked at after each thing that goes wrong, and at the end.
  void check_store(std::size_t number) {
    constexpr std::uint64_t kBlocksPerStep = 2, kFixed = 256;
    if (steps_ < check_due_[number]) return;
    const SimNode& node = members_[number]->node();
    const std::string broken = node.check();
    if (!broken.empty()) fail(node.name() + ": " + broken);
    const StoreStats stats = node.stats();
    check_due_[number] = steps_ + (kFixed + stats.block_count + stats.disk_block_count) / kBlocksPerStep;
  }

  void check_all_next() { std::ranges::fill(check_due_, 0); }

  /// It may go back where most of those who answer tell an earlier one: only of calm worlds is it known that none does.
  void check_epoch(Worker& worker) {
    const std::uint64_t epoch = worker.client->cluster().epoch;
    if (is_calm_ && !was_off_the_list_ && outcome_.etcd_losses == 0 && outcome_.etcd_outages == 0 &&
        epoch < worker.epoch)
      fail("a client's epoch fell from " + std::to_string(worker.epoch) + " to " + std::to_string(epoch) +
           links_of(*worker.client));
    worker.epoch = epoch;
  }

  static std::string links_of(const Client& client) {
    std::string text = "; its links:";
    for (const NodeStatus& node : client.nodes()) {
      text += " " + node.endpoint + " (" + node.node_id + (node.connected ? ", connected" : "") +
              (node.breaker_open ? ", open" : "") + ", " + std::to_string(node.failures) + " of " +
              std::to_string(node.calls) + " calls failed: " + node.last_error_text + ")";
    }
    return text;
  }

  template <class Count>
  std::uint64_t sum(Count count) const {
    std::uint64_t total = 0;
    for (const auto& member : members_) total += member->sum(count);
    return total;
  }
  static StoreStats stats_of(const NodeContext& node) {
    return node.store.with([](Store& store) { return store.stats(); });
  }
  std::uint64_t lost_count() const {
    return sum([](const NodeContext& node) {
      const StoreStats stats = stats_of(node);
      return stats.evicted_blocks + stats.lost_blocks + stats.lost_unspilled_blocks + stats.disk_evicted_blocks;
    });
  }
  void changed() {
    changed_ = clock_.now();
    check_all_next();
    note(steps_);
  }
  SimMember& any_member() { return *members_[pick(0, slot_count_ - 1)]; }
  std::size_t alive_count() const {
    return static_cast<std::size_t>(std::ranges::count_if(members_, [](const auto& m) { return m->is_alive(); }));
  }
  /// Nodes that start then begin with its low revisions. To those who were there these are of the past.
  void lose_etcd() {
    etcd_.lose_data();
    ++outcome_.etcd_losses;
    for (const LastEpoch& last : last_epochs_) lost_epoch_ = std::max(lost_epoch_, last.epoch);
  }

  void mend() {
    network_.mend_all();
    for (const std::string& name : isolated_) network_.thaw(name);
    isolated_.clear();
    // One that lost its power hears nothing until it starts.
    for (const auto& member : members_) {
      if (!member->is_alive() && member->node().is_without_power()) network_.freeze(member->node().name());
    }
    etcd_.mend_all();
    changed();
  }

  static std::string client_name(std::size_t worker) { return "client" + std::to_string(worker); }

  void make_client(std::size_t number) {
    Worker& worker = workers_[number];
    ClientConfig config;
    config.nodes = {{.endpoint = "sim://n0"}};
    if (chance(0.5)) config.nodes.push_back({.endpoint = "sim://n" + std::to_string(slot_count_ - 1)});
    config.identity = client_name(number);
    config.connections_per_node = pick(1, 2);
    config.connect_timeout = std::chrono::milliseconds(pick(50, 500));
    config.backoff_min = 5ms;
    config.backoff_max = 200ms;
    config.breaker_failures = pick(1, 5);
    config.breaker_open = std::chrono::milliseconds(pick(100, 1000));
    config.seed = random_() | 1;
    config.extent_blocks = config_.extent_blocks;
    if (hedges_at_once_) {  // so that a late node's answers meet the second's
      config.hedge_share = 1;
      config.hedge_after_min = config.hedge_after_max = 200us;
    }
    worker.client =
        std::make_unique<Client>(context_.get_executor(), config, network_.from(client_name(number)), clock_);
    worker.spaces.assign(records_.size(), {});
    worker.open.assign(records_.size(), false);
    worker.epoch = 0;
    worker.lent = {};
    worker.scribbled_bytes = 0;
  }

  void end_client(Worker& worker) {
    for (const NodeStatus& node : worker.client->nodes())
      outcome_.hedges += node.hedges, outcome_.hedge_wins += node.hedge_wins;
    worker.client.reset();
  }

  /// For the blocks of a call: what nodes read and write themselves, or the worker's own. Nobody writes to lent memory
  /// after the call for which it was lent, but where that is said; what may be written to is given up.
  std::span<std::byte> memory_for(Worker& worker, std::size_t bytes, std::vector<std::byte>& own) {
    if (!lends_) {
      own.resize(bytes);
      return own;
    }
    Client& client = *worker.client;
    if (client.is_quarantined(worker.lent) || worker.lent.size() < bytes) {
      if (!worker.lent.empty() && !client.free_memory(worker.lent)) fail("free_memory: refused");
      worker.lent = client.allocate(std::max<std::size_t>(bytes, 256 << 10)).value();
      worker.scribbled_bytes = 0;
    }
    if (std::ranges::any_of(worker.lent.first(worker.scribbled_bytes),
                            [](std::byte each) { return each != kScribble; }))
      fail("lent memory was written to after the call");
    worker.scribbled_bytes = bytes;
    return worker.lent.first(bytes);
  }

  std::vector<BlockHash> chain_of(std::size_t which, std::span<const std::uint32_t> tokens) const {
    return hash_chain(records_[which].digest(), tokens, records_[which].block_size());
  }

  asio::awaitable<std::size_t> get(Worker& worker, std::size_t which, std::span<const BlockHash> chain,
                                   GetOptions options) {
    const std::size_t block_bytes = records_[which].block_bytes();
    std::vector<std::byte> own, right(block_bytes);
    const std::span<std::byte> memory = memory_for(worker, chain.size() * block_bytes, own);
    std::ranges::fill(memory, std::byte{0x5A});
    std::vector<std::span<std::byte>> blocks;
    for (std::size_t b = 0; b < chain.size(); ++b) blocks.emplace_back(memory.data() + b * block_bytes, block_bytes);
    const auto got = co_await worker.client->get(worker.spaces[which], chain, blocks, options);
    if (worker.client->is_quarantined(memory)) worker.scribbled_bytes = 0;
    if (!got) {
      std::ranges::fill(memory, kScribble);
      co_return 0;
    }
    if (got->block_count > chain.size()) fail("get: more blocks than hashes");
    for (std::size_t b = 0; b < got->block_count && b < chain.size(); ++b) {
      fill_block(records_[which].id(), chain[b], right);
      if (std::memcmp(right.data(), blocks[b].data(), block_bytes) != 0) fail("get: wrong bytes");
    }
    if (got->corrupt_count > 0) fail("get: corrupt blocks, and no bit was flipped");
    outcome_.hit_blocks += got->block_count;
    // What comes late must not land in memory that is used again: it is scribbled over, and whoever reads it sees.
    std::ranges::fill(memory, kScribble);
    co_return got->block_count;
  }

  /// How many are stored now, of all.
  asio::awaitable<std::size_t> put(Worker& worker, std::size_t which, std::span<const BlockHash> chain,
                                   std::chrono::microseconds deadline) {
    const std::size_t block_bytes = records_[which].block_bytes();
    std::vector<std::byte> own;
    const std::span<std::byte> memory = memory_for(worker, chain.size() * block_bytes, own);
    std::vector<std::span<const std::byte>> blocks;
    for (std::size_t b = 0; b < chain.size(); ++b) {
      const auto block = memory.subspan(b * block_bytes, block_bytes);
      fill_block(records_[which].id(), chain[b], block);
      blocks.push_back(block);
    }
    const auto result = co_await worker.client->put(worker.spaces[which], chain, blocks, {.deadline = deadline});
    std::ranges::fill(memory, kScribble);
    if (!result || result->why) is_exact_ = false;  // a node may have taken what was not answered
    if (!result) co_return 0;
    if (result->stored + result->already_stored + result->refused != chain.size()) fail("put: counts do not add up");
    outcome_.stored_blocks += result->stored;
    put_blocks_ += result->stored;
    note(result->stored);
    co_return result->stored + result->already_stored;
  }

  const TimePoint began_ = clock_.now();
  SimEtcd etcd_;
  std::size_t slot_count_ = 0, worker_count_ = 0;
  SimMemberConfig config_;
  bool was_off_the_list_ = false;    ///< A node that is alive; it reports the earlier list for a while.
  bool is_calm_ = false;             ///< Nodes come and go as they should, and nothing else happens.
  bool has_room_ = false;            ///< Nothing is ever evicted.
  bool has_steady_network_ = false;  ///< But for ways that are cut.
  bool has_disk_ = false;
  bool lends_ = false;           ///< Blocks lie in memory that is lent to nodes.
  bool hedges_at_once_ = false;  ///< Almost every read is late.
  bool is_exact_ = true;
  std::vector<NamespaceRecord> records_;
  std::vector<std::vector<std::uint32_t>> roots_, prompts_;
  std::vector<std::unique_ptr<SimMember>> members_;
  struct LastEpoch {
    int life = 0;
    std::uint64_t epoch = 0;
  };
  std::vector<LastEpoch> last_epochs_;
  std::vector<std::uint64_t> check_due_;          ///< Steps, by slot.
  std::map<std::uint64_t, std::uint64_t> views_;  ///< Digests, by epoch.
  std::uint64_t lost_epoch_ = 0;                  ///< The latest of those from before etcd was made anew.
  std::set<std::string> isolated_;
  std::vector<Worker> workers_;
  std::uint64_t put_blocks_ = 0;
  TimePoint changed_{};
};

}  // namespace kv::sim
