#include "tests/sim/cluster_world.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/node/threads/thread_border.h"
#include "tests/sim/cluster_audit.h"

namespace kv::sim {
namespace {

class ClusterWorld final : public ClusterAudit {
 public:
  using ClusterAudit::ClusterAudit;

  ClusterOutcome run() {
    workers_.resize(worker_count_ + 1);  // and one more for the audit, which has seen nothing
    for (std::size_t i = 0; i < worker_count_; ++i) begin(work(i, pick(20, 80)));
    begin(cause_events());
    run_all();
    if (outcome_.failure.empty()) {
      begin(audit());
      run_all();
    }
    finish();
    return outcome_;
  }

 private:
  // -- what goes wrong

  asio::awaitable<void> cause_events() {
    while (running_ > 1 && outcome_.failure.empty()) {
      co_await sleep(std::chrono::milliseconds(pick(50, 6000)));
      if (is_calm_) {
        cause_calm_event();
      } else {
        cause_event();
      }
    }
  }

  void cause_calm_event() {
    SimMember& member = any_member();
    switch (pick(0, 4)) {
      case 0:
        if (alive_count() < 2 || !member.is_alive() || member.is_leaving()) return;
        member.leave(10min);
        ++outcome_.leaves;
        break;
      case 1:
      case 2:
        if (member.is_alive()) return;
        member.start();
        ++outcome_.joins;
        break;
      case 3:
        if (!member.is_alive()) return;
        member.node().context().moves.drain_wanted = !member.node().context().moves.drain_wanted;
        break;
      default: popular_ = pick(0, kRoots - 1); break;
    }
    changed();
  }

  void cause_event() {
    SimMember& member = any_member();
    const std::string name = member.node().name();
    const auto cut = [&](const std::string& one, const std::string& other) {
      const std::size_t ways = pick(1, 3);
      if ((ways & 1) != 0) network_.cut(one, other);
      if ((ways & 2) != 0) network_.cut(other, one);
      ++outcome_.cuts;
    };
    const std::size_t what_happens = pick(0, 21);
    tell("event " + std::to_string(what_happens) + " of " + name);
    switch (what_happens) {
      case 0:
        if (member.is_alive()) ++outcome_.kills;
        member.kill();
        break;
      case 1:
        if (member.is_alive()) ++outcome_.power_losses;
        member.lose_power();
        break;
      case 2:
        if (!member.is_alive()) return;
        member.leave(std::chrono::seconds(pick(0, 30)));
        ++outcome_.leaves;
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        if (member.is_alive()) return;
        member.start();
        ++outcome_.joins;
        break;
      case 7: cut(client_name(pick(0, worker_count_ - 1)), name); break;
      case 8: cut(any_member().node().name(), name); break;
      case 9:
        etcd_.cut(name);
        ++outcome_.cuts;
        break;
      case 10:
        if (etcd_.is_away()) {
          etcd_.come_back(chance(0.5));
        } else {
          etcd_.go_away();
          ++outcome_.etcd_outages;
        }
        break;
      case 11:
        if (!chance(0.3)) return;
        lose_etcd();
        break;
      case 12: etcd_.leave_behind(name); break;
      case 13:
        if (!member.is_alive()) return;
        member.node().context().moves.drain_wanted = !member.node().context().moves.drain_wanted;
        break;
      case 14: mend(); break;
      case 15:
        network_.freeze(name);  // a machine that nothing reaches, nor etcd
        etcd_.cut(name);
        isolated_.insert(name);
        break;
      case 16: popular_ = pick(0, kRoots - 1); break;
      case 17: etcd_.set_lost_answers(real(0, 0.3)); break;
      case 19:
      case 20: lie(member); break;
      case 21: make_up_entry(); break;
      default: network_.break_one(); break;
    }
    changed();
  }

