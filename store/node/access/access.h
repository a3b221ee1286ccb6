// store/node/access/access.h: the policy in force, and what one peer may do.
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
#include "store/node/access/access_policy.h"
#include "store/node/access/space_owner.h"
#include "store/node/access/tenant_secret.h"
#include "store/node/metrics.h"
#include "transport/tls/file_stamp.h"

namespace kv {

/// A namespace as a client asks for it, and as this node stores it.
struct StoredSpace {
  NamespaceRecord record;
  SpaceOwner owner = {};
};

/// Without a file there is no policy, and whoever is let in may do everything.
///   1. With a file there is always a policy that was good when it was read. A bad file changes nothing.
/// Thread safety: all calls from any thread; open() and the reloads block for the file.
class AccessControl {
 public:
  AccessControl() = default;  ///< Without a policy.
  /// `secret_file`: as TenantSecret; empty: tenants are told apart by their records' `tenant` alone. Needs a policy.
  /// An empty name: without a policy. Errors: as AccessPolicy::parse, or that the file cannot be read.
  /// `room`: of this node, for what the policy guarantees to tenants. A policy that gives away more is a bad one.
  struct Room {
    std::uint64_t memory_bytes = ~std::uint64_t{0}, disk_bytes = ~std::uint64_t{0};
  };
  static Result<std::unique_ptr<AccessControl>, Failure> open(const std::string& file, Room room,
                                                              const std::string& secret_file = {});
  static Result<std::unique_ptr<AccessControl>, Failure> open(const std::string& file) { return open(file, Room()); }

  /// Another room. Returns "", or that the policy in force gives away more; then nothing changes.
  std::string set_room(Room room);

  bool has_policy() const { return !file_.empty(); }
  const std::string& file() const { return file_; }
  std::shared_ptr<const AccessPolicy> policy() const;  ///< nullptr without one.
  std::shared_ptr<const TenantSecret> secret() const;  ///< nullptr without one.
  /// Of the secret in use; 0 without one. Another one as soon as version() is.
  std::uint64_t secret_epoch() const { return secret_epoch_.load(std::memory_order_acquire); }
  /// What a peer may do now. Nothing if no section fits; everything without a policy.
  AccessGrant grant_of(const PeerIdentity& peer) const;
  /// Another one after each change of the policy: what was found under the one before is to be looked up again.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  Failure reload();                            ///< Without a code: done. With has_policy() only.
  std::optional<Failure> reload_if_changed();  ///< Nothing: the file is as it was. A bad one is told once.

  /// Those of the policy in force.
  std::vector<TenantLimits> tenant_limits() const;
  TenantBook& tenants() { return tenants_; }
  const TenantBook& tenants() const { return tenants_; }

  void token_refused() { ++tokens_refused_; }
  /// Listeners that others than this machine can reach.
  void set_network_listeners(std::size_t count) { network_listeners_ = count; }
  /// Nothing of a node that has no policy and is not reached from a network.
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
  std::mutex reading_;  ///< One at a time, so that an older reading does not replace a newer one.
  mutable std::mutex mutex_;
  std::shared_ptr<const AccessPolicy> policy_;
  std::shared_ptr<const TenantSecret> secret_;
  Seen seen_;
  std::uint64_t reloads_ = 0, failures_ = 0;
  bool last_failed_ = false;
  std::atomic<std::uint64_t> version_{1}, secret_epoch_{0}, tokens_refused_{0};
};

/// One peer, and what it may do at this moment: a right that a new policy takes away is gone with the next request.
/// Thread safety: none. Cost of a look that finds nothing new: one atomic load.
class PeerAccess {
 public:
  /// `control` outlives this; nullptr: everything is allowed.
  explicit PeerAccess(AccessControl* control) : control_(control) {}
  ~PeerAccess();
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

  void identify(PeerIdentity peer);
  /// Why the peer may not do `what`, in words with the right that is missing and who the peer is; empty: it may, as far
  /// as that does not depend on whose blocks are concerned (Scope::kOwner: space_denial; Scope::kShown: sees). The one
  /// place that holds a rule against a peer, of the wire and of the admin server alike.
  std::string denial(std::string_view what, const Rule& rule);
  /// The namespace that this peer means by `asked`, as it is stored here: with a secret, named by it and by the peer's
  /// tenant, or by the share that the record names. Errors: kPermissionDenied, the namespace is another's; kBadRequest,
  /// the record has what only nodes say.
  Result<StoredSpace, Failure> stored(const NamespaceRecord& asked);
  /// Why a request that needs `right` may not concern a namespace of `owner`; empty: it may.
  std::string space_denial(const SpaceOwner& owner, Right right);
  /// Why it may not erase what `owner` has; empty: it may, with the right to.
  std::string erase_denial(const SpaceOwner& owner);
  /// Whether it is told that there is such a namespace or tenant, and its figures. A peer of a tenant: of its own, and
  /// of shares that it reads or writes. One of no tenant: of all.
  bool sees(const SpaceOwner& owner);
  /// Whether it is told the names of blocks in there, which tell whoever can guess a prompt that it was stored: what
  /// it may read, or hands on.
  bool sees_blocks(const SpaceOwner& owner);
  /// Equal for peers that see the same.
  std::string sight();
  /// Empty: it belongs to none, or nobody decides.
  const std::string& tenant() { return grant().tenant; }
  std::uint64_t secret_epoch() const { return control_ == nullptr ? 0 : control_->secret_epoch(); }
  // What its tenant may do, together with all others of the tenant. Each: why not, in words; empty: go on.
  std::string begin_session();  ///< Counts it until the end of this object. Once, after identify().
  std::string take_request(TimePoint now);
  std::string may_move(TimePoint now);
  void moved(std::uint64_t bytes);                                                   ///< Of blocks, for this peer.
  const AccessGrant& grant();                                                        ///< As of now.
  bool is_watched() const { return control_ != nullptr && control_->has_policy(); }  ///< Somebody decides who may.
  std::string who() const;                                                           ///< The peer, and its section.

 private:
  AccessControl* control_;
  PeerIdentity peer_;
  std::string share_denial(const std::string& share, Right right);

  AccessGrant grant_{.roles = kAllRoles};
  std::shared_ptr<const AccessPolicy> policy_;  ///< In which grant_ was found.
  std::shared_ptr<TenantRates> rates_;          ///< Of its tenant; nullptr: no limits.
  bool is_counted_ = false;                     ///< As one of its sessions.
  std::uint64_t version_ = 0;                   ///< Of the policy under which grant_ was found; 0: none was looked at.
};

}  // namespace kv
