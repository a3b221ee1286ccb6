#include "store/node/mover/mover.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "base/text/printable.h"
#include "store/node/membership/member_text.h"
#include "store/node/store_guards.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::chrono::microseconds kPutDeadline = 10s, kOpenDeadline = 2s, kStatsDeadline = 1s, kPingDeadline = 500ms;
/// After a change, some clients use the old map until an answer tells them of the new one.
constexpr Duration kUnsettled = 5s;
constexpr Duration kFailurePause = 1s;  ///< After an exception.
constexpr Duration kDelta = 1s;         ///< Between two passes over the blocks used meanwhile.
constexpr std::size_t kFormersMax = 8;
constexpr std::size_t kPathsAtOnce = 64;  ///< Handled before other work on the thread gets its turn.

bool is_hotter(const LookDesk::PathEnd& a, const LookDesk::PathEnd& b) { return a.used > b.used; }

/// Whether a member of both is another process now.
bool has_restarted(const ClusterView& before, const ClusterView& now) {
  return std::ranges::any_of(now.members, [&](const Member& member) {
    const auto former = std::ranges::find(before.members, member.id, &Member::id);
    return former != before.members.end() && former->instance != member.instance;
  });
}

}  // namespace

Mover::Mover(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store,
             const HotRoots& hot_roots, const ClusterBoard& board, MoveBoard& moves, MoverConfig config, Tell tell)
    : executor_(std::move(executor)),
      network_(network),
      clock_(clock),
      store_(store),
      hot_roots_(hot_roots),
      board_(board),
      moves_(moves),
      config_(std::move(config)),
      tell_(std::move(tell)),
      wake_(executor_),
      alarm_(clock.make_alarm(executor_)) {
  KV_ASSERT(config_.bytes_per_second >= 1);
  moves_.is_here = true;
}

Mover::~Mover() = default;

void Mover::leave() {
  is_leaving_ = true;
  wake_.set();
}

void Mover::stop() {
  stops_ = true;
  if (put_ != nullptr) put_->cancel();
  wake_.set();
}

asio::awaitable<void> Mover::run() {
  while (!stops_) {
    const bool is_through = co_await within_border(NodeThread::kMover, round());
    if (!is_through) {
      put_ = nullptr;
      drop_hands();  // their calls have ended
      is_pass_due_ = true;
    }
    if (!stops_) co_await pause(clock_.now() + (is_through ? kLook : kFailurePause));
  }
  drop_hands();
}

asio::awaitable<void> Mover::round() {
  look();
  co_await work();
  if (!stops_) co_await step();
  if (!stops_) co_await copy();
  if (!stops_) co_await ping_others();
}

asio::awaitable<void> Mover::pause(TimePoint until) {
  alarm_->arm(until, [this] { wake_.set(); });
  while (clock_.now() < until && !stops_) {
    wake_.reset();
    co_await wake_.wait();
  }
  alarm_->disarm();
}

// -- target

/// Reads the present map and derives the hand-over from it.
void Mover::look() {
  auto view = board_.view();
  const bool leaves_untold = wants_out() && !board_.is_writable();
  if (view->epoch == 0 || (view_ && view->epoch == view_->epoch && leaves_untold == leaves_untold_)) return;
  leaves_untold_ = leaves_untold;
  // The copies in its memory went with the earlier process. The target says nothing of that: it may be the same.
  if (view_ && has_restarted(*view_, *view)) copied_until_ = TimePoint::min();
  view_ = std::move(view);
  digest_ = digest_of(*view_) >> 11;
  is_pass_due_ = true;
  changed_ = clock_.now();
  retarget(*view_);
}

