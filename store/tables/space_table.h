// store/tables/space_table.h: the store's namespaces, by number, and which of them goes when room is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "index/namespace_record.h"
#include "index/prefix_index.h"
#include "store/tables/lease_table.h"
#include "store/tables/root_sample.h"
#include "store/tables/tenant_table.h"

namespace kv {

class ContextEnds;

/// Activity in a namespace since the node started.
struct SpaceTraffic {
  std::uint64_t stored_blocks = 0;
  std::uint64_t lookups = 0, empty_lookups = 0;  ///< Matches, and gets without one; those without a hit.
};

enum class SpaceId : std::uint64_t {};  ///< An opened namespace, of one life of the store. Never reused in that life.

/// Records come and go by the thousand (weights epochs, adapters, salts), so idle ones make room for new ones. A number
/// stays with its namespace for ever: a caller with an old number gets an error, and never blocks of another namespace.
///   1. Each namespace has its own number, never reused.
///   2. Every idle namespace is among the candidates, or its tree among those that an index has emptied since
///      take_emptied(). A candidate may be busy: it is checked again when its turn comes.
///   3. next_idle() names the least recently used idle namespace among those without sessions; failing these, among the
///      others. A session opens its own again when needed.
/// Thread safety: the Store's lock. Cost: O(log namespaces); next_idle() amortised over the uses since.
class SpaceTable {
 public:
  struct Space {
    SpaceId id{};
    std::shared_ptr<const NamespaceRecord> record;
    NamespaceId name;
    TreeId tree{};
    std::uint64_t tenant = 0;            ///< Equal for namespaces of one tenant and salt.
    TenantId owner{};                    ///< Whose quotas count; in a Store that tells tenants apart.
    mutable std::uint64_t last_use = 0;  ///< Set by use(); a counter, not a time.
    std::size_t put_count = 0;
    std::set<std::size_t> slot_sizes;  ///< Size classes of the arena that it has used.
    SpaceTraffic traffic;
    RootSample roots;                           ///< Of a chain.
    std::shared_ptr<ContextEnds> context_ends;  ///< nullptr: never used by contexts.

   private:
    friend class SpaceTable;
    using Turn = std::tuple<bool, std::uint64_t, SpaceId>;  // open somewhere, last use, which
    std::set<SessionId> sessions;                           // that have it open
    Turn turn;                                              // among the candidates, if it is one
    bool is_candidate = false;
  };
  /// Whether it has no blocks and no work under way.
  using IsIdle = std::function<bool(const Space&)>;

  Space* find(SpaceId id) const {
    const auto found = spaces_.find(id);
    return found == spaces_.end() ? nullptr : found->second.get();
  }
  Space* find(std::string_view record) const;
  Space* find(const NamespaceId& name) const;
  Space* find(TreeId tree) const;  ///< Requires: a namespace's tree.
  std::size_t count() const { return spaces_.size(); }
  void for_each(const std::function<void(Space&)>& visit) const;  ///< In order of their numbers.

  /// The next namespaces by name, `count_max` at most, behind `after`, or (nullptr) from the first one on.
  void visit_next(const NamespaceId* after, std::size_t count_max,
                  const std::function<void(const Space&)>& visit) const;

  Space& add(std::shared_ptr<const NamespaceRecord> record, TreeId tree);
  void remove(Space& space);
  void use(const Space& space) const { space.last_use = ++use_count_; }
  void open(Space& space, SessionId session);
  void end_session(SessionId session);  ///< Closes all that it has open.

  void may_be_idle(Space& space);  ///< Makes it a candidate. Call when its last block, put or other holder has gone.
  Space* next_idle(const IsIdle& is_idle);
  std::string check(const IsIdle& is_idle) const;  ///< For tests; empty, or the broken invariant. After take_emptied().

 private:
  using Turn = Space::Turn;

  static Turn turn_of(const Space& space) { return {!space.sessions.empty(), space.last_use, space.id}; }
  void withdraw(Space& space);

  std::unordered_map<SpaceId, std::unique_ptr<Space>> spaces_;
  std::unordered_map<std::string_view, Space*> of_record_;  // views of the records
  std::map<NamespaceId, Space*> of_name_;
  std::vector<Space*> of_tree_;
  std::unordered_map<SessionId, std::set<SpaceId>> open_;  // by session; never empty
  std::set<Turn> candidates_;                              // a turn is never later than the one that is due
  std::uint64_t id_next_ = 0;
  mutable std::uint64_t use_count_ = 0;
};

}  // namespace kv
