// store/node/mover/mover.h: hands blocks to the nodes whose they are to be. With pool/, the one room of a node that
// knows the client.
//
// Follow a block: it enters as a part of a path that Store::list_paths() names, is pinned where it lies, put to its
// next owner as any client's block is (offered, wanted, sent, verified there), and leaves unpinned. It stays here as
// well, until eviction takes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "client/client.h"
#include "client/cluster_map.h"
#include "store/node/hot_roots.h"
#include "store/node/locked_store.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/move_board.h"
#include "store/node/mover/recent_roots.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct MoverConfig {
  std::string node_id;
  std::uint64_t bytes_per_second = 256 << 20;  ///< Sent at most, over a second or so. At least 1.
  /// For tls:// endpoints of others: this node's own certificate, of TlsSide::kClient. nullptr: it has none, and a node
  /// that can be reached by TLS alone is one that does not answer.
  std::shared_ptr<TlsSource> tls = {};
  Duration join_max = 300s;  ///< A node that joins serves after so long, whatever it has been given.
  /// Of a path that was used so often, the put that brought it included, a second copy is made. 0: of none.
  std::size_t copy_uses = 0;
  std::uint64_t seed = 0;  ///< As ClientConfig's.
};

/// Before a change of the map costs hits, the blocks go where it will look for them. Nodes *push*: who has a block
/// knows its name, how hot it is and, by the owner rule, whose it will be; the other side takes it by an ordinary put,
/// as much as it has room for, and verifies it. A pull would need a verb that lists what a node holds, and a way to
/// tell which of it is hot. One rule serves all changes: what was this node's under the map before, and is another's
/// under the one to come, is put there, the latest used first.
///
///     starts     -> joining (owns nothing)    the others give it what will be its own -> serving
///     is to stop -> leaving (owns all it did) it gives that to those who follow       -> draining (owns nothing), gone
///
///   1. A node owns blocks, for clients, until they are where they are going; or until a deadline: join_max here, that
///      of its stop outside. No client waits for any of this.
///   2. Of what was put to another, the age goes with it (PutOptions::idle): so what comes is evicted there in its
///   turn,
///      and does not push out what is hotter.
///   3. Bounded: one path is pinned at a time, kEndsMax ends are listed (beyond these the coldest are left out), and
///      bytes_per_second holds on the whole.
///   4. Nothing is done to others' blocks, and none here is given up: a map that was wrong costs copies.
///   5. What lies where a chain's root of a while ago put it goes where that root puts it under the new map, as what
///      lies by the root of now: clients look in both places. So no map takes what was found before it.
/// *Second copies*, where they are asked for: while nothing is to be handed over, what this node owns and was used
/// copy_uses times goes to who would own it if this node left, which is where clients look when it does not answer, and
/// where it belongs from then on. What was used since the last pass, the latest first, kCopyPause apart; at the same
/// rate, to the same ends: it ages there as it does here.
/// What is not handed over, nor copied: what lies on disk alone (a disk stays with its node), sets (a node does not
/// know which names belong together), retention. Where each block is an extent of its own (extent_blocks 1) nothing is.
/// Thread safety: none; on one executor, which must be single-threaded. The boards: any thread.
class Mover {
 public:
  static constexpr std::size_t kEndsMax = 1 << 18;
  static constexpr std::size_t kBatchBytes = 8 << 20;  ///< Of one put, or one block.
  static constexpr Duration kLook = 200ms;             ///< Between two looks at the map.
  static constexpr Duration kCopyPause = 1s;           ///< Between two passes of second copies.
  static constexpr Duration kPings = 10s;              ///< Between two looks at whether others can be reached.
  static constexpr Duration kGrace = 2s;               ///< For clients to hear of a change, so that they put elsewhere.

  /// Tells all what this node is about.
  using Tell = std::function<void(Member::State, Member::Phase)>;

  /// `board` is where membership leaves its view. All outlive this.
  Mover(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store, const HotRoots& hot_roots,
        const ClusterBoard& board, MoveBoard& moves, MoverConfig config, Tell tell);
  ~Mover();

  asio::awaitable<void> run();  ///< Until stop(), which it outlasts by a step.
  void leave();                 ///< The node is to stop: hand all over. For good.
  void set_limits(std::uint64_t bytes_per_second, std::size_t copy_uses) {  ///< As MoverConfig.
    config_.bytes_per_second = bytes_per_second;
    config_.copy_uses = copy_uses;
  }
  void stop();
  /// All is handed over that could be, and clients know that it lies elsewhere; or there is nobody to hand it to. Any
  /// thread.
  bool has_left() const { return has_left_; }

