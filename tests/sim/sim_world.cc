#include "tests/sim/sim_world.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/sim_workers.h"

namespace kv::sim {
namespace {

class World final : public Workers {
 public:
  using Workers::Workers;

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
    run_all();
    begin(audit());
    run_all();
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

  /// All clients are gone: within their time-outs, nodes hold no session, no incoming block, no lease.
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
      if (outcome_.failure.empty() && stats.incoming_count > 0)
        fail(node->name() + ": incoming blocks outlive their puts");
      if (outcome_.failure.empty() && stats.lease_count > 0) fail(node->name() + ": leases outlive their sessions");
    }
    look();
    for (const auto& node : nodes_) node->kill();
    pace_.run_for(30s);  // whatever failed: every session comes to its end, and every move
  }
};

}  // namespace

WorldOutcome run_world(std::uint64_t seed) { return World(seed).run(); }

}  // namespace kv::sim
