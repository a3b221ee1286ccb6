// store/node/mover/mover.h: hands blocks to their next owners. In the node, only mover/ and exchange/ use the client.
//
// Follow a block: it enters as part of a path listed by Store::list_paths(), is pinned in place, put to its next owner
// like any client's block (offered, wanted, sent, verified there), and leaves unpinned. A copy stays until evicted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/event.h"
#include "client/client.h"
#include "client/cluster/cluster_map.h"
#include "store/node/hot_roots.h"
#include "store/node/locked_store.h"
#include "store/node/membership/cluster_view.h"
#include "store/node/membership/move_board.h"
#include "store/node/mover/recent_roots.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct MoverConfig {
  std::string node_id;
  std::uint64_t bytes_per_second = 256 << 20;  ///< Send rate limit, averaged over about a second. At least 1.
  /// This node's own certificate for tls:// endpoints of other nodes, of TlsSide::kClient. nullptr: absent; a
  /// node with only tls:// endpoints then counts as not answering.
  std::shared_ptr<TlsSource> tls = {};
  Duration join_max = 300s;  ///< A joining node serves after this time, however much has been handed to it.
  /// Paths used at least this often (the put that brought them counts) get a second copy. 0: off.
  std::size_t copy_uses = 0;
  std::uint64_t seed = 0;  ///< Same as ClientConfig::seed.
};

/// Moves blocks to where a map change will make clients look, before the change costs hits. Nodes *push*: the holder of
/// a block has its name, its use and, by the owner rule, its next owner. The receiver takes it by an ordinary
/// put, as far as it has room, and verifies it. A pull would need a request that lists a node's blocks and a way to see
/// which are hot. One rule serves all changes: blocks that this node owned under an earlier map and that another node
/// owns under the coming map are put there, the latest used first.
///
///     starts     -> joining (not an owner yet) others hand it its future blocks   -> serving
///     is to stop -> leaving (still an owner)   it hands them to their next owners -> draining (not an owner), gone
///
///   1. For clients, a node owns its blocks until they have arrived at the next owner, or until a deadline: join_max
///      here, the deadline of the stop outside. Clients never wait for a hand-over.
///   2. The age of a block goes with it (PutOptions::idle), so that it is evicted there in its turn.
///   3. Bounded: one path is pinned at a time, the kEndsMax hottest ends are listed, bytes_per_second limits the whole.
///   4. Blocks of other nodes are left alone, and local ones stay: a wrong map costs copies only.
///   5. Blocks placed by a recent root of their chain move like blocks placed by the present root, each to where the
///      same root puts it under the new map: clients look in both places. So clients still find them.
///   6. The root that others report without this node is such a root too: blocks that only this node takes for hot were
///      put by it before, and it is the root once this node is gone.
/// *Second copies*, if configured: while no hand-over is due, blocks that this node owns and that were used copy_uses
/// times go to the node that would own them if this one left. Clients look there when this node does not answer, and
/// the block belongs there once this node has left. Each pass takes the blocks used since the last pass, or all once
/// owners have changed or a member was restarted, the latest first; passes are kCopyPause apart, at the same rate and
/// with the same ages as a hand-over.
/// Neither handed over nor copied: blocks that are on disk only (a disk stays with its node), sets (a node cannot see
/// which names belong together), and retention.
/// Thread safety: none; on one executor, which must be single-threaded. The boards: any thread.
class Mover {
 public:
  static constexpr std::size_t kEndsMax = 1 << 18;
  static constexpr std::size_t kBatchBytes = 8 << 20;  ///< Of one put, or one block if that is larger.
  static constexpr Duration kLook = 200ms;             ///< Between two reads of the map.
  static constexpr Duration kCopyPause = 1s;           ///< Between two passes of second copies.
  static constexpr Duration kPings = 10s;              ///< Between two checks whether other nodes can be reached.
  static constexpr Duration kGrace = 2s;               ///< For clients to learn of a change and put elsewhere.

  /// Publishes this node's state to the cluster.
  using Tell = std::function<void(Member::State, Member::Phase)>;

  /// `board` carries membership's view. All arguments outlive this.
  Mover(asio::any_io_executor executor, Network& network, Clock& clock, LockedStore& store, const HotRoots& hot_roots,
        const ClusterBoard& board, MoveBoard& moves, MoverConfig config, Tell tell);
  ~Mover();

