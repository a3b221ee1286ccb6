// client/calls/match.cc: how many leading blocks of a chain are held, and the leases that keep them held.
//
// match() asks the owners of the chain's first extents, all at once, and the owners of later ones only if all earlier
// blocks are held: a miss does not cost every node a request. The result is cut at the first gap of the whole chain, as
// in get(). Each owner grants its own lease; the caller sees one.
//
// A node that does not answer is passed over in favour of its stand-in, which would own its blocks if it left. For a
// late node (hedge/hedger.h) the second node is asked as well, and the first good answer counts.
//
// A chain's place follows from its hot root (hot/hot_sets.h), which changes now and then. A chain not found at its
// present place is looked up at its former one. One owner per match is asked to count the match.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "client/calls/match_call.h"
#include "client/client.h"
#include "client/core/client_core.h"

namespace kv {
namespace {

/// Total extents asked for by the end of each round; a last round asks for all. The first round covers most prompts
/// (16,384 tokens in blocks of 16) in one round trip; the longest need three rounds.
constexpr std::array<std::size_t, 2> kExtentsByRound = {4, 32};

/// The calls of one match, round by round, and their combined result.
///   1. A round begins only if every block asked for before is held.
///   2. A round never reduces an earlier result. Under a lease those blocks stay held; without one, the get finds out.
///   3. Each extent is asked for once, by a call of its own.
class MatchRounds {
 public:
  /// `hot_blocks`: size of the chain's hot root. `is_counted`: one node counts this match of the chain's beginning.
  MatchRounds(const ClusterMap& map, Hashes hashes, std::size_t hot_blocks, bool is_counted)
      : map_(map), hashes_(hashes), hot_blocks_(hot_blocks), is_counted_(is_counted) {
    extents_ = hashes.empty() ? whole_at(0) : map.extents(hashes, hot_blocks);  // empty: tokens alone, of a single node
    if (map.node_count() > 1) nodes_told_ = std::min<std::size_t>(map.owner_count(), kHotNodesMax);
    if (map.owner_count() == 1) round_extents_ = {SIZE_MAX, SIZE_MAX};  // a single owner has all
  }

  /// For a root alone: one round, to `node`.
  struct FromNode {
    std::size_t node;
  };
  MatchRounds(const ClusterMap& map, Hashes root, FromNode from, bool is_counted)
      : MatchRounds(map, root, root.size(), is_counted) {
    extents_ = whole_at(from.node);
  }

  bool has_next() const { return round_ == 0 || (!is_stopped_ && held_ == asked_ && asked_ < hashes_.size()); }
  /// The calls to start. They must end before end().
  std::span<MatchCall> begin_next(const MatchOptions& options, std::size_t block_size);
  void end();
  const ClusterMap& map() const { return map_; }
  /// Repeats the request of `of`, to be started on `node`; must also end before end().
  MatchCall& add_hedge(MatchCall& of, std::size_t node);
  /// Cancels further rounds, with the reason `why`.
  void stop(error_code why) {
    if (has_next()) why_ = why;
    is_stopped_ = true;
  }

  std::size_t held() const { return held_; }
  std::size_t known() const;               ///< Leading blocks known to all asked nodes.
  error_code why() const { return why_; }  ///< Why held() is short; success: a plain miss.
  /// Whether `other` asks for `block` at another node, or as part of an extent that begins elsewhere.
  bool places_differ(std::size_t block, const MatchRounds& other) const;
  HotSets::Place place() const { return {hot_blocks_, extents_.front().node}; }
  MatchResult result() const;
  std::vector<const MatchCall*> leases() const;  ///< The calls whose leases are granted.

 private:
  static constexpr std::size_t kRounds = kExtentsByRound.size() + 1;

  std::vector<ClusterMap::Extent> whole_at(std::size_t node) const {
    return {{0, hashes_.size(), node, hashes_.size() - !hashes_.empty()}};
  }
  void tell_of_root(MatchCall& call) const;
  static void tell_tokens(MatchCall& call, const MatchOptions& options, std::size_t block_size);
  template <class Visit>
  void for_each_call(Visit&& visit) const {
    for (std::size_t round = 0; round < round_; ++round) {
      for (const MatchCall& call : calls_[round]) visit(call.best());
    }
  }

