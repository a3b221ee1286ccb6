#include "store/node/membership/membership.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
#include "base/text/quantity.h"
#include "store/node/membership/member_text.h"
#include "store/node/threads/thread_border.h"
#include "transport/frames/frame.h"

namespace kv {
namespace {

constexpr std::uint32_t kExtentBlocksMax = 1 << 20;
constexpr std::uint64_t kEpochBaseMax = 1ull << 62;

/// Reads a constant of the cluster. Returns "", or the error; then *value is 0.
template <class T>
std::string read_constant(const std::string& text, T least, T most, const char* allowed, T* value) {
  const auto read = parse_number<T>(text);
  const bool is_allowed = read && *read >= least && *read <= most;
  *value = is_allowed ? *read : 0;
  if (is_allowed) return "";
  return fmt::format("'{}', allowed is {}", printable(text.substr(0, 64)), allowed);
}

/// What the entries of a listing say, without invalid ones.
struct Entries {
  Entries(const KeyStore::Listing& listing, const std::string& prefix);
  std::uint32_t extent_blocks = 0;
  std::uint64_t epoch_base = 0;
  std::map<std::string, Member> members;
  std::size_t bad_count = 0;
  std::string bad;  ///< The last invalid one.
};

Entries::Entries(const KeyStore::Listing& listing, const std::string& prefix) {
  const std::string nodes = prefix + "/nodes/";
  for (const KeyStore::Entry& entry : listing.entries) {
    std::string why;
    if (entry.key == prefix + "/extent_blocks") {
      why = read_constant(entry.value, 1u, kExtentBlocksMax, "1..1048576", &extent_blocks);
    } else if (entry.key == prefix + "/epoch_base") {
      why = read_constant(entry.value, std::uint64_t{0}, kEpochBaseMax, "0..2^62", &epoch_base);
    } else if (entry.key.starts_with(nodes)) {
      auto member = read_member(entry.value);
      if (!member) {
        why = member.error().text;
      } else if (members.size() >= kClusterNodesMax) {
        why = fmt::format("more than {} members", kClusterNodesMax);
      } else if (entry.key != nodes + member->id) {
        why = "another id, '" + member->id + "'";
      } else {
        members.emplace(member->id, std::move(*member));
      }
    }
    if (why.empty()) continue;
    bad = printable(entry.key) + ": " + why;
    ++bad_count;
  }
}

}  // namespace

Membership::Membership(asio::any_io_executor executor, KeyStore& keys, Clock& clock, ClusterBoard& board,
                       MembershipConfig config)
    : keys_(keys),
      clock_(clock),
      board_(board),
      config_(std::move(config)),
      wake_(executor),
      alarm_(clock.make_alarm(executor)) {
  KV_ASSERT(check_member(config_.self).empty() && config_.lease >= 2s && config_.poll > Duration::zero());
  KV_ASSERT(config_.extent_blocks >= 1 && config_.extent_blocks <= kExtentBlocksMax);
}

void Membership::tell(Member::State state, Member::Phase phase) {
  config_.self.state = state;
  config_.self.phase = phase;
  must_put_ = true;
  wake_.set();
}

void Membership::stop() {
  stops_ = true;
  wake_.set();
}

Membership::Status Membership::status() const {
  return {is_reachable_, board_.is_writable(), is_joined_, is_replaced_, failures_, joins_, bad_entries_};
}

std::string Membership::why_not_written() const {
  const std::lock_guard lock(mutex_);
  return why_not_written_;
}

asio::awaitable<void> Membership::run() {
  TimePoint succeeded = clock_.now();  // the store may have been away since right after this
  while (!stops_) {
    const TimePoint began = clock_.now();
    const Failure exception(Errc::kUnavailable, "an exception, see above");
    Stepped stepped{exception, exception};
    co_await within_border(NodeThread::kMembership, step(stepped));
    if (stepped.written && stepped.read) {
      succeeded = began;
    } else if (failing_since_ == TimePoint{}) {
      failing_since_ = succeeded;
    }
    note(stepped);
    co_await pause();
  }
  if (lease_ == 0 || !is_reachable_) co_return;  // the lease ends by time
  const auto revoked = co_await keys_.revoke(std::exchange(lease_, 0));
  if (!revoked) spdlog::warn("cluster: could not leave at once: {}", revoked.error().text);
}

/// Also the pause after a failure: a step is cheap, and etcd's clients are few, so there is no back-off.
asio::awaitable<void> Membership::pause() {
  if (stops_) co_return;
  alarm_->arm(clock_.now() + config_.poll, [this] { wake_.set(); });
  co_await wake_.wait();
  wake_.reset();
}

/// Runs all due calls, in an order in which each is useful even if the next one fails.
asio::awaitable<void> Membership::step(Stepped& to) {
  to.written = true;
  if (!is_replaced_) {
    to.written = co_await keep_lease();
    if (to.written) to.written = co_await announce();
  }
  const auto listing = co_await keys_.list(config_.prefix + "/");
  to.read = listing ? Result<bool, Failure>(true) : listing.error();
  if (!listing) co_return;
  if (to.written && failing_since_ != TimePoint{}) {
    // Other nodes last renewed their leases this long before, and may have lost theirs although this node kept its own.
    const Duration before = config_.lease / 3 + config_.poll;
    if (clock_.now() - failing_since_ + before >= config_.lease) came_back_ = clock_.now();
    failing_since_ = TimePoint{};
  }
  adopt(*listing, to.written.has_value());
}

Membership::Step Membership::keep_lease() {
  if (lease_ != 0 && clock_.now() - kept_ >= config_.lease / 3) {
    const TimePoint asked = clock_.now();
    const auto kept = co_await keys_.keep_alive(lease_);
    if (!kept) co_return kept;
    if (*kept) {
      kept_ = asked;
      board_.set_lease_end(kept_ + config_.lease);
    } else {
      spdlog::warn("cluster: this node's lease has ended, it joins anew");
      lease_ = 0;
    }
  }
  if (lease_ == 0) {
    const TimePoint asked = clock_.now();
    const auto granted = co_await keys_.grant(config_.lease);
    if (!granted) co_return granted.error();
    lease_ = *granted;
    kept_ = asked;
    board_.set_lease_end(kept_ + config_.lease);
    if (joins_ > 0) rejoined_ = asked;
    must_put_ = true;
    ++joins_;
  }
  co_return true;
}

Membership::Step Membership::announce() {
  if (!has_constant_) {
    // First, so that a node that finds the constant finds this too.
    auto based = co_await keys_.put_new(config_.prefix + "/epoch_base", std::to_string(epoch_base()));
    if (!based) co_return based;
    auto put = co_await keys_.put_new(config_.prefix + "/extent_blocks", std::to_string(config_.extent_blocks));
    if (!put) co_return put;
    has_constant_ = true;
  }
  if (!must_put_) co_return true;
  must_put_ = false;  // before the call: tell() may come meanwhile
  auto put = co_await keys_.put(node_key(), write_member(config_.self), lease_);
  if (!put || !*put) must_put_ = true;
  if (put && !*put) lease_ = 0;  // ended between the two calls
  co_return put;
}

void Membership::adopt(const KeyStore::Listing& listing, bool is_written) {
  if (listing.revision >= revision_) {
    older_count_ = 0;
  } else if (!is_written || config_.poll * ++older_count_ < config_.lease) {
    return;  // 2
  }
  revision_ = listing.revision;
  Entries entries(listing, config_.prefix);
  bad_entries_ += entries.bad_count;
  if (entries.bad != last_bad_) {
    if (!entries.bad.empty()) spdlog::warn("cluster: left out: {}", entries.bad);
    last_bad_ = entries.bad;
  }
  ClusterView view;
  view.extent_blocks = entries.extent_blocks;
  const auto found = entries.members.find(config_.self.id);
  const Member* const self = found == entries.members.end() ? nullptr : &found->second;
  if (self == nullptr || view.extent_blocks == 0) {
    lease_ = self == nullptr ? 0 : lease_;  // 1. Revoked, or lost with everything else
    has_constant_ = has_constant_ && view.extent_blocks != 0;
    if (!is_replaced_) return;
  }
  if (self != nullptr && self->instance != config_.self.instance && !is_replaced_) {
    if (!is_written) return;  // an earlier run of this node, which etcd does not let this one replace yet
    spdlog::error(
        "cluster: another process has node-id {} (instance {}); this one gives its place up. Give each node an id of "
        "its own",
        config_.self.id, self->instance);
    is_replaced_ = true;
    lease_ = 0;
  }
  is_joined_ = !is_replaced_;
  if (view.extent_blocks == 0) return;
  for (auto& [id, member] : entries.members) view.members.push_back(std::move(member));
  const auto known = board_.view();
  if (known->members == view.members && known->extent_blocks == view.extent_blocks) return;
  if (is_coming_back(*known, view)) return;
  if (view.extent_blocks != config_.extent_blocks && known->epoch == 0)
    spdlog::warn("cluster: extent_blocks is {} in this cluster, not {}", view.extent_blocks, config_.extent_blocks);
  view.epoch = entries.epoch_base + listing.revision;
  if (view.epoch <= known->epoch && entries.epoch_base == 0) {  // 2: revisions have begun anew
    has_constant_ = false;
    return;
  }
  view.epoch = std::max(view.epoch, known->epoch + 1);
  spdlog::info("cluster: epoch={} members={}", view.epoch, view.members.size());
  board_.set(std::move(view));
}

/// A new etcd starts with low revisions, and existing clients would treat all maps as old. So the base is the time at
/// which the cluster begins: etcd's revision grows by less than 1,024 a second. Since 2025: short numbers.
std::uint64_t Membership::epoch_base() const {
  constexpr std::uint64_t kFirst = 1'735'689'600, kChangesPerSecond = 1024;
  const auto from_clock = [] {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  };
  const std::uint64_t now = config_.wall_seconds ? config_.wall_seconds() : from_clock();
  return (std::max(now, kFirst) - kFirst) * kChangesPerSecond;
}

/// After all leases have ended, or etcd was set up anew, this node is one of the first to register again; or etcd was
/// away for so long that others' leases have ended. They come back within seconds. A map without them would cost all
/// their blocks, and a node about to leave would find no other node to take its own. Dead nodes stay one more lease.
bool Membership::is_coming_back(const ClusterView& known, const ClusterView& view) const {
  const TimePoint since = std::max(rejoined_, came_back_);
  if (since == TimePoint{} || clock_.now() >= since + config_.lease + 2 * config_.poll) return false;
  return std::ranges::any_of(known.members, [&](const Member& member) {
    return std::ranges::find(view.members, member.id, &Member::id) == view.members.end();
  });
}

/// Logs each reason once, and when etcd is back, not once a second.
void Membership::note(const Stepped& stepped) {
  is_reachable_ = stepped.read.has_value();
  failures_ += !stepped.read || !stepped.written;
  // An etcd that is away refuses nothing: the write fails as the read does.
  const bool is_refused = stepped.read && !stepped.written;
  board_.set_writable(!is_refused);
  {
    const std::lock_guard lock(mutex_);
    why_not_written_ = is_refused ? stepped.written.error().text : "";
  }
  if (!stepped.read) {
    if (told_.is_new(stepped.read.error().text))
      spdlog::warn("cluster: {}; the list known last stays in force", stepped.read.error().text);
  } else if (is_refused) {
    if (told_.is_new(stepped.written.error().text))
      spdlog::warn("cluster: etcd refuses this node's changes: {}; the list is still read",
                   stepped.written.error().text);
  } else if (told_.clear()) {
    spdlog::info("cluster: etcd answers again, and takes changes");
  }
}

}  // namespace kv
