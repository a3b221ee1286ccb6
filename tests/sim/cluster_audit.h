// tests/sim/cluster_audit.h: nothing is wrong any more, and things are done one by one, while all that was put is
// found.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/cluster_setting.h"

namespace kv::sim {

class ClusterAudit : public ClusterSetting {
 public:
  using ClusterSetting::ClusterSetting;

 protected:
  struct Kept {
    std::size_t which = 0;
    std::vector<BlockHash> chain;
    std::size_t root = 0;  ///< Its hot blocks when it was put.
  };

  asio::awaitable<void> audit() {
    mend();
    etcd_.come_back(chance(0.5));
    network_.set_faults({});
    for (int i = 0; i < 3; ++i) etcd_.erase("/kvstore/nodes/ghost" + std::to_string(i));
    for (const auto& member : members_) {
      while (member->is_leaving() && outcome_.failure.empty()) co_await sleep(1s);
      if (member->lies()) member->kill();
      member->start();
      member->node().context().moves.drain_wanted = false;
    }
    changed();
    make_client(worker_count_);  // a stranger
    if (!is_calm_) co_await outlast_leases();
    co_await settle("the faults");
    if (is_calm_) check_accounts();
    if (!has_room_) co_return;
    for (int i = 0; i < 40 * static_cast<int>(slot_count_) && outcome_.failure.empty(); ++i)
      co_await meet(pick(0, worker_count_));
    for (int round = 0; round < 3 && outcome_.failure.empty(); ++round) {
      co_await keep_chains();
      co_await find_all("a put");
      co_await audit_change();
    }
  }

  /// After faults that kept a node from etcd: its lease may end even now, or be found to have ended. Until then all
  /// agree, on the map of before. Then the node is off the map until it has joined anew: clients that know of that miss
  /// what it has, and put elsewhere what other clients look for there. Within 3 s each node has asked etcd again: a try
  /// that still fails, the pause after that, and the next try.
  asio::awaitable<void> outlast_leases() { return sleep(config_.lease + 3s); }

  /// All nodes serve, all that was to be handed over is, and all that are there, clients too, have one map.
  asio::awaitable<void> settle(std::string after, bool finds = false) {
    constexpr Duration kLimit = 400s;
    const TimePoint until = clock_.now() + kLimit;
    check_all_next();
    for (std::size_t turn = 0; outcome_.failure.empty(); ++turn) {
      co_await meet(turn % (worker_count_ + 1));
      if (finds && turn % 3 == 0) co_await find_all(after);
      co_await sleep(200ms);
      if (is_agreed()) {
        tell("all agree after " + after);
        check_all_next();
        co_return;
      }
      if (clock_.now() > until) fail("no agreement after " + after + ": " + disagreement());
    }
  }

  bool is_agreed() { return disagreement().empty(); }

  /// With all that owners follow from: a liar's map may have the same nodes, with other weights or endpoints.
  static bool is_map_of(const ClusterStatus& map, const ClusterView& view) {
    const auto is_same = [](const ClusterStatus::Node& node, const Member& member) {
      return node.id == member.id && node.weight == member.weight && node.endpoints == member.endpoints &&
             node.is_serving == (member.state == Member::State::kServing) &&
             node.is_joining == (member.phase == Member::Phase::kJoining) &&
             node.is_leaving == (member.phase == Member::Phase::kLeaving);
    };
    return map.extent_blocks == view.extent_blocks && std::ranges::equal(map.nodes, view.members, is_same);
  }

  std::string disagreement() {
    std::shared_ptr<const ClusterView> view;
    std::uint64_t latest = 0;
    for (const auto& member : members_) {
      if (!member->is_alive()) continue;
      const std::string& name = member->node().name();
      if (!member->is_settled()) return name + (member->is_serving() ? " hands over" : " does not serve");
      latest = std::max(latest, member->view()->epoch);
      if (view && (view->members != member->view()->members)) return name + " has another list";
      view = member->view();
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const ClusterStatus map = workers_[i].client->cluster();
      if (!is_map_of(map, *view))
        return client_name(i) + " has another map of epoch " + std::to_string(map.epoch) + ", the latest is " +
               std::to_string(latest) + links_of(*workers_[i].client);
      for (const NodeStatus& node : workers_[i].client->nodes()) {
        if (node.breaker_open) return client_name(i) + " does not reach " + node.name;
      }
    }
    const auto alive = alive_count();
    if (view && view->members.size() != alive)
      return std::to_string(view->members.size()) + " members of " + std::to_string(alive);
    return "";
  }