  /// It comes back as one that tells a map of its own making, so as to be asked for everything, or for nobody to find
  /// anything.
  void lie(SimMember& member) {
    const bool was_alive = member.is_alive();
    const ClusterView truth = was_alive ? *member.view() : ClusterView{1, config_.extent_blocks, {}};
    member.kill();
    constexpr std::uint64_t kSteps[] = {1, 1000, 1ull << 39, 1ull << 41, ~0ull};
    const std::uint64_t step = kSteps[pick(0, std::size(kSteps) - 1)];
    ClusterView told{step == ~0ull ? step : truth.epoch + step, config_.extent_blocks, {}};
    Member self;
    self.id = member.node().name();
    self.instance = std::string(32, 'f');
    self.endpoints = {"sim://" + self.id};
    const std::size_t how = pick(0, 4);
    if (how != 4) told.members.push_back(self);
    for (const Member& other : truth.members) {
      if (other.id == self.id || how == 0 || how == 4) continue;
      told.members.push_back(other);
      Member& made = told.members.back();
      if (how == 1) made.state = Member::State::kDraining;
      if (how == 2) made.weight = 1e-300;
      if (how == 3) made.endpoints = {chance(0.5) ? "sim://" + self.id : "tls://" + std::string(250, '1') + ":1"};
    }
    if (chance(0.2)) told.extent_blocks = static_cast<std::uint32_t>(pick(0, 4));
    tell(self.id + " lies, epoch " + std::to_string(told.epoch) + ", way " + std::to_string(how));
    member.start_lying(std::move(told));
    ++outcome_.lies;
    outcome_.kills += was_alive;
  }

  /// By somebody who may write to etcd: members that are none, and what cannot be a member.
  void make_up_entry() {
    const std::string id = "ghost" + std::to_string(pick(0, 2));
    const char* const kEndpoints[] = {"tls://10.0.0.1:1", "unix:///run/not-here", "sim://nowhere", "sim://n0"};
    Member ghost;
    ghost.id = chance(0.2) ? "n0" : id;
    ghost.instance = std::string(32, 'e');
    ghost.endpoints = {chance(0.2) ? "tls://" + std::string(pick(240, 260), '1') + ":1" : kEndpoints[pick(0, 3)]};
    ghost.weight = chance(0.2) ? 1e9 : 1;
    ghost.state = chance(0.5) ? Member::State::kDraining : Member::State::kServing;
    ghost.phase = static_cast<Member::Phase>(pick(0, 2));
    std::string text = write_member(ghost);
    if (chance(0.3)) text.resize(pick(0, text.size()));
    etcd_.write("/kvstore/nodes/" + id, std::move(text));
    ++outcome_.made_up_entries;
  }

  // -- clients

  const std::vector<std::uint32_t>& any_prompt() {
    if (chance(0.4)) return prompts_[pick(0, prompts_.size() - 1)];
    return prompts_[(pick(0, prompts_.size() / kRoots - 1)) * kRoots + popular_];
  }

