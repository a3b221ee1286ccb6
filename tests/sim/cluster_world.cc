#include "tests/sim/cluster_world.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "client/client.h"
#include "store/node/thread_border.h"
#include "tests/fakes/virtual_clock.h"
#include "tests/sim/sim_base.h"
#include "tests/sim/sim_member.h"

namespace kv::sim {
namespace {

constexpr std::size_t kRoots = 3;
constexpr std::byte kScribble{0xA5};  ///< What the memory of a call that has ended holds.

class ClusterWorld : private Dice {
 public:
  explicit ClusterWorld(std::uint64_t seed)
      : Dice(seed), network_(clock_, mix(seed)), etcd_(clock_, context_.get_executor(), mix(seed + 1)) {
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
  struct Worker {
    std::unique_ptr<Client> client;
    std::vector<Space> spaces;
    std::vector<bool> open;
    std::uint64_t epoch = 0;
    std::span<std::byte> lent;        ///< Where its calls' blocks lie, in worlds where memory is lent.
    std::size_t scribbled_bytes = 0;  ///< So many of it hold kScribble since the last call has ended.
  };

  struct Kept {
    std::size_t which = 0;
    std::vector<BlockHash> chain;
    std::size_t root = 0;  ///< Its hot blocks when it was put.
  };

  // -- what everything is made of

  void note(std::uint64_t what) { outcome_.trace_hash = mix(outcome_.trace_hash ^ what); }
  /// For a person who looks into a failure, among what the nodes log: KV_SIM_LOG.
  void tell(const std::string& what) const { spdlog::info("at {:.3f} s: {}", seconds(), what); }
  void fail(const std::string& what) {
    tell("FAILS: " + what);
    if (outcome_.failure.empty()) outcome_.failure = what + ", " + std::to_string(seconds()) + " s after the start";
  }
  double seconds() const { return std::chrono::duration<double>(clock_.now() - began_).count(); }

  void begin(asio::awaitable<void> task) {
    ++running_;
    pace_.disturb();
    asio::co_spawn(context_, std::move(task), [this](std::exception_ptr error) {
      --running_;
      part_ended(error);
    });
  }
  void part_ended(std::exception_ptr error) {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      fail(std::string("exception: ") + caught.what());
    }
  }
  void run_all() {
    while (running_ > 0 && step()) {
    }
  }
  bool step() {
    if (!outcome_.failure.empty()) return false;
    if (pace_.step() == Pace::Step::kStuck) {
      fail("stuck: calls are in progress, and nothing will ever wake them");
      return false;
    }
    if (++steps_ % 64 == 0) {
      look();
      pace_.disturb();
    }
    if (steps_ > 5'000'000) fail("no end: 5,000,000 steps");
    return outcome_.failure.empty();
  }
  asio::awaitable<void> sleep(Duration duration) {
    Event over(context_.get_executor());
    const auto alarm = clock_.make_alarm(context_.get_executor());
    alarm->arm(clock_.now() + duration, [&over] { over.set(); });
    co_await over.wait();
  }

  // -- invariants

  void look() {
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
  void check_deadline(const char* verb, TimePoint began, std::chrono::microseconds deadline) {
    ++outcome_.calls;
    if (clock_.now() > began + deadline) fail(std::string(verb) + " ended after its deadline");
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

  // -- what goes wrong

  void changed() {
    changed_ = clock_.now();
    check_all_next();
    note(steps_);
  }
  SimMember& any_member() { return *members_[pick(0, slot_count_ - 1)]; }
  std::size_t alive_count() const {
    return static_cast<std::size_t>(std::ranges::count_if(members_, [](const auto& m) { return m->is_alive(); }));
  }

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

  // -- clients

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
  std::string reach_of(std::size_t number) const {
    std::string text;
    for (const NodeStatus& node : workers_[number].client->nodes())
      text += " " + node.name + (node.breaker_open ? " (away)" : "");
    return text;
  }
  void check_bound(std::size_t number, const char* verb, std::optional<Duration> bound, TimePoint change,
                   TimePoint began, std::chrono::microseconds deadline) {
    if (!bound || change != changed_ || deadline < 2 * *bound) return;
    ++outcome_.bounded_gets;
    if (clock_.now() > began + *bound)
      fail(std::string(verb) + " waited " +
           std::to_string(std::chrono::duration<double>(clock_.now() - began).count()) +
           " s, and its client knew which node is dead:" + reach_of(number));
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

  // -- the audit: nothing is wrong any more, and things are done one by one

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
  static std::string links_of(const Client& client) {
    std::string text = "; its links:";
    for (const NodeStatus& node : client.nodes()) {
      text += " " + node.endpoint + " (" + node.node_id + (node.connected ? ", connected" : "") +
              (node.breaker_open ? ", open" : "") + ", " + std::to_string(node.failures) + " of " +
              std::to_string(node.calls) + " calls failed: " + node.last_error_text + ")";
    }
    return text;
  }
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
          for (const auto& space : store.namespaces()) {
            if (space.record != records_[which].text()) continue;
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

  /// A node would go on after each; here none may be.
  static std::uint64_t exception_count() {
    return thread_failure_count(NodeThread::kMembership) + thread_failure_count(NodeThread::kMover);
  }
  /// All clients are gone: within their time-outs, nodes hold no session but one another's, no staged block, no lease.
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
      if (outcome_.failure.empty() && stats.staged_count > 0)
        fail(member->node().name() + ": staged blocks outlive their puts");
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

  VirtualClock clock_;
  const TimePoint began_ = clock_.now();
  SimNetwork network_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  Pace pace_{context_, clock_};
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
  std::size_t popular_ = 0;  ///< Root of most prompts now.
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
  std::vector<Kept> kept_;
  std::uint64_t lost_before_ = 0, put_blocks_ = 0;
  std::size_t finder_ = 0;
  TimePoint changed_{};
  std::size_t running_ = 0;
  const std::uint64_t exceptions_before_ = exception_count();
  std::uint64_t steps_ = 0;
  ClusterOutcome outcome_;
};

}  // namespace

ClusterOutcome run_cluster_world(std::uint64_t seed) { return ClusterWorld(seed).run(); }

}  // namespace kv::sim