  /// A match of a chain that nobody has asked for yet: it tells of the map, and of what is hot.
  asio::awaitable<void> meet(std::size_t number) {
    Worker& worker = workers_[number];
    for (std::size_t which = 0; which < records_.size(); ++which) {
      if (!worker.open[which]) {
        const auto opened = co_await worker.client->open(records_[which], 1s);
        if (!opened) co_return;
        worker.spaces[which] = *opened;
        worker.open[which] = true;
      }
      std::vector<std::uint32_t> tokens;
      if (chance(0.6)) tokens = roots_[pick(0, kRoots - 1)];
      const auto more = random_tokens(200);
      tokens.insert(tokens.end(), more.begin(), more.end());
      const auto chain = chain_of(which, tokens);
      const auto match = co_await worker.client->match(worker.spaces[which], chain, {.deadline = 300ms});
      (void)match;
      check_epoch(worker);
    }
    co_await sleep(20ms);
  }

  asio::awaitable<void> hear_hot(Worker& worker) {
    for (std::size_t which = 0; which < records_.size(); ++which) {
      if (!worker.open[which]) continue;
      const auto learned = co_await worker.client->learn_hot_roots(worker.spaces[which], 1s);
      if (!learned) fail("audit: learn_hot_roots: " + learned.error().message());
    }
  }

  asio::awaitable<void> keep_chains() {
    kept_.clear();
    for (Worker& worker : workers_) co_await hear_hot(worker);  // who knows less puts elsewhere
    for (std::size_t i = 0; i < 8 && outcome_.failure.empty(); ++i) {
      const std::size_t which = pick(0, records_.size() - 1);
      std::vector<std::uint32_t> tokens = roots_[pick(0, kRoots - 1)];
      const auto more = random_tokens(pick(40, 300));
      tokens.insert(tokens.end(), more.begin(), more.end());
      kept_.push_back({which, chain_of(which, tokens)});
      const auto& chain = kept_.back().chain;
      const std::size_t stored = co_await put(workers_[i % workers_.size()], which, chain, 5s);
      if (stored != chain.size())
        fail("audit: of " + std::to_string(chain.size()) + " blocks " + std::to_string(stored) + " are stored");
    }
    for (Kept& kept : kept_) kept.root = root_of(kept);
    outcome_.kept_chains += kept_.size();
    lost_before_ = lost_count();
  }