 private:
  enum class Role : std::uint8_t { kJoining, kServing, kLeaving, kDraining };
  /// Who owns what, by one state of the cluster.
  struct Target {
    std::vector<NodeConfig> nodes;  ///< All members; those that own nothing with weight 0.
    std::unique_ptr<const ClusterMap> map;
    std::size_t self = 0;  ///< An index; nodes.size() if this node is not there.
    bool owns(std::size_t node) const { return node < nodes.size() && nodes[node].weight > 0; }
  };
  /// A client of the others, and what it has opened.
  struct Hand {
    std::unique_ptr<Client> client;
    std::map<SpaceId, Space> spaces;
  };
  /// What was put, and how it is counted.
  struct Tally {
    std::atomic<std::uint64_t>& blocks;
    std::atomic<std::uint64_t>& bytes;
  };
  /// A path that is to go, as it lies behind a hot root of so many blocks. One that lies behind several goes as often.
  struct Path {
    Store::PathEnd end;
    std::size_t hot_blocks = 0;
  };
  using Paths = std::vector<Path>;

  asio::awaitable<void> round();
  void look();
  void retarget(const ClusterView& view);
  bool has_others() const;
  bool is_unsettled() const;
  asio::awaitable<void> work();
  asio::awaitable<void> copy();
  /// Whether a path is to go, as it lies behind its first so many blocks; `is_now`: these are its root now, else they
  /// were a while ago.
  using IsWanted = std::function<bool(const Path&, std::span<const BlockHash>, bool is_now)>;
  asio::awaitable<Paths> list(TimePoint since, Hand& hand, IsWanted is_wanted);
  asio::awaitable<void> hear_roots(Hand& hand, SpaceId id, const NamespaceId& name);
  bool is_moving(std::span<const BlockHash> path, std::size_t hot_blocks, bool is_now) const;
  bool is_worth_a_copy(const Path& path, std::span<const BlockHash> blocks) const;
  /// Why the path is not where it belongs; no error: it is, or it is here no more.
  asio::awaitable<error_code> send(Path path, Hand& hand, Tally tally);
  asio::awaitable<error_code> put(Client& client, Space space, const Path& path, const std::vector<BlockHash>& names,
                                  const Store::PinnedPrefix& pinned, Tally tally);
  std::string reason_of(const error_code& error, const Client& client) const;
  void tell_unmoved();
  Async<Space> open(Hand& hand, SpaceId space);
  void drop_hands();
  Hand& mover();
  Hand& copier();
  Hand make_hand(std::vector<NodeConfig> nodes, const std::string& what) const;
  asio::awaitable<void> step();
  asio::awaitable<bool> have_others_settled();
  asio::awaitable<void> ping_others();
  void play(Role role);
  asio::awaitable<void> pause(TimePoint until);
  bool wants_out() const { return is_leaving_ || moves_.drain_wanted; }
  bool is_told(Role role) const;  ///< By the map, as this node has it.

  const asio::any_io_executor executor_;
  Network& network_;
  Clock& clock_;
  LockedStore& store_;
  const HotRoots& hot_roots_;
  const ClusterBoard& board_;
  MoveBoard& moves_;
  MoverConfig config_;
  const Tell tell_;

  std::shared_ptr<const ClusterView> view_;
  std::uint64_t digest_ = 0;  ///< Of view_, as MoveBoard::settled.
  TimePoint changed_{};
  std::unique_ptr<const Target> target_;
  std::vector<std::unique_ptr<const Target>> formers_;  ///< Since the last whole pass that ended.
  Hand mover_, copier_;                                 ///< Of target_; of the same, without this node.
  RecentRoots recent_roots_;
  Cancellation* put_ = nullptr;  ///< Of the call under way.

  bool is_whole_due_ = false;                  ///< A pass over all.
  bool is_pass_due_ = false;                   ///< The map has changed since the last pass began.
  TimePoint pass_begun_{};                     ///< The last one that ended.
  std::uint64_t stored_count_ = 0;             ///< By all puts, when the last pass began.
  TimePoint copied_until_ = TimePoint::min();  ///< What was used by then has its copies.
  TimePoint next_copies_{}, next_pings_{};
  TimePoint paid_until_{};  ///< By when what was sent so far is paid for, at the configured rate.

  Role role_ = Role::kJoining;
  TimePoint joining_since_{}, draining_since_{};
  bool is_leaving_ = false, is_draining_told_ = false, stops_ = false;
  std::atomic<bool> has_left_{false};
  Event wake_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