  const ClusterMap& map_;
  const Hashes hashes_;
  const std::size_t hot_blocks_;
  const bool is_counted_;
  std::size_t nodes_told_ = 0;  ///< 0: hot roots are irrelevant.
  std::vector<ClusterMap::Extent> extents_;
  std::array<std::size_t, kRounds - 1> round_extents_ = kExtentsByRound;
  std::array<std::vector<MatchCall>, kRounds> calls_;
  std::vector<std::unique_ptr<MatchCall>> hedges_;
  std::size_t round_ = 0;  ///< Rounds that have begun.
  std::size_t asked_ = 0;  ///< Leading blocks asked for.
  std::size_t held_ = 0;   ///< Leading blocks found.
  std::size_t asked_extents_ = 0;
  error_code why_;
  bool is_stopped_ = false;
};

std::span<MatchCall> MatchRounds::begin_next(const MatchOptions& options, std::size_t block_size) {
  KV_ASSERT(has_next() && round_ < kRounds);  // the last round asks for everything
  const std::size_t count =
      round_ < round_extents_.size() ? std::min(round_extents_[round_], extents_.size()) : extents_.size();
  asked_ = extents_[count - 1].end;
  calls_[round_] = std::vector<MatchCall>(count - asked_extents_);
  for (MatchCall& call : calls_[round_]) {
    call.chain = extent_of(hashes_, extents_[asked_extents_++]);
    tell_of_root(call);
    call.is_elsewhere = !is_counted_;
    if (map_.owner_count() > 1 && call.chain.hashes.size() < hashes_.size()) call.chain_blocks = hashes_.size();
    tell_tokens(call, options, block_size);
  }
  return calls_[round_++];
}

/// Every node reports hot roots, but only the owner of the first extent, whose part begins with the root, counts.
void MatchRounds::tell_of_root(MatchCall& call) const {
  call.node_count = nodes_told_;
  if (nodes_told_ == 0 || !is_counted_ || call.chain.first > 0) return;
  call.beginning = call.chain.hashes.size();
  call.hot_blocks = std::min(hot_blocks_, call.beginning);
}

/// Tokens of the call's blocks and the next one: any of them may be held in part.
void MatchRounds::tell_tokens(MatchCall& call, const MatchOptions& options, std::size_t block_size) {
  const std::size_t first = call.chain.first, count = call.chain.hashes.size() + 1;
  if (options.token_ids.size() <= first * block_size) return;
  const auto ids = options.token_ids.subspan(first * block_size);
  call.token_ids = ids.first(std::min(count * block_size, ids.size()));
  if (options.extras.empty()) return;
  const auto extras = options.extras.subspan(first);
  call.extras = extras.first(std::min(count, extras.size()));
}

MatchCall& MatchRounds::add_hedge(MatchCall& of, std::size_t node) {
  KV_ASSERT(of.hedge == nullptr && !of.is_hedge);
  MatchCall& call = *hedges_.emplace_back(std::make_unique<MatchCall>());
  call.options = of.options;
  call.chain.node = node;
  call.chain.hashes = of.chain.hashes;
  call.chain.first = of.chain.first;
  call.chain.anchor = of.chain.anchor;
  call.token_ids = of.token_ids;
  call.extras = of.extras;
  call.node_count = of.node_count;  // it reports hot roots without counting
  call.chain_blocks = of.chain_blocks;
  call.is_elsewhere = call.is_hedge = true;
  of.hedge = &call;
  return call;
}

void MatchRounds::end() {
  std::size_t gap = asked_;
  for (const MatchCall& asked : calls_[round_ - 1]) {
    KV_ASSERT(asked.has_ended() && (asked.hedge == nullptr || asked.hedge->has_ended()));
    const MatchCall& call = asked.best();
    const OwnedChain& chain = call.chain;
    KV_ASSERT(call.has_ended() && call.block_count <= chain.hashes.size());
    if (call.block_count < chain.hashes.size() && chain.position(call.block_count) < gap) {
      gap = chain.position(call.block_count);
      why_ = asked.error() ? asked.reason() : call.reason();  // the first node may have blocks that the second lacks
    }
  }
  KV_ASSERT(gap >= held_);  // 2: this round's blocks lie behind the held ones (3)
  held_ = gap;
}

std::size_t MatchRounds::known() const {
  std::size_t known = asked_;
  for_each_call([&](const MatchCall& call) {
    if (call.known_count < call.chain.hashes.size()) known = std::min(known, call.chain.position(call.known_count));
  });
  return known;
}

bool MatchRounds::places_differ(std::size_t block, const MatchRounds& other) const {
  const auto place_in = [block](const MatchRounds& rounds) {
    const auto extent = std::ranges::find_if(rounds.extents_, [&](const auto& each) { return each.end > block; });
    KV_ASSERT(extent != rounds.extents_.end());
    return std::pair<std::size_t, std::size_t>(extent->begin, extent->node);
  };
  return place_in(*this) != place_in(other);
}

MatchResult MatchRounds::result() const {
  MatchResult result;
  result.block_count = held_;
  result.why = why_;
  for_each_call([&](const MatchCall& call) {
    if (call.error()) return;
    KV_ASSERT(call.disk_block_count <= call.block_count);
    if (call.lease_error && !result.why) result.why = call.lease_error;
    std::size_t on_disk = 0;
    for (std::size_t i = call.block_count - call.disk_block_count; i < call.block_count; ++i)
      on_disk += call.chain.position(i) < held_;
    result.disk_block_count += on_disk;
    const auto time = std::chrono::microseconds(std::min<std::uint64_t>(call.disk_us, kDiskTimeMax.count()));
    if (on_disk > 0) result.disk_time = std::max(result.disk_time, time);
    // The partial block must directly follow all held blocks.
    if (call.partial_tokens > result.partial_token_count && call.chain.position(0) + call.block_count == held_) {
      result.partial_token_count = call.partial_tokens;
      result.partial_block = call.partial_block;
    }
  });
  KV_ASSERT(result.disk_block_count <= result.block_count && result.block_count <= hashes_.size());
  return result;
}

std::vector<const MatchCall*> MatchRounds::leases() const {
  std::vector<const MatchCall*> leases;
  for_each_call([&](const MatchCall& call) {
    if (call.lease != 0) leases.push_back(&call);
  });
  return leases;
}

/// The calls of one round, and those made to second nodes.
class MatchHedges {
 public:
  MatchHedges(ClientCore& core, Space space, MatchRounds& rounds, std::span<MatchCall> calls, CallBundle& bundle,
              TimePoint until)
      : core_(core),
        space_(space),
        rounds_(rounds),
        calls_(calls),
        bundle_(bundle),
        until_(until),
        alarm_(core.shared->deadlines, bundle) {
    const TimePoint now = core.shared->clock.now();
    late_.reserve(calls.size());
    for (MatchCall& call : calls) {
      call.sent = now;
      late_.push_back(now + core.hedger.begin(call.chain.node, Hedger::Kind::kMatch));
    }
    arm();
  }