/// The future owners: joining nodes count, leaving ones do not; nor does this one if it leaves and etcd refuses to tell
/// it to others. Clients get that map once the blocks have arrived.
void Mover::retarget(const ClusterView& view) {
  auto next = std::make_unique<Target>();
  std::vector<ClusterMap::Node> owners;
  for (const Member& member : view.members) {
    if (member.id == config_.node_id) next->self = next->nodes.size();
    NodeConfig node;
    node.endpoint = endpoint_for_others(member, config_.tls != nullptr);
    node.name = node.node_id = member.id;
    const bool leaves = leaves_untold_ && member.id == config_.node_id;
    node.weight = member.will_own() && !leaves ? member.weight : 0;
    owners.push_back({node.name, node.weight});
    next->nodes.push_back(std::move(node));
  }
  const auto self = std::ranges::find(view.members, config_.node_id, &Member::id);
  if (self == view.members.end()) next->self = view.members.size();
  const bool has_owner = std::ranges::any_of(owners, [](const ClusterMap::Node& node) { return node.weight > 0; });
  const auto give_up_target = [this] {
    if (target_) formers_.push_back(std::move(target_));
    if (formers_.size() > kFormersMax) formers_.erase(formers_.begin());
    drop_hands();
    copied_until_ = TimePoint::min();  // the second in line may be another node now
  };
  if (!has_owner) return give_up_target();  // no node is left to hand blocks to
  const auto is_same = [](const NodeConfig& a, const NodeConfig& b) {
    return a.name == b.name && a.weight == b.weight && a.endpoint == b.endpoint;
  };
  if (target_ && std::ranges::equal(target_->nodes, next->nodes, is_same)) return;
  next->map = std::make_unique<const ClusterMap>(owners, view.extent_blocks);
  give_up_target();
  target_ = std::move(next);
  is_whole_due_ = true;
}

bool Mover::has_others() const {
  if (!target_) return false;
  for (std::size_t i = 0; i < target_->nodes.size(); ++i) {
    if (i != target_->self && target_->owns(i)) return true;
  }
  return false;
}

/// Clients may still put blocks here that belong elsewhere.
bool Mover::is_unsettled() const {
  const auto is_moving = [](const Member& member) { return member.phase != Member::Phase::kNone; };
  return clock_.now() < changed_ + kUnsettled || role_ == Role::kDraining ||
         std::ranges::any_of(view_->members, is_moving);
}

// -- blocks

/// One pass over all blocks with other owners now, or over those used since the last pass.
asio::awaitable<void> Mover::work() {
  if (!view_) co_return;
  const bool is_whole = is_whole_due_;
  const TimePoint begun = clock_.now();
  if (!is_whole && !is_pass_due_ && (!is_unsettled() || begun < pass_begun_ + kDelta)) co_return;
  const auto stored = store_.with([](Store& store) { return store.stats().stored_blocks; });
  const bool is_new = std::exchange(stored_count_, stored) != stored;
  is_pass_due_ = false;  // before the pass: the map may change again meanwhile
  // The first map a node sees needs no hand-over: the node has no earlier map under which it owned its blocks.
  const bool is_idle = !has_others() || (is_whole ? formers_.empty() : !is_new);
  if (is_idle) {
    // A leaving node keeps the paths that it could not hand over, whichever maps follow, and tries them again.
    if (is_whole && !wants_out()) moves_.set_unmoved({});
    if (target_ && !wants_out()) formers_.clear();
    is_whole_due_ = false;
    pass_begun_ = begun;
    moves_.settled = digest_;
    co_return;
  }
  Paths paths = co_await list(is_whole ? TimePoint::min() : pass_begun_, mover(),
                              [this](const Path& path, std::span<const BlockHash> blocks, bool is_now) {
                                return is_moving(blocks, path.hot_blocks, is_now);
                              });
  Paths failed;
  moves_.remaining_paths = paths.size();
  if (!paths.empty() && is_whole)
    spdlog::info("cluster: {} paths have another owner now, handing them over", paths.size());
  const Target* const target = target_.get();
  const bool wanted_out = wants_out();
  MoveBoard::Unmoved unmoved = is_whole ? MoveBoard::Unmoved() : moves_.unmoved();
  bool has_unmoved = false;
  for (int turn = 0; turn < 2 && !stops_; ++turn) {
    for (const Path& path : paths) {
      const error_code error = co_await send(path, mover(), {moves_.moved_blocks, moves_.moved_bytes});
      if (stops_) co_return;
      if (error) failed.push_back(path);
      if (error && turn > 0) {
        ++moves_.failed_paths;
        MoveBoard::count(unmoved, reason_of(error, *mover().client));
        has_unmoved = true;
      }
      if (!error || turn > 0) moves_.remaining_paths = moves_.remaining_paths - 1;
      look();
      // Start over for the new target, or continue with the node's new role.
      if (target_.get() != target || wants_out() != wanted_out) {
        moves_.remaining_paths = 0;
        co_return;
      }
    }
    paths = std::exchange(failed, {});  // retry: a connection may have broken
  }
  moves_.remaining_paths = 0;
  pass_begun_ = begun;
  moves_.set_unmoved(std::move(unmoved));  // at the end: an operator who asks during a pass sees the one before
  if (has_unmoved) tell_unmoved();
  if (is_whole) {
    if (!has_unmoved) formers_.clear();  // else the next map's pass tries those paths again
    is_whole_due_ = false;
    spdlog::info("cluster: handed over {} blocks ({} bytes) so far", moves_.moved_blocks.load(),
                 moves_.moved_bytes.load());
    is_pass_due_ = true;  // for blocks put during this pass; after the next one all is settled
  }
  if (!is_pass_due_) moves_.settled = digest_;
}