  asio::awaitable<void> work(std::size_t number, std::size_t call_count) {
    Worker& worker = workers_[number];
    make_client(number);
    co_await sleep(std::chrono::milliseconds(pick(0, 5000)));
    Lease lease{};
    for (std::size_t i = 0; i < call_count && outcome_.failure.empty(); ++i) {
      if (chance(0.3)) co_await sleep(std::chrono::microseconds(pick(1, 1'500'000)));
      if (chance(0.02)) co_await sleep(std::chrono::seconds(pick(5, 90)));
      if (chance(0.02)) {  // a worker restarts
        end_client(worker);
        make_client(number);
        lease = Lease{};
      }
      const std::size_t which = pick(0, records_.size() - 1);
      const auto deadline =
          is_calm_ ? 20s : std::chrono::microseconds(chance(0.2) ? pick(500, 5000) : pick(50'000, 3'000'000));
      TimePoint began = clock_.now();
      if (!worker.open[which]) {
        const auto opened = co_await worker.client->open(records_[which], deadline);
        check_deadline("open", began, deadline);
        if (opened) worker.spaces[which] = *opened;
        worker.open[which] = opened.has_value();
        check_epoch(worker);
        continue;
      }
      const Space space = worker.spaces[which];
      const auto chain = chain_of(which, any_prompt());
      auto bound = bound_of(number);
      TimePoint change = changed_;
      const auto match = co_await worker.client->match(space, chain, {.deadline = deadline, .lease = chance(0.2)});
      check_deadline("match", began, deadline);
      check_bound(number, "match", bound, change, began, deadline);
      if (match && match->block_count > chain.size()) fail("match: more blocks than hashes");
      if (match && match->lease != Lease{}) lease = match->lease;
      check_epoch(worker);
      std::size_t held = match ? match->block_count : 0;
      if (chance(0.2)) held = chain.size();
      if (held > 0) {
        began = clock_.now();
        bound = bound_of(number);
        change = changed_;
        const GetOptions options{.deadline = deadline, .lease = lease};
        lease = Lease{};
        const std::size_t got = co_await get(worker, which, std::span(chain).first(held), options);
        check_deadline("get", began, deadline);
        check_bound(number, "get", bound, change, began, deadline);
        note(got);
      }
      if (held < chain.size() || chance(0.3)) {
        began = clock_.now();
        co_await put(worker, which, chain, deadline);
        check_deadline("put", began, deadline);
        check_epoch(worker);
      }
      if (chance(0.05)) {
        began = clock_.now();
        const auto touched = co_await worker.client->touch(space, chain, deadline);
        check_deadline("touch", began, deadline);
        (void)touched;
      }
    }
  }

  /// How long a read may take, if some nodes are known to be dead and nothing at all is wrong with the others: the dead
  /// ones are not waited for. None: something is.
  std::optional<Duration> bound_of(std::size_t number) {
    constexpr Duration kQuiet = 3s, kBound = 500ms;
    if (!has_steady_network_ || clock_.now() < changed_ + kQuiet) return std::nullopt;
    const auto& client = *workers_[number].client;
    if (client.nodes().size() < 2) return std::nullopt;  // a call to the only one finds out whether it is back
    std::size_t dead = 0;
    for (const NodeStatus& node : client.nodes()) {
      const auto member =
          std::ranges::find_if(members_, [&](const auto& m) { return m->node().name() == node.node_id; });
      if (node.breaker_open && !node.node_id.empty()) {
        ++dead;
        continue;
      }
      if (member == members_.end() || !(*member)->is_alive() || (*member)->is_leaving()) return std::nullopt;
      if (isolated_.contains(node.node_id) || network_.is_cut(client_name(number), node.node_id) ||
          network_.is_cut(node.node_id, client_name(number)))
        return std::nullopt;
    }
    if (dead == 0) return std::nullopt;
    return kBound;
  }

  void check_bound(std::size_t number, const char* op, std::optional<Duration> bound, TimePoint change, TimePoint began,
                   std::chrono::microseconds deadline) {
    if (!bound || change != changed_ || deadline < 2 * *bound) return;
    ++outcome_.bounded_gets;
    if (clock_.now() > began + *bound)
      fail(std::string(op) + " waited " + std::to_string(std::chrono::duration<double>(clock_.now() - began).count()) +
           " s, and its client knew which node is dead:" + reach_of(number));
  }

  std::string reach_of(std::size_t number) const {
    std::string text;
    for (const NodeStatus& node : workers_[number].client->nodes())
      text += " " + node.name + (node.breaker_open ? " (away)" : "");
    return text;
  }

  /// A node would go on after each; here none may be.
  static std::uint64_t exception_count() {
    return thread_failure_count(NodeThread::kMembership) + thread_failure_count(NodeThread::kMover);
  }

  /// All clients are gone: within their time-outs, nodes hold no session but one another's, no incoming block, no
  /// lease.
  void finish() {
    if (!outcome_.failure.empty()) pace_.run_for(60s);  // a client must not go while it is asked something
    for (Worker& worker : workers_) {
      if (worker.client) end_client(worker);
    }
    pace_.run_for(outcome_.failure.empty() ? 60s : 0s);
    for (const auto& member : members_) {
      if (!member->is_alive()) continue;
      outcome_.hot_blocks += member->node().hot_block_count();
      member->node().expire_leases();
      const StoreStats stats = member->node().stats();
      if (outcome_.failure.empty() && stats.incoming_count > 0)
        fail(member->node().name() + ": incoming blocks outlive their puts");
      if (outcome_.failure.empty() && stats.lease_count > 0)
        fail(member->node().name() + ": leases outlive their sessions");
    }
    check_all_next();
    if (outcome_.failure.empty()) look();
    for (const auto& member : members_) member->kill();
    pace_.run_for(60s);  // whatever failed: every session, mover and membership comes to its end
    outcome_.moved_blocks = sum([](const NodeContext& node) { return node.moves.moved_blocks.load(); });
    outcome_.copied_blocks = sum([](const NodeContext& node) { return node.moves.copied_blocks.load(); });
    const auto pinned = sum([](const NodeContext& node) { return stats_of(node).pinned_count; });
    if (outcome_.failure.empty() && exception_count() != exceptions_before_)
      fail("an exception at the border of a thread; the log has it");
    if (outcome_.failure.empty() && pinned > 0) fail("blocks are pinned beyond what was done with them");
  }

  std::size_t popular_ = 0;  ///< Root of most prompts now.
  const std::uint64_t exceptions_before_ = exception_count();
};

}  // namespace

ClusterOutcome run_cluster_world(std::uint64_t seed) { return ClusterWorld(seed).run(); }

}  // namespace kv::sim