  asio::awaitable<void> wait() {
    while (look()) {
      bundle_.event.reset();
      co_await bundle_.event.wait();
    }
    for (const MatchCall& call : calls_) count(call);
  }

 private:
  /// False once all calls have ended.
  bool look() {
    const TimePoint now = core_.shared->clock.now();
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      MatchCall& call = calls_[i];
      if (call.hedge != nullptr) {
        settle(call, *call.hedge);
      } else if (!call.has_ended() && now >= late_[i]) {
        late_[i] = TimePoint::max();
        hedge(call, now);
      }
    }
    arm();
    return !bundle_.running.empty();
  }
  /// Once one of the two answers is sufficient, cancels the other.
  void settle(MatchCall& call, MatchCall& hedge) {
    if (!call.has_ended() && hedge.has_all()) call.cancel();
    if (!hedge.has_ended() && call.has_ended() && !call.error()) hedge.cancel();
  }
  void hedge(MatchCall& call, TimePoint now) {
    const auto second = core_.second_node(rounds_.map(), call.chain);
    if (!second || now >= until_ || !core_.hedger.take(call.chain.node, now)) return;
    MatchCall& again = rounds_.add_hedge(call, *second);
    again.sent = now;
    core_.start(again, *second, space_, bundle_, until_);
    settle(call, again);
  }
  void arm() {
    TimePoint next = TimePoint::max();
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (!calls_[i].has_ended() && calls_[i].hedge == nullptr) next = std::min(next, late_[i]);
    }
    alarm_.arm(next);
  }
  /// A call that was given up took at least as long as it lasted.
  void count(const MatchCall& call) {
    Hedger::Node& node = core_.hedger.node(call.chain.node);
    const TimePoint now = core_.shared->clock.now();
    const bool was_sent = !call.error() || call.error() == Errc::kCancelled || call.error() == asio::error::timed_out;
    if (was_sent) node.match.add((call.error() ? now : call.answered) - call.sent);
    if (call.hedge == nullptr) return;
    if (!call.hedge->error()) core_.hedger.answered(call.hedge->block_count > 0, now);
    node.wins += &call.best() == call.hedge;
  }