  /// Each client finds all that is kept. As an engine does: where a get falls short, a match first.
  asio::awaitable<void> find_all(std::string when) {
    const std::size_t number = finder_++ % workers_.size();
    Worker& worker = workers_[number];
    co_await meet(number);
    for (std::size_t i = 0; i < kept_.size() && outcome_.failure.empty(); ++i) {
      const std::size_t which = kept_[i].which;
      const std::span<const BlockHash> chain = kept_[i].chain;
      const TimePoint began = clock_.now();
      std::size_t found = co_await get(worker, which, chain, {.deadline = 5s});
      if (clock_.now() > began + 2s) fail("audit, after " + when + ": a get waited");
      std::string why;
      for (int turn = 0; turn < 3 && found < chain.size(); ++turn) {  // it may not have heard yet of what is hot
        if (turn > 0) {
          co_await meet(number);
          co_await hear_hot(worker);
        }
        const auto match = co_await worker.client->match(worker.spaces[which], chain, {.deadline = 5s});
        why =
            !match ? match.error().message() : std::to_string(match->block_count) + " matched, " + match->why.message();
        found = co_await get(worker, which, chain, {.deadline = 5s});
      }
      if (found == chain.size() || lost_count() != lost_before_) continue;
      // Where its hot root has changed it belongs elsewhere now, and not all clients know both places.
      if (root_of(kept_[i]) != kept_[i].root) {
        ++outcome_.excused_chains;
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i--));
        continue;
      }
      fail("audit, during or after " + when + ": " + client_name(number) + " finds " + std::to_string(found) + " of " +
           std::to_string(chain.size()) + " blocks (" + why + "), of which " + std::to_string(kept_[i].root) +
           " are hot, to it " + std::to_string(worker.client->hot_block_count(worker.spaces[which], chain)) +
           ", epoch " + std::to_string(worker.client->cluster().epoch) + where(which, chain));
    }
  }

  /// Leading blocks that some node takes for hot.
  std::size_t root_of(const Kept& kept) {
    std::set<BlockHash> hot;
    for (const auto& member : members_) {
      if (!member->is_alive()) continue;
      const auto list = member->node().context().hot_roots->list(records_[kept.which].id());
      hot.insert(list->blocks.begin(), list->blocks.end());
    }
    std::size_t count = 0;
    while (count < kept.chain.size() && hot.contains(kept.chain[count])) ++count;
    return count;
  }

  /// Who has how much of it, for a person who looks into a failure.
  std::string where(std::size_t which, std::span<const BlockHash> chain) {
    std::string text;
    for (const auto& member : members_) {
      if (!member->is_alive()) continue;
      const StoreStats stats = member->node().stats();
      text += "; " + member->node().name() + " (" + std::to_string(stats.block_count) + " blocks, " +
              std::to_string(stats.disk_block_count) + " on disk, " + std::to_string(stats.stored_blocks) +
              " stored, " + std::to_string(stats.dropped_blocks + stats.forgotten_namespaces) + " dropped) has";
      NodeContext& node = member->node().context();
      for (std::size_t i = 0; i < chain.size(); ++i) {
        // Each block as a chain of its own begins nowhere but at the first of an extent: so runs are tried.
        std::size_t count = 0;
        node.store.with([&](Store& store) {
          for (const auto& space : store.list_spaces(nullptr)) {
            if (space.record->text() != records_[which].text()) continue;
            const auto match = store.match(space.id, chain.subspan(i), {}, clock_.now());
            if (match) count = match->memory_block_count + match->disk_block_count;
          }
        });
        if (count == 0) continue;
        text += " " + std::to_string(i) + ".." + std::to_string(i + count);
        i += count - 1;
      }
    }
    return text;
  }

  asio::awaitable<void> audit_change() {
    SimMember& member = any_member();
    const std::size_t alive = alive_count();
    const std::string name = member.node().name();
    const std::size_t what_happens = pick(0, 7);
    tell("audit: change " + std::to_string(what_happens) + " of " + name);
    switch (what_happens) {
      case 0:
      case 1: {
        const std::string what = name + (member.is_alive() ? " leaves" : " joins");
        if (!member.is_alive()) {
          member.start();
        } else if (alive > 1) {
          member.leave(10min);
        }
        co_await settle_finding(member, what);
        if (!member.is_alive()) {
          if (!member.has_left_whole()) fail("audit: " + name + " did not hand over all in ten minutes");
          member.start();
          co_await settle_finding(member, name + " comes back");
        }
        break;
      }
      case 2: {
        if (!member.is_alive() || alive < 2) co_return;
        auto& wanted = member.node().context().moves.drain_wanted;
        wanted = true;
        const TimePoint until = clock_.now() + 10min;
        while (member.is_owner() && outcome_.failure.empty()) {
          co_await find_and_sleep(name + " drains");
          if (clock_.now() > until) fail("audit: " + name + " does not drain");
        }
        co_await find_and_sleep(name + " has drained");
        wanted = false;
        co_await settle_finding(member, name + " is back from draining");
        break;
      }
      case 3: {  // minutes without etcd, and all leases may have ended then
        etcd_.go_away();
        ++outcome_.etcd_outages;
        for (std::size_t i = 0, count = pick(5, 100); i < count && outcome_.failure.empty(); ++i)
          co_await find_and_sleep("etcd is away");
        const bool keeps_leases = chance(0.5);
        const bool loses_data = chance(0.3);
        if (loses_data) {
          lose_etcd();
        }
        etcd_.come_back(keeps_leases);
        co_await settle_finding(member, std::string("etcd comes back") + (loses_data     ? " empty"
                                                                          : keeps_leases ? ""
                                                                                         : ", all leases have ended"));
        break;
      }
      case 4: {  // off the list for a while, alive: what is put meanwhile lies elsewhere
        if (!member.is_alive() || alive < 2) co_return;
        was_off_the_list_ = true;
        etcd_.cut(name);
        for (std::size_t i = 0, count = pick(5, 40); i < count && outcome_.failure.empty(); ++i) {
          co_await meet(i % workers_.size());
          co_await sleep(500ms);
        }
        etcd_.mend_all();
        co_await outlast_leases();
        co_await settle(name + " was cut off from etcd");
        co_await find_all(name + " was cut off from etcd");
        break;
      }
      default:
        if (config_.copy_uses == 1 && config_.move_rate > (1 << 20) && alive > 1 && member.is_alive())
          co_await audit_kill(member);
        co_return;
    }
    ++outcome_.audited_changes;
  }

  asio::awaitable<void> find_and_sleep(std::string when) {
    co_await find_all(std::move(when));
    co_await sleep(500ms);
  }

  /// While it happens, and after it.
  asio::awaitable<void> settle_finding(SimMember& member, std::string after) {
    const TimePoint until = clock_.now() + 15min;
    while (member.is_leaving() && outcome_.failure.empty() && clock_.now() < until) co_await find_and_sleep(after);
    co_await settle(after, /*finds=*/true);
    co_await find_all(after);
  }

  /// All that was put has a copy by then.
  asio::awaitable<void> audit_kill(SimMember& member) {
    const auto copied = [this] { return sum([](const NodeContext& node) { return node.moves.copied_blocks.load(); }); };
    for (std::uint64_t before = ~0ull; before != copied() && outcome_.failure.empty();) {
      before = copied();
      co_await sleep(6s);
    }
    const std::string name = member.node().name();
    const bool is_silent = chance(0.5);
    if (is_silent) {
      member.lose_power();
    } else {
      member.kill();
    }
    changed();
    const auto all_know = [&] {
      return std::ranges::all_of(workers_, [&](const Worker& worker) {
        return std::ranges::none_of(worker.client->nodes(), [&](const NodeStatus& node) {
          return node.endpoint == "sim://" + name && !node.breaker_open;
        });
      });
    };
    for (std::size_t turn = 0; !all_know() && outcome_.failure.empty(); ++turn) co_await meet(turn % workers_.size());
    for (std::size_t i = 0; i < workers_.size(); ++i) co_await find_all(name + " was killed, which is known");
    co_await settle(name + " was killed", /*finds=*/true);
    co_await find_all(name + " was killed and is off the map");
    member.start();
    co_await settle(name + " was killed and came back", /*finds=*/true);
    co_await find_all(name + " was killed and came back");
    ++outcome_.audited_kills;
  }

  /// Where nobody was killed and every put was answered, each stored block is a client's, or was handed over, or is a
  /// copy.
  void check_accounts() {
    const auto failures =
        sum([](const NodeContext& node) { return node.moves.failed_paths + node.moves.failed_copies; });
    if (!is_exact_ || failures > 0) return;
    const auto stored = sum([](const NodeContext& node) { return stats_of(node).stored_blocks; });
    const auto moved = sum([](const NodeContext& node) { return node.moves.moved_blocks.load(); });
    const auto copied = sum([](const NodeContext& node) { return node.moves.copied_blocks.load(); });
    // One that leaves gives up what it is in the middle of, and does not know what became of it.
    const bool is_whole = outcome_.leaves == 0;
    if (stored < put_blocks_ + moved + copied || (is_whole && stored > put_blocks_ + moved + copied))
      fail("of " + std::to_string(stored) + " stored blocks clients put " + std::to_string(put_blocks_) + ", " +
           std::to_string(moved) + " were handed over and " + std::to_string(copied) + " copied");
    outcome_.exact_worlds += is_whole;
  }

  std::vector<Kept> kept_;
  std::uint64_t lost_before_ = 0;
  std::size_t finder_ = 0;
};

}  // namespace kv::sim