/// One pass of second copies, over blocks used since the last one.
asio::awaitable<void> Mover::copy() {
  const TimePoint begun = clock_.now();
  const bool is_quiet = role_ == Role::kServing && !is_whole_due_ && moves_.settled == digest_;
  if (config_.copy_uses == 0 || !view_ || !is_quiet || begun < next_copies_) co_return;
  if (!has_others() || !target_->owns(target_->self)) co_return;
  const Target* const target = target_.get();
  const auto is_over = [&] { return stops_ || target_.get() != target || is_pass_due_ || wants_out(); };
  const Paths paths = co_await list(
      copied_until_, copier(),
      [this](const Path& path, std::span<const BlockHash> blocks, bool) { return is_worth_a_copy(path, blocks); });
  for (const Path& path : paths) {
    if (is_over()) co_return;
    const error_code error = co_await send(path, copier(), {moves_.copied_blocks, moves_.copied_bytes});
    moves_.failed_copies += error && !stops_;
    look();
  }
  if (is_over()) co_return;
  copied_until_ = begun;
  next_copies_ = clock_.now() + kCopyPause;
}

/// Copies this node's own blocks only: other blocks here are copies themselves. A path that ends within its root is on
/// every node, except shortly after it became hot: clients also ask by the former root, where only this node has it.
bool Mover::is_worth_a_copy(const Path& path, std::span<const BlockHash> blocks) const {
  if (blocks.size() <= path.hot_blocks) return false;
  const auto extents = target_->map->extents(blocks, path.hot_blocks);
  if (std::ranges::none_of(extents, [&](const auto& extent) { return extent.node == target_->self; })) return false;
  const auto uses = store_.with([&](Store& store) { return store.path_uses(path.end, path.hot_blocks); });
  return uses && *uses >= config_.copy_uses;
}

/// Paths to send among those used at `since` or later; the latest used first.
asio::awaitable<Mover::Paths> Mover::list(TimePoint since, Hand& hand, IsWanted is_wanted) {
  std::vector<LookDesk::PathEnd> ends;
  LookDesk::PathCursor cursor;
  while (!cursor.is_done && !stops_) {
    store_.with([&](Store& store) { store.list_paths(cursor, since, ends); });
    if (ends.size() >= 2 * kEndsMax) {  // 3
      std::ranges::nth_element(ends, ends.begin() + kEndsMax, is_hotter);
      ends.resize(kEndsMax);
    }
    co_await asio::post(executor_, asio::use_awaitable);
  }
  std::ranges::sort(ends, is_hotter);
  if (ends.size() > kEndsMax) ends.resize(kEndsMax);
  Paths wanted;
  std::map<SpaceId, HotBlocks> heard;
  std::size_t looked = 0;
  for (const LookDesk::PathEnd& end : ends) {
    if (stops_) break;
    if (++looked % kPathsAtOnce == 0) co_await asio::post(executor_, asio::use_awaitable);
    std::shared_ptr<const NamespaceRecord> record;
    const auto path = store_.with([&](Store& store) {
      record = store.find_namespace(end.space);
      return store.path_of(end);
    });
    if (!path || !record) continue;  // evicted or dropped meanwhile
    const auto [of_others, is_new] = heard.try_emplace(end.space);
    if (is_new) of_others->second = co_await hear_roots(hand, end.space, record->id());
    std::vector<std::size_t> roots = recent_roots_.roots(record->id(), *path, clock_.now());
    const auto root_of_others =
        std::ranges::find_if_not(*path, [&](const BlockHash& block) { return of_others->second.contains(block); });
    roots.push_back(static_cast<std::size_t>(root_of_others - path->begin()));  // 6
    if (std::ranges::find(roots, roots.back()) != roots.end() - 1) roots.pop_back();
    bool is_now = true;
    for (const std::size_t hot_blocks : roots) {
      if (is_wanted({end, hot_blocks}, *path, is_now)) wanted.push_back({end, hot_blocks});
      is_now = false;
    }
  }
  co_return wanted;
}

