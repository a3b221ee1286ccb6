#include "tests/sim/sim_world.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "index/name_groups.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_base.h"

namespace kv::sim {
namespace {

constexpr std::size_t kChainBytesMax = 400'000;  ///< Of one call, or one block if that is larger.
constexpr std::size_t kMemoryBytes = 1 << 20;    ///< Lent by a worker.

/// Of a set, where a name may have one of several contents, and keeps the one that came first: each has a length of its
/// own, and the bytes are those of name and length.
BlockHash content_of(const BlockHash& hash, std::size_t length) {
  BlockHash content = hash;
  for (std::size_t i = 0; i < sizeof length; ++i) content.bytes[i] ^= std::byte(length >> 8 * i);
  return content;
}

bool block_is_right(const NamespaceId& space, const BlockHash& hash, std::span<const std::byte> bytes) {
  std::vector<std::byte> right(bytes.size());
  fill_block(space, hash, right);
  return std::memcmp(right.data(), bytes.data(), bytes.size()) == 0;
}

class World : private Dice {
 public:
  explicit World(std::uint64_t seed) : Dice(seed), network_(clock_, mix(seed)) {
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

  WorldOutcome run() {
    workers_.resize(worker_count_);
    for (std::size_t i = 0; i < worker_count_; ++i) {
      begin(work(i, pick(20, 120)));
    }
    while (running_ > 0 && step()) {
      if (event_rate_ <= 0 || !chance(event_rate_)) continue;
      cause_event();
      pace_.disturb();
    }
    if (outcome_.failure.empty()) heal_and_converge();
    finish();
    return outcome_;
  }

 private:
  struct Worker {
    std::unique_ptr<Client> client;
    std::vector<Space> spaces;  ///< By record.
    std::vector<bool> open;
    std::map<std::size_t, Space> sets;  ///< By number, once open.
    std::span<std::byte> set_memory;    ///< Lent for RDMA.
    Lease set_lease{};
  };

  void note(std::uint64_t what) { outcome_.trace_hash = mix(outcome_.trace_hash ^ what); }
  void fail(const std::string& what) {
    if (outcome_.failure.empty()) outcome_.failure = what;
  }

  /// Runs what is ready; when nothing is, moves time to the next alarm. False when stuck or something broke.
  bool step() {
    if (!outcome_.failure.empty()) return false;
    if (pace_.step() == Pace::Step::kStuck) {
      fail("stuck: calls are in progress, and nothing will ever wake them");
      return false;
    }
    if (++steps_ % 64 == 0) {
      check_nodes();
      pace_.disturb();
    }
    if (steps_ > 3'000'000) fail("no end: 3,000,000 steps");
    return outcome_.failure.empty();
  }

  void check_nodes() {
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
    for (const NamespaceStats& each : node.namespaces()) {
      const auto which = std::ranges::find(records_, each.record, &NamespaceRecord::text) - records_.begin();
      if (static_cast<std::size_t>(which) == records_.size()) continue;  // a set
      if (!is_kept_[static_cast<std::size_t>(which)]) continue;
      std::uint64_t& most = kept.most[each.record];
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

  void cause_event() {
    SimNode& node = *nodes_[pick(0, nodes_.size() - 1)];
    switch (pick(0, verbs_ ? 9 : 6)) {
      case 9: verbs_->set_link(device(pick(0, node_count_ + worker_count_ - 1)), false); break;
      case 7: heal_devices(); break;
      case 8: {
        const std::string name = device(pick(0, node_count_ + worker_count_ - 1));
        if (has_device(name)) verbs_->remove_device(name);
        break;
      }
      case 0:
        outcome_.evicted_blocks += node.stats().evicted_blocks;
        node.kill();
        ++outcome_.kills;
        break;
      case 6:
        outcome_.evicted_blocks += node.stats().evicted_blocks;
        if (node.is_alive()) ++outcome_.stops;
        node.stop();
        if (chance(0.5)) node.start();
        break;
      case 1:
      case 2:
        if (!node.is_alive()) node.start();
        break;
      case 3:
        network_.freeze(node.name());
        ++outcome_.freezes;
        break;
      case 4: network_.thaw(node.name()); break;
      default:
        network_.break_one();
        ++outcome_.breaks;
        break;
    }
    note(steps_);
  }

  static std::string device(std::size_t number) { return "fake" + std::to_string(number); }

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

  /// Where no bit is flipped, nobody has a reason to find a frame malformed.
  void check_frames(const char* verb, error_code why) {
    if (why == Errc::kBadFrame && !flips_bits_) fail(std::string(verb) + ": a malformed frame, and no bit was flipped");
  }
  /// A call that began at `began` with this deadline must be over: the executor is never late here.
  void check_deadline(const char* verb, TimePoint began, std::chrono::microseconds deadline) {
    ++outcome_.calls;
    if (clock_.now() > began + deadline) {
      fail(std::string(verb) + " ended " +
           std::to_string(
               std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - began - deadline).count()) +
           " us after its deadline");
    }
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

  std::vector<BlockHash> random_chain(std::size_t which) {
    const NamespaceRecord& record = records_[which];
    auto chain = chain_of(which, prompts_[pick(0, prompts_.size() - 1)]);
    // Few small Stores: keep one chain well below what all of them hold, but let many chains not fit.
    const std::size_t most = std::max<std::size_t>(1, kChainBytesMax / record.block_bytes());
    chain.resize(std::min(chain.size(), most));
    return chain;
  }

  asio::awaitable<void> work(std::size_t worker, std::size_t call_count) {
    auto& [client, spaces, open, sets, set_memory, set_lease] =
        workers_[worker];  // outlives us: the audit goes on with what it has learned
    client = make_client(worker);
    spaces.resize(records_.size());
    open.resize(records_.size(), false);
    std::vector<std::byte> own_memory;
    std::span<std::byte> memory;  // own, or lent for RDMA
    Lease lease{};
    for (std::size_t i = 0; i < call_count && outcome_.failure.empty(); ++i) {
      if (chance(0.01)) {  // a worker restarts
        client.reset();
        client = make_client(worker);
        std::fill(open.begin(), open.end(), false);
        workers_[worker].sets.clear();
        workers_[worker].set_memory = {};
        workers_[worker].set_lease = Lease{};
        lease = Lease{};
        memory = {};
      }
      if (!sets_.empty() && chance(0.3)) {
        co_await work_on_set(workers_[worker]);
        continue;
      }
      const std::size_t which = pick(0, records_.size() - 1);
      const NamespaceRecord& record = records_[which];
      const auto deadline = std::chrono::microseconds(chance(0.3) ? pick(100, 3000) : pick(20'000, 400'000));
      const TimePoint began = clock_.now();
      if (!open[which]) {
        const auto opened = co_await client->open(record, deadline);
        check_deadline("open", began, deadline);
        if (!opened) continue;
        spaces[which] = *opened;
        open[which] = true;
        continue;
      }
      const Space space = spaces[which];
      const auto chain = random_chain(which);
      if (chain.empty()) continue;
      const std::size_t block_bytes = record.block_bytes();
      const std::vector<Gone> gone = gone_of(which, chain);  // from here on nobody may find them
      if (verbs_) {
        if (!memory.empty() && client->is_quarantined(memory)) {
          if (!client->free_memory(memory)) fail("free_memory: refused");
          memory = {};
        }
        if (memory.empty()) memory = client->allocate(kMemoryBytes).value();
      } else {
        own_memory.resize(chain.size() * block_bytes);
        memory = own_memory;
      }
      switch (pick(0, 11)) {
        case 0:
        case 1: {
          const bool want_lease = chance(0.5);
          const auto match = co_await client->match(space, chain, {.deadline = deadline, .lease = want_lease});
          check_deadline("match", began, deadline);
          if (!match) break;
          if (match->block_count > chain.size()) fail("match: more blocks than hashes");
          check_gone("match", which, chain, match->block_count, gone);
          if (match->lease != Lease{}) {
            if (lease != Lease{}) client->release(lease);
            lease = match->lease;
          }
          note(match->block_count);
          break;
        }
        case 2: {
          const auto touched = co_await client->touch(space, chain, deadline);
          check_deadline("touch", began, deadline);
          (void)touched;
          break;
        }
        case 3: {
          const bool pins = chance(0.3), drops = chance(0.5) && !is_kept_[which], drops_all = drops && chance(0.2);
          Result<std::size_t> count(std::size_t{0});
          if (drops_all) {
            const std::span<const BlockHash> none;  // the whole namespace
            const auto dropped = co_await client->drop(space, none, deadline);
            static_cast<void>(dropped);
          } else if (drops) {
            const Fate before = fates_[{which, chain.back()}];
            const auto dropped = co_await client->drop(space, chain, deadline);
            Fate& fate = fates_[{which, chain.back()}];
            if (dropped && !dropped->until_restart && is_untouched_by_puts(before, fate)) {
              fate.is_dropped = true;
              ++outcome_.kept_drops;
            }
          } else if (pins) {
            count = co_await client->retain(space, chain, deadline);
          } else {
            count = co_await client->unretain(space, chain, deadline);
          }
          check_deadline("pin, unpin or drop", began, deadline);
          (void)count;
          break;
        }
        case 4:
        case 5:
        case 6:
        case 7: {
          // Memory is scribbled over before and after: a node or client that writes late is seen by the next reader.
          std::fill(memory.begin(), memory.end(), std::byte{0x5A});
          std::vector<std::span<std::byte>> blocks;
          for (std::size_t b = 0; b < chain.size(); ++b)
            blocks.emplace_back(memory.data() + b * block_bytes, block_bytes);
          std::vector<std::uint64_t> ends;
          if (block_bytes > kStripeBytes && chance(0.5)) ends = {kStripeBytes, block_bytes};
          GetOptions options{.deadline = deadline, .lease = lease, .segment_ends = ends};
          lease = Lease{};
          const auto got = co_await client->get(space, chain, blocks, options);
          check_deadline("get", began, deadline);
          if (!got) break;
          if (got->block_count > chain.size()) {
            fail("get: more blocks than hashes");
            break;
          }
          for (std::size_t b = 0; b < got->block_count; ++b) {
            if (!block_is_right(record.id(), chain[b], blocks[b])) {
              fail("get: wrong bytes in block " + std::to_string(b) + " of " + std::to_string(got->block_count) + " (" +
                   std::to_string(block_bytes) + " bytes, the first now " +
                   to_hex(blocks[b].first(std::min<std::size_t>(16, block_bytes))) + ")");
            }
          }
          check_gone("get", which, chain, got->block_count, gone);
          outcome_.hit_blocks += got->block_count;
          outcome_.corrupt_blocks += got->corrupt_count;
          check_frames("get", got->why);
          if (got->why == asio::error::timed_out) ++outcome_.missed_deadlines;
          note(got->block_count);
          break;
        }
        default: {
          std::vector<std::span<const std::byte>> blocks;
          for (std::size_t b = 0; b < chain.size(); ++b) {
            const std::span<std::byte> block(memory.data() + b * block_bytes, block_bytes);
            fill_block(record.id(), chain[b], block);
            blocks.push_back(block);
          }
          for (const BlockHash& hash : chain) {
            Fate& fate = fates_[{which, hash}];
            fate.is_dropped = false;
            ++fate.put_count;
            ++fate.unfinished_puts;
          }
          const auto put = co_await client->put(space, chain, blocks, {.deadline = deadline});
          check_deadline("put", began, deadline);
          if (put && !put->why) {  // else a node may yet take what has reached it
            for (const BlockHash& hash : chain) --fates_[{which, hash}].unfinished_puts;
          }
          if (!put) break;
          check_frames("put", put->why);
          if (put->stored + put->already_stored + put->refused != chain.size()) fail("put: counts do not add up");
          outcome_.stored_blocks += put->stored;
          note(put->stored);
          std::fill(memory.begin(), memory.end(), std::byte{0xA5});
          break;
        }
      }
      if (chance(0.3)) co_await sleep(std::chrono::microseconds(pick(1, 50'000)));
    }
  }

  /// What is known of a block: once a drop of it was answered, and not "until restart", nobody may find it before it is
  /// put again, whatever happens to the nodes.
  struct Fate {
    std::uint64_t put_count = 0, unfinished_puts = 0;
    bool is_dropped = false;
  };
  /// Whether no put of the block was under way at any moment in between: one might store it after the drop.
  static bool is_untouched_by_puts(const Fate& before, const Fate& after) {
    return before.put_count == after.put_count && before.unfinished_puts == 0 && after.unfinished_puts == 0;
  }
  struct Gone {
    std::size_t position;
    std::uint64_t put_count;
  };

  // -- sets: names from a small pool, so that workers meet; the same in all sets

  static constexpr std::size_t kSetFates = 1000;  ///< Sets come behind chains in fates_.
  static BlockHash set_name(std::size_t number) {
    BlockHash hash;
    const std::uint64_t words[] = {mix(number), mix(number + 1000), mix(number + 2000), mix(number + 3000)};
    std::memcpy(hash.bytes.data(), words, sizeof words);
    return hash;
  }
  std::size_t set_length(std::size_t which, std::size_t number, std::size_t variant) const {
    const std::size_t most = sets_[which].block_bytes();
    const std::uint64_t drawn = mix(number * 2 + variant);
    return drawn % 7 == 0 ? most : 1 + drawn / 7 % (drawn % 2 == 0 ? most : std::min<std::size_t>(most, 500));
  }

  asio::awaitable<void> work_on_set(Worker& worker) {
    Client& client = *worker.client;
    const std::size_t which = pick(0, sets_.size() - 1);
    const NamespaceRecord& record = sets_[which];
    const auto deadline = std::chrono::microseconds(chance(0.3) ? pick(100, 3000) : pick(20'000, 400'000));
    const TimePoint began = clock_.now();
    if (!worker.sets.contains(which)) {
      const auto opened = co_await client.open(record, deadline);
      check_deadline("open", began, deadline);
      if (opened) worker.sets[which] = *opened;
      co_return;
    }
    const Space set = worker.sets[which];
    std::vector<std::size_t> numbers, variants;
    std::vector<BlockHash> hashes;
    std::size_t bytes = 0;
    // Other names: a group lies where its first name belongs, and a name alone where that one does.
    const bool has_groups = chance(0.4);
    std::vector<std::uint32_t> groups;
    for (std::size_t i = 0, count = pick(1, chance(0.2) ? 60 : 8); i < count; ++i) {
      const std::size_t first = has_groups ? 1000 + 4 * pick(0, 19) : pick(0, 79);
      const std::size_t size = has_groups ? 1 + first / 4 % 4 : 1;
      std::size_t room = 0;
      for (std::size_t k = 0; k < size; ++k)
        room += std::max(set_length(which, first + k, 0), set_length(which, first + k, 1));
      if (bytes + room > kChainBytesMax && i > 0) break;
      bytes += room;
      if (has_groups) groups.push_back(static_cast<std::uint32_t>(size));
      for (std::size_t k = 0; k < size; ++k) {
        numbers.push_back(first + k);
        variants.push_back(chance(0.1) ? 1 : 0);
        hashes.push_back(set_name(first + k));
      }
    }
    const std::size_t fate_key = kSetFates + which;
    const std::vector<Gone> gone = gone_of(fate_key, hashes);
    std::vector<std::byte> own_memory;
    std::span<std::byte> memory;
    if (verbs_) {
      if (!worker.set_memory.empty() && client.is_quarantined(worker.set_memory)) {
        if (!client.free_memory(worker.set_memory)) fail("free_memory: refused");
        worker.set_memory = {};
      }
      if (worker.set_memory.empty()) worker.set_memory = client.allocate(kMemoryBytes).value();
      memory = worker.set_memory;
    } else {
      own_memory.resize(bytes);
      memory = own_memory;
    }
    switch (pick(0, 9)) {
      case 0:
      case 1: {
        const SetMatchOptions options{
            .deadline = deadline, .lease = chance(0.5), .control = {}, .group_counts = groups};
        const auto match = co_await client.match_set(set, hashes, options);
        check_deadline("match_set", began, deadline);
        if (!match) break;
        check_whole_groups("match_set", groups, [&](std::size_t i) { return match->held[i] != Held::kNowhere; });
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          if (match->held[i] == Held::kNowhere) continue;
          check_set_block("match_set", which, numbers[i], match->block_bytes[i]);
          check_set_gone("match_set", fate_key, hashes, i, gone);
        }
        if (match->lease != Lease{}) {
          if (worker.set_lease != Lease{}) client.release(worker.set_lease);
          worker.set_lease = match->lease;
        }
        note(match->held_count);
        break;
      }
      case 2: {
        Result<std::size_t> count(std::size_t{0});
        if (chance(0.5)) {
          count = co_await client.touch(set, hashes, deadline);
        } else if (chance(0.3)) {
          count = co_await client.retain(set, hashes, deadline);
        } else {
          count = co_await client.unretain(set, hashes, deadline);
        }
        check_deadline("touch, pin or unpin of a set", began, deadline);
        (void)count;
        break;
      }
      case 3: {
        const bool drops_all = chance(0.1);
        std::vector<BlockHash> names;  // of a group the first: then the group is gone
        for_each_group(groups, hashes.size(), [&](std::size_t first, std::size_t) { names.push_back(hashes[first]); });
        std::vector<Fate> before;
        for (const BlockHash& hash : names) before.push_back(fates_[{fate_key, hash}]);
        const std::span<const BlockHash> which_ones = drops_all ? std::span<const BlockHash>() : std::span(names);
        const auto dropped = co_await client.drop(set, which_ones, deadline);
        check_deadline("drop of a set", began, deadline);
        for (std::size_t i = 0; i < names.size() && !drops_all; ++i) {
          Fate& fate = fates_[{fate_key, names[i]}];
          if (!dropped || dropped->until_restart || !is_untouched_by_puts(before[i], fate)) continue;
          fate.is_dropped = true;
          ++outcome_.kept_drops;
        }
        break;
      }
      case 4:
      case 5:
      case 6: {
        std::fill(memory.begin(), memory.end(), std::byte{0x5A});
        std::vector<std::span<std::byte>> blocks;
        for (std::span<std::byte> rest = memory; const std::size_t number : numbers) {
          const std::size_t room = std::max(set_length(which, number, 0), set_length(which, number, 1));
          blocks.push_back(rest.first(chance(0.1) ? pick(0, room) : room));
          rest = rest.subspan(room);
        }
        const SetGetOptions options{.deadline = deadline,
                                    .lease = worker.set_lease,
                                    .memory_only = false,
                                    .control = {},
                                    .group_counts = groups};
        const auto got = co_await client.get_set(set, hashes, blocks, options);
        worker.set_lease = Lease{};
        check_deadline("get_set", began, deadline);
        if (!got) break;
        for_each_group(groups, hashes.size(), [&](std::size_t first, std::size_t count) {
          // All of a group for one that is too long. A request in which a length was flipped is refused as a whole.
          bool is_too_large = false, is_too_long = false;
          for (std::size_t i = first; i < first + count; ++i) {
            const SetGetBlock& block = got->blocks[i];
            is_too_large = is_too_large || block.why == Errc::kTooLarge;
            is_too_long =
                is_too_long || block.block_bytes > blocks[i].size() || (flips_bits_ && block.block_bytes == 0);
          }
          if (is_too_large && !is_too_long) fail("get_set: it has room");
        });
        outcome_.set_groups_got +=
            check_whole_groups("get_set", groups, [&](std::size_t i) { return got->blocks[i].has_landed; });
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          const SetGetBlock& block = got->blocks[i];
          if (block.block_bytes > 0) check_set_block("get_set", which, numbers[i], block.block_bytes);
          outcome_.set_blocks_too_long += block.why == Errc::kTooLarge;
          if (!block.has_landed) continue;
          ++outcome_.set_blocks_got;
          if (!block_is_right(record.id(), content_of(hashes[i], block.block_bytes),
                              blocks[i].first(block.block_bytes)))
            fail("get_set: wrong bytes in block " + std::to_string(i));
          check_set_gone("get_set", fate_key, hashes, i, gone);
        }
        outcome_.corrupt_blocks += got->corrupt_count;
        check_frames("get_set", got->why);
        note(got->landed_count);
        break;
      }
      default: {
        std::vector<std::span<const std::byte>> blocks;
        std::span<std::byte> rest = memory;
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          const std::span<std::byte> block = rest.first(set_length(which, numbers[i], variants[i]));
          fill_block(record.id(), content_of(hashes[i], block.size()), block);
          blocks.push_back(block);
          rest = rest.subspan(block.size());
          Fate& fate = fates_[{fate_key, hashes[i]}];
          fate.is_dropped = false;
          ++fate.put_count;
          ++fate.unfinished_puts;
        }
        const SetPutOptions options{.deadline = deadline, .control = {}, .group_counts = groups};
        const auto put = co_await client.put_set(set, hashes, blocks, options);
        check_deadline("put_set", began, deadline);
        if (put && !put->why) {  // else a node may yet take what has reached it
          for (const BlockHash& hash : hashes) --fates_[{fate_key, hash}].unfinished_puts;
        }
        if (!put) break;
        check_frames("put_set", put->why);
        if (put->stored + put->already_stored + put->conflicts + put->refused != hashes.size())
          fail("put_set: counts do not add up");
        check_stored_groups(groups, put->blocks);
        outcome_.set_blocks_stored += put->stored;
        outcome_.set_conflicts += put->conflicts;
        note(put->stored);
        std::fill(memory.begin(), memory.end(), std::byte{0xA5});
        break;
      }
    }
    if (chance(0.3)) co_await sleep(std::chrono::microseconds(pick(1, 50'000)));
  }

  /// Of each group all or none. How many are whole.
  template <class Predicate>
  std::size_t check_whole_groups(const char* verb, std::span<const std::uint32_t> groups, Predicate is_there) {
    std::size_t first = 0, whole = 0;
    for (const std::uint32_t size : groups) {
      std::size_t count = 0;
      for (std::size_t i = first; i < first + size; ++i) count += is_there(i);
      if (count > 0 && count < size) fail(std::string(verb) + ": a part of a group");
      whole += count == size;
      first += size;
    }
    return whole;
  }
  void check_stored_groups(std::span<const std::uint32_t> groups, std::span<const SetPutBlock> blocks) {
    for (std::size_t first = 0; const std::uint32_t size : groups) {
      const auto group = blocks.subspan(first, size);
      const auto has = [&](SetPutBlock result) { return std::ranges::find(group, result) != group.end(); };
      if (has(SetPutBlock::kStored) && (has(SetPutBlock::kRefused) || has(SetPutBlock::kConflict)))
        fail("put_set: stored a part of a group");
      first += size;
    }
  }
  void check_set_block(const char* verb, std::size_t which, std::size_t number, std::size_t length) {
    if (length != set_length(which, number, 0) && length != set_length(which, number, 1))
      fail(std::string(verb) + ": a block of " + std::to_string(length) + " bytes, that nobody put");
  }
  void check_set_gone(const char* verb, std::size_t fate_key, std::span<const BlockHash> hashes, std::size_t i,
                      std::span<const Gone> gone) {
    for (const Gone& each : gone) {
      if (each.position == i && fates_[{fate_key, hashes[i]}].put_count == each.put_count)
        fail(std::string(verb) + ": a block of a set that was dropped is back");
    }
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

  std::vector<Gone> gone_of(std::size_t which, std::span<const BlockHash> chain) {
    std::vector<Gone> gone;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const auto it = fates_.find({which, chain[i]});
      if (it != fates_.end() && it->second.is_dropped) gone.push_back({i, it->second.put_count});
    }
    return gone;
  }
  void check_gone(const char* verb, std::size_t which, std::span<const BlockHash> chain, std::size_t count,
                  std::span<const Gone> gone) {
    if (has_two_rules_ && node_count_ > 1) return;  // a drop by one rule does not look where the other one puts blocks
    for (const Gone& each : gone) {
      if (each.position < count && fates_[{which, chain[each.position]}].put_count == each.put_count)
        fail(std::string(verb) + ": a block that was dropped is back, " + std::to_string(each.position) + " of " +
             std::to_string(count));
    }
  }

  asio::awaitable<void> sleep(Duration duration) {
    Event over(context_.get_executor());
    const auto alarm = clock_.make_alarm(context_.get_executor());
    alarm->arm(clock_.now() + duration, [&over] { over.set(); });
    co_await over.wait();
  }

  void begin(asio::awaitable<void> task) {
    ++running_;
    pace_.disturb();
    asio::co_spawn(context_, std::move(task), [this](std::exception_ptr error) { worker_ended(error); });
  }
  void worker_ended(std::exception_ptr error) {
    --running_;
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      fail(std::string("exception: ") + caught.what());
    }
  }

  bool has_device(const std::string& name) const { return std::ranges::count(verbs_->device_names(), name) > 0; }
  void heal_devices() {
    for (std::size_t i = 0; i < node_count_ + worker_count_; ++i) {
      if (!has_device(device(i))) verbs_->return_device(device(i));
      verbs_->set_link(device(i), true);
    }
  }

  /// When faults stop, a fresh client can store a chain and get all of it back.
  void heal_and_converge() {
    network_.set_faults({});
    if (verbs_) {
      verbs_->set_fault_probability(0);
      heal_devices();
    }
    for (const auto& node : nodes_) {
      network_.thaw(node->name());
      if (!node->is_alive()) node->start();
      node->set_disk_faults({});
    }
    is_audited_ = true;  // what follows drops everything
    begin(converge());
    while (running_ > 0 && step()) {
    }
    begin(audit());
    while (running_ > 0 && step()) {
    }
  }

  // -- the audit: no faults any more, but nodes that restart, and a client that knows them from lives that have ended.
  // Others open the namespaces in other orders. Nothing may come of that but misses that a restart explains.

  asio::awaitable<void> audit() {
    Worker& old = workers_[0];
    for (int round = 0; round < 3 && outcome_.failure.empty(); ++round) {
      Worker stranger;
      stranger.client = make_client(99);
      co_await audit_open(old);
      co_await drop_sets(*old.client);
      const std::vector<std::vector<BlockHash>> chains = audit_chains();
      std::size_t bytes = 0;
      for (const std::size_t which : shuffled()) co_await audit_drop(old, which);
      for (const std::size_t which : shuffled()) {
        co_await audit_put(old, which, chains[which]);
        bytes += chains[which].size() * records_[which].block_bytes();
      }
      const auto lost_before = lost_count();
      const auto stored = co_await audit_match(old, chains);

      bool is_whole = true;  // what was there must be there again
      for (const auto& node : nodes_) {
        const std::size_t fate = pick(0, 2);
        if (fate == 0) continue;
        if (fate == 1) node->kill();
        if (fate == 2) node->stop();
        is_whole = is_whole && fate == 2 && bytes * 4 <= disk_capacity_;
        node->start();
        ++outcome_.audited_restarts;
      }
      co_await audit_open(stranger);
      const auto found = co_await audit_match(old, chains);
      for (std::size_t i = 0; i < found.size() && is_whole && lost_count() <= lost_before; ++i) {
        if (found[i] < stored[i])
          fail("audit: of " + std::to_string(stored[i]) + " blocks " + std::to_string(found[i]));
      }
      for (const std::size_t which : shuffled()) co_await audit_get(old, which, chains[which]);

      const std::size_t dropped = pick(0, records_.size() - 1);
      // Each client is compared with itself: of a chain whose root has become hot since it was put, one that was there
      // then knows the former place, and a stranger finds less.
      const auto before = co_await audit_match(stranger, chains);
      const auto before_of_old = co_await audit_match(old, chains);
      const auto lost = lost_count();
      co_await audit_drop(old, dropped);
      const auto after = co_await audit_match(stranger, chains);
      const auto seen_by_old = co_await audit_match(old, chains);
      for (std::size_t i = 0; i < after.size(); ++i) {
        const std::size_t due = i == dropped ? 0 : before[i], due_to_old = i == dropped ? 0 : before_of_old[i];
        if (lost_count() == lost && (after[i] != due || seen_by_old[i] != due_to_old))
          fail("audit: namespace " + std::to_string(dropped) + " was dropped, and of " + std::to_string(i) + " " +
               std::to_string(after[i]) + " blocks are seen, by an old client " + std::to_string(seen_by_old[i]) +
               ", of " + std::to_string(before[i]));
      }
      for (const std::size_t which : shuffled()) co_await audit_put(old, which, chains[which]);
      for (const std::size_t which : shuffled()) co_await audit_get(stranger, which, chains[which]);
    }
    for (Worker& worker : workers_) worker.client.reset();
  }

  std::vector<std::size_t> shuffled() {
    std::vector<std::size_t> order(records_.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  /// One prompt in all namespaces: then engines' own hashes are equal in several of them.
  std::vector<std::vector<BlockHash>> audit_chains() {
    constexpr std::size_t kAuditBytesMax = 60'000;
    const auto& tokens = prompts_[pick(0, prompts_.size() - 1)];
    std::vector<std::vector<BlockHash>> chains;
    for (std::size_t which = 0; which < records_.size(); ++which) {
      chains.push_back(chain_of(which, tokens));
      const std::size_t most = std::max<std::size_t>(1, kAuditBytesMax / records_[which].block_bytes());
      chains.back().resize(std::min(chains.back().size(), most));
    }
    return chains;
  }

  // Each is tried until nothing but the node's answer decides: a session that has just broken, a back-off or a breaker
  // may end a call early.
  static constexpr int kAuditTries = 40;

  asio::awaitable<void> audit_open(Worker& worker) {
    worker.spaces.resize(records_.size());
    worker.open.resize(records_.size(), false);
    for (const std::size_t which : shuffled()) {
      error_code error;
      for (int i = 0; i < kAuditTries && !worker.open[which]; ++i) {
        const auto opened = co_await worker.client->open(records_[which], 1s);
        worker.open[which] = opened.has_value();
        if (opened) worker.spaces[which] = *opened;
        if (!opened) error = opened.error();
        if (!opened) co_await sleep(500ms);
      }
      if (!worker.open[which]) fail("audit: open: " + error.message());
    }
  }

  asio::awaitable<std::vector<std::size_t>> audit_match(Worker& worker,
                                                        const std::vector<std::vector<BlockHash>>& chains) {
    std::vector<std::size_t> counts(chains.size());
    for (std::size_t which = 0; which < chains.size() && outcome_.failure.empty(); ++which) {
      if (chains[which].empty()) continue;
      error_code error = asio::error::timed_out;
      for (int i = 0; i < kAuditTries && error; ++i) {
        const auto match = co_await worker.client->match(worker.spaces[which], chains[which], {.deadline = 1s});
        error = match ? match->why : match.error();
        if (!error) counts[which] = match->block_count;
        if (error) co_await sleep(500ms);
      }
      if (error) fail("audit: match: " + error.message());
    }
    co_return counts;
  }

  asio::awaitable<void> audit_drop(Worker& worker, std::size_t which) {
    error_code error = asio::error::timed_out;
    for (int i = 0; i < kAuditTries && error && outcome_.failure.empty(); ++i) {
      const auto dropped = co_await worker.client->drop(worker.spaces[which], {}, 1s);
      error = dropped ? error_code() : dropped.error();
      if (error) co_await sleep(500ms);
    }
    if (error) fail("audit: drop: " + error.message());
  }

  asio::awaitable<void> audit_put(Worker& worker, std::size_t which, std::span<const BlockHash> chain) {
    if (chain.empty()) co_return;
    const std::size_t block_bytes = records_[which].block_bytes();
    std::vector<std::byte> memory(chain.size() * block_bytes);
    std::vector<std::span<const std::byte>> blocks;
    for (std::size_t b = 0; b < chain.size(); ++b) {
      const auto block = std::span(memory).subspan(b * block_bytes, block_bytes);
      fill_block(records_[which].id(), chain[b], block);
      blocks.push_back(block);
    }
    error_code error = asio::error::timed_out;
    for (int i = 0; i < kAuditTries && error && error != Errc::kOutOfMemory && outcome_.failure.empty(); ++i) {
      const auto put = co_await worker.client->put(worker.spaces[which], chain, blocks, {.deadline = 5s});
      error = put ? put->why : put.error();
      if (error == Errc::kCorruptBlock) fail("audit: put: sound blocks were refused as corrupt");
      if (error) co_await sleep(500ms);
    }
    if (error && error != Errc::kOutOfMemory) fail("audit: put: " + error.message());
  }

  asio::awaitable<void> audit_get(Worker& worker, std::size_t which, std::span<const BlockHash> chain) {
    if (chain.empty()) co_return;
    const std::size_t block_bytes = records_[which].block_bytes();
    std::vector<std::byte> memory(chain.size() * block_bytes);
    std::vector<std::span<std::byte>> blocks;
    for (std::size_t b = 0; b < chain.size(); ++b) blocks.emplace_back(memory.data() + b * block_bytes, block_bytes);
    error_code error = asio::error::timed_out;
    for (int i = 0; i < kAuditTries && error && outcome_.failure.empty(); ++i) {
      const auto got = co_await worker.client->get(worker.spaces[which], chain, blocks, {.deadline = 5s});
      error = got ? got->why : got.error();
      for (std::size_t b = 0; got && b < got->block_count; ++b) {
        if (!block_is_right(records_[which].id(), chain[b], blocks[b])) fail("audit: get: wrong bytes");
      }
      if (got && got->corrupt_count > 0) fail("audit: get: a node sent another block's bytes");
      if (got) outcome_.hit_blocks += got->block_count;
      if (error) co_await sleep(500ms);
    }
    if (error) fail("audit: get: " + error.message());
  }

  asio::awaitable<void> converge() {
    co_await sleep(60s);  // leases, puts and sessions of the past are over
    Client client(context_.get_executor(), client_config(99), network_, clock_);
    const NamespaceRecord& record = records_.front();
    const auto space = co_await client.open(record, 1s);
    if (!space) {
      fail("after healing: open: " + space.error().message());
      co_return;
    }
    // What was pinned may hold up to half of a node, and one pinned block the only slab of a small one.
    co_await drop_sets(client);
    for (const NamespaceRecord& each : records_) {
      const auto other = co_await client.open(each, 1s);
      if (other) (void)co_await client.drop(*other, {}, 1s);
    }
    const auto tokens = random_tokens(4);
    const auto chain = hash_chain(record.digest(), tokens, 4);
    std::vector<std::byte> memory(record.block_bytes());
    fill_block(record.id(), chain[0], memory);
    const std::span<const std::byte> from(memory);
    const auto put = co_await client.put(*space, chain, std::span(&from, 1), {.deadline = 5s});
    if (!put || put->stored != 1) {
      fail("after healing: put stored nothing: " + (put ? put->why : put.error()).message());
      co_return;
    }
    std::fill(memory.begin(), memory.end(), std::byte{0});
    const std::span<std::byte> to(memory);
    const auto got = co_await client.get(*space, chain, std::span(&to, 1), {.deadline = 5s});
    if (!got || got->block_count != 1 || !block_is_right(record.id(), chain[0], memory)) {
      fail("after healing: get: " + (got ? got->why : got.error()).message());
    }
  }

  /// All clients are gone: within their time-outs, nodes hold no session, no staged block, no lease.
  void finish() {
    for (Worker& worker : workers_) worker.client.reset();
    if (verbs_) outcome_.rdma_packets = verbs_->packet_count();
    for (const auto& node : nodes_) node->check_devices();
    pace_.run_for(outcome_.failure.empty() ? 6min : 0s);  // nothing pauses for longer
    for (const auto& node : nodes_) {
      node->check_devices();
      if (!node->has_all_devices()) fail(node->name() + ": a device that is back was not opened again");
      node->expire_leases();
      const StoreStats stats = node->stats();
      outcome_.evicted_blocks += stats.evicted_blocks;
      outcome_.spilled_blocks += stats.spilled_blocks;
      outcome_.disk_blocks_got += stats.get_disk_blocks;
      if (outcome_.failure.empty() && node->session_count() > 0)
        fail(node->name() + ": sessions outlive their clients");
      if (outcome_.failure.empty() && stats.staged_count > 0) fail(node->name() + ": staged blocks outlive their puts");
      if (outcome_.failure.empty() && stats.lease_count > 0) fail(node->name() + ": leases outlive their sessions");
    }
    check_nodes();
    for (const auto& node : nodes_) node->kill();
    pace_.run_for(30s);  // whatever failed: every session comes to its end, and every move
  }

  VirtualClock clock_;
  SimNetwork network_;
  std::unique_ptr<verbs::FakeVerbs> verbs_;  ///< nullptr: no RDMA in this world.
  asio::io_context context_{
      1};  // its end destroys coroutines that still hold alarms, streams and queue pairs: before what those are of
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  Pace pace_{context_, clock_};
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
  std::vector<Worker> workers_;
  std::uint64_t disk_capacity_ = 0;
  bool is_audited_ = false;
  std::vector<std::vector<std::uint32_t>> prompts_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::map<std::pair<std::size_t, BlockHash>, Fate> fates_;
  std::size_t running_ = 0;
  std::uint64_t steps_ = 0;
  WorldOutcome outcome_;
};

}  // namespace

WorldOutcome run_world(std::uint64_t seed) { return World(seed).run(); }

}  // namespace kv::sim