  ClientCore& core_;
  const Space space_;
  MatchRounds& rounds_;
  const std::span<MatchCall> calls_;
  CallBundle& bundle_;
  const TimePoint until_;
  std::vector<TimePoint> late_;  ///< When each call is late; max: already handled.
  LateAlarm alarm_;
};

/// One match: where it looks, place after place, and the best of them. At most four: each look() is called once.
class MatchSearch {
 public:
  MatchSearch(ClientCore& core, Space space, Hashes hashes, const MatchOptions& options, CallBundle& bundle,
              std::shared_ptr<const ClusterMap> map, TimePoint until)
      : core_(core),
        space_(space),
        hashes_(hashes),
        options_(options),
        block_size_(core.find_space(space)->record.block_size()),
        bundle_(bundle),
        until_(until),
        roots_(core.hot_roots(space, hashes)),
        first_map_(map),
        map_(std::move(map)) {}

  asio::awaitable<void> run();
  MatchResult result();

 private:
  asio::awaitable<void> look();
  template <class... Args>
  MatchRounds& add(Args&&... args) {
    return places_[count_++].emplace(std::forward<Args>(args)...);
  }
  bool is_whole() const { return best_->held() == hashes_.size(); }
  bool has_time() {
    if (options_.control.is_cancelled()) why_ = Errc::kCancelled;
    if (!why_ && core_.shared->clock.now() >= until_) why_ = asio::error::timed_out;
    return !why_;
  }
  /// A node that holds the chain's root; the choice depends on the whole chain, so that not all clients ask the same.
  MatchRounds::FromNode near(const ClusterMap& on, std::size_t except) const {
    return {core_.nearest(on, hashes_.back(), except)};
  }
  Lease keep_leases();

  ClientCore& core_;
  const Space space_;
  const Hashes hashes_;
  const MatchOptions& options_;
  const std::size_t block_size_;
  CallBundle& bundle_;
  const TimePoint until_;
  const HotSets::Roots roots_;
  const std::shared_ptr<const ClusterMap> first_map_;
  std::shared_ptr<const ClusterMap> map_;  ///< A new one may come before the last answer.
  std::array<std::optional<MatchRounds>, 4> places_;
  std::size_t count_ = 0;
  const MatchRounds* best_ = nullptr;
  error_code why_;  ///< Why another place was not asked.
};

/// Asks in the place added last, round after round.
asio::awaitable<void> MatchSearch::look() {
  MatchRounds& rounds = *places_[count_ - 1];
  while (rounds.has_next()) {
    const std::span<MatchCall> calls = rounds.begin_next(options_, block_size_);
    for (MatchCall& call : calls) {
      call.options = &options_;
      core_.start(call, call.chain.node, space_, bundle_, until_);
    }
    if (core_.hedger.is_on() && rounds.map().owner_count() > 1) {
      MatchHedges hedges(core_, space_, rounds, calls, bundle_, until_);
      co_await hedges.wait();
    } else {
      co_await wait_all(bundle_);
    }
    rounds.end();
    for (const MatchCall& call : calls) {
      if (call.node_count > 0 && !call.error()) core_.hear_hot_version(space_, call.chain.node, call.hot_version);
      if (call.hedge == nullptr) continue;
      const MatchCall& loser = &call.best() == &call ? *call.hedge : call;
      if (loser.lease != 0)
        end_lease(*core_.shared, {loser.chain.node, loser.answered_by, loser.lease, loser.chain.first});
    }
    if (options_.control.is_cancelled()) rounds.stop(Errc::kCancelled);  // between rounds a cancel has no call to end
  }
  if (best_ == nullptr || rounds.held() > best_->held()) best_ = &rounds;
}

