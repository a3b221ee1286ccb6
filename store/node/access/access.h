// store/node/access/access.h: the policy in force, and one peer's rights.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "index/namespace_record.h"
#include "store/node/access/tenant_secret.h"
#include "store/node/metrics.h"
#include "store/node/policy/access_policy.h"
#include "store/node/policy/space_owner.h"
#include "transport/tls/file_stamp.h"

namespace kv {

/// A namespace as this node stores it, and its owner.
struct StoredSpace {
  NamespaceRecord record;
  SpaceOwner owner = {};
};

/// The node's policy. Without a policy file, every connected peer may do everything.
///   1. With a file, a valid policy is always in force: a bad file leaves the previous one.
/// Thread safety: all calls from any thread; open() and the reloads block on file reads.
class AccessControl {
 public:
  AccessControl() = default;  ///< Without a policy.
  /// `file` empty: no policy. `secret_file`: for TenantSecret, needs a policy; empty: only the records' `tenant` fields
  /// separate tenants. `room`: this node's capacity; the policy must not promise more. Errors: of parse() and the file.
  struct Room {
    std::uint64_t memory_bytes = ~std::uint64_t{0}, disk_bytes = ~std::uint64_t{0};
  };
  static Result<std::unique_ptr<AccessControl>, Failure> open(const std::string& file, Room room,
                                                              const std::string& secret_file = {});
  static Result<std::unique_ptr<AccessControl>, Failure> open(const std::string& file) { return open(file, Room()); }

  /// Returns "", or that the policy in force guarantees more; then the room stays as it was.
  std::string set_room(Room room);

  bool has_policy() const { return !file_.empty(); }
  const std::string& file() const { return file_; }
  std::shared_ptr<const AccessPolicy> policy() const;  ///< nullptr without one.
  std::shared_ptr<const TenantSecret> secret() const;  ///< nullptr without one.
  /// Identifies the secret in use; 0 without one. Never older than version().
  std::uint64_t secret_epoch() const { return secret_epoch_.load(std::memory_order_acquire); }
  /// The peer's present rights. Without a matching section: empty. Without a policy: all.
  AccessGrant grant_of(const PeerIdentity& peer) const;
  /// Changes with the policy: results of an earlier version must be looked up again.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  Failure reload();                            ///< Without a code: success. Requires has_policy().
  std::optional<Failure> reload_if_changed();  ///< nullopt: the file is unchanged. A bad file is reported once.

  std::vector<TenantLimits> tenant_limits() const;
  TenantBook& tenants() { return tenants_; }
  const TenantBook& tenants() const { return tenants_; }

  void token_refused() { ++tokens_refused_; }
  /// Listeners that other machines can reach.
  void set_network_listeners(std::size_t count) { network_listeners_ = count; }
  /// Empty without a policy and without network listeners.
  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct Seen {
    FileStamp policy, secret;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  Seen look() const;
  Failure read(const Seen& seen);

  std::string file_, secret_file_;
  Room room_;  ///< Under mutex_.
  TenantBook tenants_;
  std::size_t network_listeners_ = 0;
  std::mutex reading_;  ///< Serializes reads of the file, so that an older one does not replace a newer one.
  mutable std::mutex mutex_;
  std::shared_ptr<const AccessPolicy> policy_;
  std::shared_ptr<const TenantSecret> secret_;
  Seen seen_;
  std::uint64_t reloads_ = 0, failures_ = 0;
  bool last_failed_ = false;
  std::atomic<std::uint64_t> version_{1}, secret_epoch_{0}, tokens_refused_{0};
};

/// One peer's rights at this moment: a right removed by a new policy is gone with the next request. Thread safety:
/// none. Cost while the policy is unchanged: one atomic load.
class PeerAccess {
 public:
  /// `control` outlives this; nullptr: everything is allowed.
  explicit PeerAccess(AccessControl* control) : control_(control) {}
  ~PeerAccess();
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

  void identify(PeerIdentity peer);
  std::unique_ptr<PeerAccess> again() const;  ///< The same peer, for another thread.
  /// Why the peer may not do `what`, with the missing right and the peer's name; empty: it may, except for checks that
  /// depend on the blocks' owner (Scope::kOwner: space_denial; Scope::kShown: sees). The only place that checks a rule
  /// against a peer, for the wire and the admin server alike.
  std::string denial(std::string_view what, const Rule& rule);
  /// The namespace that this peer means by `asked`, as stored here: with a secret, its name includes the secret and the
  /// peer's tenant, or the share in the record. Errors: kPermissionDenied; kBadRequest: node-only fields.
  Result<StoredSpace, Failure> stored(const NamespaceRecord& asked);
  /// Why a request that needs `right` may not touch a namespace of `owner`; empty: it may.
  std::string space_denial(const SpaceOwner& owner, Right right);
  /// Why the peer may not erase the blocks of `owner`; empty: it may, if it has the right to erase.
  std::string erase_denial(const SpaceOwner& owner);
  /// Whether the peer may see the existence and figures of such a namespace or tenant. A peer of a tenant sees its own,
  /// and shares that it reads or writes; a peer without a tenant sees all.
  bool sees(const SpaceOwner& owner);
  /// Whether the peer may see block names there, which confirm guessed prompts: if it may read or hand on blocks.
  bool sees_blocks(const SpaceOwner& owner);
  /// Equal for peers that see the same.
  std::string sight();
  /// Empty: without a tenant or a policy.
  const std::string& tenant() { return grant().tenant; }
  std::uint64_t secret_epoch() const { return control_ == nullptr ? 0 : control_->secret_epoch(); }
  // Limits shared by all peers of the tenant. Each returns the reason for a refusal; empty: proceed.
  std::string begin_session();  ///< Counts the session until the destructor. Call once, after identify().
  std::string take_request(TimePoint now);
  std::string may_move(TimePoint now);
  void moved(std::uint64_t bytes);  ///< Bytes of blocks moved for this peer.
  const AccessGrant& grant();       ///< Up to date.
  bool is_watched() const { return control_ != nullptr && control_->has_policy(); }  ///< A policy is in force.
  std::string who() const;                                                           ///< The peer and its section.

 private:
  AccessControl* control_;
  PeerIdentity peer_;
  std::string share_denial(const std::string& share, Right right);

  AccessGrant grant_{.roles = kAllRoles};
  std::shared_ptr<const AccessPolicy> policy_;  ///< The policy that gave grant_.
  std::shared_ptr<TenantRates> rates_;          ///< Of the peer's tenant; nullptr: unlimited.
  bool is_counted_ = false;                     ///< The tenant counts this session.
  std::uint64_t version_ = 0;                   ///< Of the policy that gave grant_; 0: not looked up yet.
};

}  // namespace kv