/// A block is hot if any node reports it, as for clients: its own report alone would lead to other owners.
asio::awaitable<Mover::HotBlocks> Mover::hear_roots(Hand& hand, SpaceId id, const NamespaceId& name) {
  HotBlocks hot;
  const auto space = co_await open(hand, id);
  if (space && !stops_) {
    static_cast<void>(co_await hand.client->learn_hot_roots(*space, kStatsDeadline));
    for (const BlockHash& block : hand.client->hot_blocks(*space)) hot.insert(block);
  }
  const auto own = hot_roots_.list(name);
  hot.insert(own->blocks.begin(), own->blocks.end());
  recent_roots_.hear(name, std::vector<BlockHash>(hot.begin(), hot.end()), clock_.now());
  if (!space || stops_) co_return hot;                                    // what others report is unknown
  const auto of_others = hand.client->hot_blocks(*space, target_->self);  // a hand has the target's nodes
  co_return HotBlocks(of_others.begin(), of_others.end());
}

/// Blocks that this node never owned under `formers_` are copies left by an earlier map: their owner has them.
bool Mover::is_moving(std::span<const BlockHash> path, std::size_t hot_blocks, bool is_now) const {
  const auto has_own = [&](const Target& by, bool own) {
    return std::ranges::any_of(by.map->extents(path, hot_blocks),
                               [&](const ClusterMap::Extent& extent) { return (extent.node == by.self) == own; });
  };
  if (!has_own(*target_, false)) return false;
  // Between two full passes, blocks put here come from clients with the previous map or by a put that was in progress.
  // Neither explains a path that belongs elsewhere only by a former root.
  if (formers_.empty()) return is_now;
  return std::ranges::any_of(formers_, [&](const auto& each) { return has_own(*each, true); });
}

asio::awaitable<error_code> Mover::send(Path path, Hand& hand, Tally tally) {
  const auto space = co_await open(hand, path.end.space);
  if (!space) co_return space.error() == Errc::kNoNamespace ? error_code() : space.error();
  if (stops_) co_return error_code(Errc::kCancelled);
  std::vector<BlockHash> names;
  auto pinned = store_.with([&](Store& store) -> Result<PinnedPrefix> {
    auto blocks = store.path_of(path.end);
    if (!blocks) return blocks.error();
    names = std::move(*blocks);
    return store.pin_path(path.end);
  });
  if (!pinned) co_return error_code();  // gone meanwhile: done
  const PinnedPrefixGuard guard(store_, std::move(*pinned));
  const error_code error = co_await put(*hand.client, *space, path, names, guard.blocks(), tally);
  co_return error;
}

/// Sends growing prefixes, so that one put sends at most a batch: earlier blocks are offered again, but not wanted.
asio::awaitable<error_code> Mover::put(Client& client, Space space, const Path& path,
                                       const std::vector<BlockHash>& names, std::span<const PinnedBlock> pinned,
                                       Tally tally) {
  const std::size_t block_bytes = client.block_bytes(space);
  KV_ASSERT(names.size() == pinned.size() && block_bytes > 0);
  std::vector<std::span<const std::byte>> blocks;
  std::vector<std::uint64_t> checksums;  // verified when the blocks came; the receiver verifies against them
  for (const PinnedBlock& block : pinned) {
    blocks.push_back(block.bytes);
    checksums.insert(checksums.end(), block.checksums.begin(), block.checksums.end());
  }
  const std::size_t batch = std::max<std::size_t>(1, kBatchBytes / block_bytes), stripes = stripe_count(block_bytes);
  for (std::size_t count = 0; count < names.size() && !stops_;) {
    count = std::min(count + batch, names.size());
    Cancellation cancellation;
    PutOptions options{.deadline = kPutDeadline};
    options.checksums = std::span(checksums).first(count * stripes);
    options.idle =
        std::chrono::duration_cast<std::chrono::microseconds>(std::max(clock_.now() - path.end.used, Duration::zero()));
    options.hot_blocks = path.hot_blocks;
    options.control.cancellation = &cancellation;
    put_ = &cancellation;
    const auto result =
        co_await client.put(space, std::span(names).first(count), std::span(blocks).first(count), options);
    put_ = nullptr;
    if (!result) co_return result.error();
    const std::uint64_t sent_bytes = result->stored * block_bytes;
    tally.blocks += result->stored;
    tally.bytes += sent_bytes;
    paid_until_ = std::max(paid_until_, clock_.now()) +
                  std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                      static_cast<double>(sent_bytes) / static_cast<double>(config_.bytes_per_second)));
    if (result->refused > 0) co_return result->why ? result->why : error_code(Errc::kUnavailable);
    // Short debts add up first: a pause costs more than they do.
    constexpr Duration kDebtMax = 5ms;
    while (clock_.now() + kDebtMax < paid_until_ && !stops_) co_await pause(paid_until_);
  }
  co_return stops_ ? error_code(Errc::kCancelled) : error_code();
}