asio::awaitable<void> MatchSearch::run() {
  // A chain that lies entirely in its root is on every node.
  const bool is_root = !core_.shared->config.zone.empty() && !hashes_.empty() && hashes_.size() <= roots_.now;
  if (is_root) {
    add(*first_map_, hashes_, near(*first_map_, first_map_->node_count()), /*is_counted=*/true);
  } else {
    add(*first_map_, hashes_, roots_.now, /*is_counted=*/true);
  }
  co_await look();

  // A node was found not to answer: its stand-in may have the blocks.
  if (best_->why() && !is_whole()) map_ = core_.reachable_map();
  if (map_ != first_map_ && has_time()) {
    add(*map_, hashes_, roots_.now, /*is_counted=*/false);
    co_await look();
  }
  const std::size_t first_owner = places_[count_ - 1]->place().node.value();
  // Where the former root puts the first missing block elsewhere, it may lie there. Blocks found behind the root say
  // nothing against that: another chain that continues alike may have brought them since.
  if (roots_.before && !is_whole()) {
    const MatchRounds& earlier = add(*map_, hashes_, *roots_.before, /*is_counted=*/false);
    if (best_->places_differ(best_->held(), earlier) && has_time()) co_await look();
  }
  // Not even the root: its owner is away, or new. Others have it too.
  if (best_->held() < roots_.now && has_time()) {
    add(*map_, hashes_.first(roots_.now), near(*map_, first_owner), /*is_counted=*/false);
    co_await look();
  }
}

MatchResult MatchSearch::result() {
  if (map_->owner_count() > 1) core_.known_chains.matched(hashes_, best_->known());
  MatchResult result = best_->result();
  if (!is_whole()) {
    if (!result.why) result.why = why_;
    // The owner that is away may hold it; or a node asked elsewhere.
    if (!result.why && core_.is_owner_away(hashes_, result.block_count, roots_.now)) result.why = Errc::kUnavailable;
    for (std::size_t i = 0; i < count_ && !result.why; ++i) result.why = places_[i]->why();
  }
  result.lease = keep_leases();
  if (core_.has_hot_roots() && result.block_count > 0) {
    core_.hot_sets.found(static_cast<std::uint32_t>(space_), hashes_[result.block_count - 1], best_->place());
  }
  core_.shared->metrics.matched(result.block_count - result.disk_block_count, result.disk_block_count,
                                hashes_.size() - result.block_count, block_size_);
  return result;
}

/// Of the best place; the others' end.
Lease MatchSearch::keep_leases() {
  const TimePoint now = core_.shared->clock.now();
  LeaseEntry lease;
  for (std::size_t i = 0; i < count_; ++i) {
    for (const MatchCall* call : places_[i]->leases()) {
      LeasePart part{call->chain.node, call->answered_by, call->lease, call->chain.first};
      if (&*places_[i] == best_) {
        lease.add(std::move(part), call->lease_us, now);
      } else {
        end_lease(*core_.shared, part);
      }
    }
  }
  return lease.parts.empty() ? Lease{} : core_.leases.keep(std::move(lease), now);
}

}  // namespace

Async<MatchResult> Client::match(Space space, Hashes hashes, MatchOptions options) {
  ClientCore& core = *core_;
  if (const error_code refused = core.refuses(space, options.deadline, options.control)) co_return refused;
  if (core.find_space(space)->record.is_set()) co_return error_code(Errc::kUnsupported);
  const std::size_t block_size = core.find_space(space)->record.block_size();
  const auto is_bad = [&](std::size_t count, std::size_t each) {
    return count > 0 && (count < hashes.size() * each || count > (hashes.size() + 1) * each);
  };
  if (is_bad(options.token_ids.size(), block_size) || is_bad(options.extras.size(), 1)) {
    co_return error_code(Errc::kBadRequest);
  }
  std::shared_ptr<const ClusterMap> map = core.reachable_map();
  // The owner of the last block need not own the next one, which only part of the tokens would match.
  if (map->node_count() > 1) options.token_ids = {};
  if (hashes.empty() && options.token_ids.empty()) co_return MatchResult{};

  const CallInProgress in_progress(core.shared, FrameType::kMatch);
  CallBundle bundle(core.shared->executor, options.control);  // outlives the calls, which point to it
  core.meet_hot_roots(space);
  MatchSearch search(core, space, hashes, options, bundle, std::move(map), core.deadline_after(options.deadline));
  co_await search.run();
  MatchResult result = search.result();
  in_progress.done(result.why);
  co_return result;
}

void Client::release(Lease lease) {
  for (const LeasePart& part : core_->leases.take(lease)) end_lease(*core_->shared, part);
}

}  // namespace kv