  asio::awaitable<void> run();  ///< Returns within one step after stop().
  void leave();                 ///< The node is to stop: hand over everything. Cannot be undone.
  void set_limits(std::uint64_t bytes_per_second, std::size_t copy_uses) {  ///< As in MoverConfig.
    config_.bytes_per_second = bytes_per_second;
    config_.copy_uses = copy_uses;
  }
  void stop();
  /// The hand-over is complete and clients have learned the new places; or this is the only node. Any thread.
  bool has_left() const { return has_left_; }

 private:
  enum class Role : std::uint8_t { kJoining, kServing, kLeaving, kDraining };
  /// The owners by one state of the cluster.
  struct Target {
    std::vector<NodeConfig> nodes;  ///< All members; weight 0 for those that are not owners.
    std::unique_ptr<const ClusterMap> map;
    std::size_t self = 0;  ///< An index; nodes.size() if this node is not a member.
    bool owns(std::size_t node) const { return node < nodes.size() && nodes[node].weight > 0; }
  };
  /// A client of the other nodes, and the namespaces it has opened.
  struct Hand {
    std::unique_ptr<Client> client;
    std::map<SpaceId, Space> spaces;
  };
  /// Counters of the blocks and bytes put.
  struct Tally {
    std::atomic<std::uint64_t>& blocks;
    std::atomic<std::uint64_t>& bytes;
  };
  /// A path to send, behind a hot root of `hot_blocks` blocks. A path behind several roots is sent once for each.
  struct Path {
    LookDesk::PathEnd end;
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
  /// Whether a path behind the given first blocks is to be sent; `is_now`: they are its root now, else a recent root.
  using IsWanted = std::function<bool(const Path&, std::span<const BlockHash>, bool is_now)>;
  asio::awaitable<Paths> list(TimePoint since, Hand& hand, IsWanted is_wanted);
  using HotBlocks = std::unordered_set<BlockHash>;
  /// Returns the hot blocks without those that only this node reports.
  asio::awaitable<HotBlocks> hear_roots(Hand& hand, SpaceId id, const NamespaceId& name);
  bool is_moving(std::span<const BlockHash> path, std::size_t hot_blocks, bool is_now) const;
  bool is_worth_a_copy(const Path& path, std::span<const BlockHash> blocks) const;
  /// The reason why the path did not arrive. Success: it arrived, or it is no longer here.
  asio::awaitable<error_code> send(Path path, Hand& hand, Tally tally);
  asio::awaitable<error_code> put(Client& client, Space space, const Path& path, const std::vector<BlockHash>& names,
                                  std::span<const PinnedBlock> pinned, Tally tally);
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
  bool is_told(Role role) const;  ///< Whether the map shows this node in that role.

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
  std::uint64_t digest_ = 0;  ///< Of view_, in the form of MoveBoard::settled.
  TimePoint changed_{};
  std::unique_ptr<const Target> target_;
  std::vector<std::unique_ptr<const Target>> formers_;  ///< Earlier ones, since a full pass left no path behind.
  Hand mover_, copier_;                                 ///< By target_; by target_ without this node.
  RecentRoots recent_roots_;
  Cancellation* put_ = nullptr;  ///< Of the put in progress.

  bool is_whole_due_ = false;                  ///< A pass over all paths is due.
  bool is_pass_due_ = false;                   ///< The map has changed since the last pass began.
  TimePoint pass_begun_{};                     ///< Start of the last completed pass.
  std::uint64_t stored_count_ = 0;             ///< Blocks stored by puts when the last pass began.
  TimePoint copied_until_ = TimePoint::min();  ///< Blocks used before this time have their copies.
  TimePoint next_copies_{}, next_pings_{};
  TimePoint paid_until_{};  ///< When the bytes sent so far are paid for at the configured rate.

  Role role_ = Role::kJoining;
  TimePoint joining_since_{}, draining_since_{};
  bool is_leaving_ = false, is_draining_told_ = false, stops_ = false;
  bool leaves_untold_ = false;  ///< It is to leave, and etcd does not take the change.
  std::atomic<bool> has_left_{false};
  Event wake_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace kv