/// The error of a call says little if a node was not reached, so connection errors are added.
std::string Mover::reason_of(const error_code& error, const Client& client) const {
  std::string reason = error == asio::error::timed_out ? "no answer in time" : error.message();
  for (const NodeStatus& node : client.nodes()) {
    if (!node.connected && node.name != config_.node_id && !node.last_error_text.empty())
      reason += "; " + node.name + ": " + node.last_error_text;
  }
  return reason;
}

/// For the operator who drains a node: paths that stay behind are lost to clients once this node goes.
void Mover::tell_unmoved() {
  for (const auto& [why, paths] : moves_.unmoved())
    spdlog::warn("cluster: {} paths could not be handed over to their next owners: {}", paths, why);
}

Async<Space> Mover::open(Hand& hand, SpaceId id) {
  if (const auto found = hand.spaces.find(id); found != hand.spaces.end()) co_return found->second;
  const auto record = store_.with([&](Store& store) { return store.find_namespace(id); });
  if (!record) co_return error_code(Errc::kNoNamespace);
  // With the tenant of the record (its node_tenant), which only nodes may name. The receiving node salts the record
  // anew with its own secret, so that the tenant's clients find the blocks there.
  auto opened = co_await hand.client->open(record->unsalted(), kOpenDeadline);  // also fetches each node's hot roots
  if (opened) hand.spaces.emplace(id, *opened);
  co_return opened;
}

void Mover::drop_hands() {
  mover_ = {};
  copier_ = {};
}

Mover::Hand& Mover::mover() {
  KV_ASSERT(target_);
  if (!mover_.client) mover_ = make_hand(target_->nodes, "mover of ");
  return mover_;
}

/// Uses the map without this node: each block goes to the second node in its rendezvous order.
Mover::Hand& Mover::copier() {
  KV_ASSERT(target_ && target_->self < target_->nodes.size());
  if (!copier_.client) {
    std::vector<NodeConfig> others = target_->nodes;
    others[target_->self].weight = 0;
    copier_ = make_hand(std::move(others), "copier of ");
  }
  return copier_;
}

Mover::Hand Mover::make_hand(std::vector<NodeConfig> nodes, const std::string& what) const {
  ClientConfig config;
  config.nodes = std::move(nodes);
  config.extent_blocks = view_->extent_blocks;
  config.follow_cluster = false;  // blocks are placed by a map that clients do not have
  config.stand_ins = false;       // blocks that do not reach their place are tried again
  config.identity = what + config_.node_id.substr(0, 100);
  config.connections_per_node = 1;
  config.rdma = ClientConfig::Rdma::kOff;
  config.seed = config_.seed;
  config.are_nodes_told = true;
  config.tls_source = config_.tls;  // a node proves that it is the host of its endpoint
  return {std::make_unique<Client>(executor_, config, network_, clock_), {}};
}

// -- this node's role

void Mover::play(Role role) {
  if (role == role_) return;
  role_ = role;
  is_draining_told_ = false;
  switch (role) {
    case Role::kJoining: joining_since_ = {}; return tell_(Member::State::kDraining, Member::Phase::kJoining);
    case Role::kServing: return tell_(Member::State::kServing, Member::Phase::kNone);
    case Role::kLeaving: return tell_(Member::State::kServing, Member::Phase::kLeaving);
    case Role::kDraining: return tell_(Member::State::kDraining, Member::Phase::kNone);
  }
}

bool Mover::is_told(Role role) const {
  if (!view_) return false;
  if (leaves_untold_ && (role == Role::kLeaving || role == Role::kDraining)) return true;  // as far as it can be told
  const auto self = std::ranges::find(view_->members, config_.node_id, &Member::id);
  if (self == view_->members.end()) return false;
  const bool serves = role == Role::kServing || role == Role::kLeaving;
  const auto phase = role == Role::kJoining   ? Member::Phase::kJoining
                     : role == Role::kLeaving ? Member::Phase::kLeaving
                                              : Member::Phase::kNone;
  return (self->state == Member::State::kServing) == serves && self->phase == phase;
}

asio::awaitable<void> Mover::step() {
  const TimePoint now = clock_.now();
  const bool is_settled = moves_.settled == digest_ && !is_whole_due_;
  if (is_leaving_ && !has_others()) has_left_ = true;
  switch (role_) {
    case Role::kJoining: {
      if (!is_told(Role::kJoining)) break;
      if (wants_out()) {
        play(Role::kDraining);
        break;
      }
      if (joining_since_ == TimePoint{}) joining_since_ = now;
      if (co_await have_others_settled()) {
        play(Role::kServing);
      } else if (clock_.now() >= joining_since_ + config_.join_max) {
        spdlog::warn("cluster: serving without all that other nodes were to hand over");
        play(Role::kServing);
      }
      break;
    }
    case Role::kServing:
      if (wants_out()) play(Role::kLeaving);
      break;
    case Role::kLeaving:
      if (!wants_out()) {
        play(Role::kServing);
      } else if (is_told(Role::kLeaving) && (is_settled || !has_others())) {
        play(Role::kDraining);
      }
      break;
    case Role::kDraining:
      if (!wants_out()) {
        play(Role::kJoining);
      } else if (is_told(Role::kDraining)) {
        if (!std::exchange(is_draining_told_, true)) draining_since_ = now;
        // Clients have seen the change by now, and a pass since then has covered the blocks they put before.
        if (is_leaving_ && is_settled && pass_begun_ >= draining_since_ + kGrace) has_left_ = true;
      }
      break;
  }
}

/// For operators who ask which nodes cannot reach one another (kvstorectl doctor). Not during a hand-over.
asio::awaitable<void> Mover::ping_others() {
  if (!view_ || !target_ || is_unsettled() || clock_.now() < next_pings_) co_return;
  std::vector<MoveBoard::Peer> peers;
  for (const NodeConfig& node : target_->nodes) peers.push_back({.id = node.name});
  const auto times = co_await mover().client->ping(kPingDeadline);
  next_pings_ = clock_.now() + kPings;
  if (!times || times->size() != peers.size()) co_return;
  const std::vector<NodeStatus> nodes = mover().client->nodes();
  const std::vector<MoveBoard::Peer> before = moves_.peers();
  for (std::size_t i = 0; i < peers.size(); ++i) {
    MoveBoard::Peer& peer = peers[i];
    peer.is_reached = (*times)[i].count() >= 0;
    if (peer.is_reached || i >= nodes.size() || peer.id == config_.node_id) continue;
    peer.why = printable(nodes[i].last_error_text.empty() ? nodes[i].last_error.message() : nodes[i].last_error_text);
    const auto last = std::ranges::find(before, peer.id, &MoveBoard::Peer::id);
    if (last == before.end() || last->is_reached || last->why != peer.why)
      spdlog::warn("cluster: node {} is not reached: {}", peer.id, peer.why);
  }
  std::erase_if(peers, [this](const MoveBoard::Peer& peer) { return peer.id == config_.node_id; });
  moves_.set_peers(std::move(peers));
}

/// Whether the serving nodes have handed over all blocks that the coming map takes from them. Nodes that do not answer
/// are not waited for: they will be off the map before long, or their blocks are out of reach anyway.
asio::awaitable<bool> Mover::have_others_settled() {
  std::vector<std::string> serving;
  for (const Member& member : view_->members) {
    if (member.id != config_.node_id && member.state == Member::State::kServing) serving.push_back(member.id);
  }
  if (serving.empty() || !target_) co_return true;
  const nlohmann::json::json_pointer settled("/values/cluster_settled");
  NodeQuestion question{.path = "/stats.json"};
  const auto answers = co_await mover().client->ask(std::move(question), kStatsDeadline);
  if (!answers) co_return false;
  for (const NodeAnswer& said : *answers) {
    if (said.error || std::ranges::find(serving, said.name) == serving.end()) continue;
    const auto answer = nlohmann::json::parse(said.json, nullptr, /*allow_exceptions=*/false);
    // A node without a mover does not report the value.
    if (answer.contains(settled) && !(answer.at(settled) == digest_)) co_return false;
  }
  co_return true;
}

}  // namespace kv
