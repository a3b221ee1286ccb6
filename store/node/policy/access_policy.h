// store/node/policy/access_policy.h: a policy file as read.
//
//     [workers]                                            # its name, for the log
//     match = ["spiffe://example.org/worker/*", "unix:uid=1000"]
//     token-sha256 = ["<64 hexadecimal digits>"]           # of each valid token
//     tenant = "research"
//     roles = ["reader", "writer"]
//
//     [tenants.research]                                   # limits shared by all of the tenant's clients
//     memory-bytes = "10GiB"
//     memory-bytes-max = "20GiB"
//     requests-per-second = 5000
//
//     [shares.system-prompts]                              # namespaces shared by several tenants
//     readers = ["*"]                                      # tenants; "*" for all
//     writers = ["research"]
//     memory-bytes-max = "2GiB"
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/node/policy/access_table.h"
#include "store/node/policy/tenant_rates.h"
#include "transport/stream.h"

namespace kv {

using TokenHash = std::array<unsigned char, 32>;  ///< SHA-256 of the token.
TokenHash token_hash(std::string_view token);

/// A peer's proof of identity.
struct PeerIdentity {
  Stream::Protection protection = Stream::Protection::kNone;
  std::vector<std::string> names = {};              ///< Of its certificate, as Stream::peer_names().
  std::optional<Stream::User> user = std::nullopt;  ///< Of a Unix socket.
  std::optional<TokenHash> token = std::nullopt;
  bool is_here = false;  ///< On this machine: from a loopback address or through a Unix socket.

  static PeerIdentity of(const Stream& stream);  ///< Without a token.
  std::string text() const;                      ///< For log lines: 'uri:spiffe://...', 'unix:uid=7,gid=7', 'a token'.
};

/// The section, tenant and roles that a policy gives to a peer.
struct AccessGrant {
  std::string section = {};  ///< Of the policy; empty: no section fits.
  std::string tenant = {};   ///< It may open this tenant's namespaces only; empty: all.
  Roles roles = 0;
};

/// The tenants that may use namespaces whose record names this share.
struct SharePolicy {
  std::set<std::string, std::less<>> readers = {}, writers = {};  ///< Tenants; "*": all.

  bool is_reader(std::string_view tenant) const { return has(readers, tenant); }
  bool is_writer(std::string_view tenant) const { return has(writers, tenant); }

 private:
  /// A client without a tenant is in no list, not even "*".
  static bool has(const std::set<std::string, std::less<>>& list, std::string_view tenant) {
    return !tenant.empty() && (list.contains(tenant) || list.contains("*"));
  }
};

/// Immutable, so threads share it.
///   1. A peer with a token gets the token's section, or else nothing. Any other peer gets the first section that fits.
///   2. Comparing tokens takes the same time wherever they differ.
class AccessPolicy {
 public:
  static constexpr std::size_t kTextBytesMax = 1 << 20, kSectionsMax = 4096, kTenantsMax = 256;

  /// Errors: kBadRequest; the text names section, field, value and the allowed values.
  static Result<std::shared_ptr<const AccessPolicy>, Failure> parse(std::string_view text);
  /// nullptr: no section fits. Valid as long as this lives.
  const AccessGrant* find(const PeerIdentity& peer) const;
  /// Each once. A share's limits are included, as a tenant "share:NAME" (NamespaceRecord::owner).
  const std::vector<TenantPolicy>& tenants() const { return tenants_; }
  const SharePolicy* find_share(std::string_view name) const;  ///< nullptr: not found. Valid as long as this lives.
  /// Whether the tenants' guarantees fit on a node of this size; without a code: they do.
  Failure check_room(std::uint64_t memory_bytes, std::uint64_t disk_bytes) const;

 private:
  friend class AccessPolicyReader;
  struct Section {
    AccessGrant grant;
    std::vector<std::string> match;
    std::vector<TokenHash> tokens;
  };
  std::vector<Section> sections_;  ///< In the order of the file.
  std::vector<TenantPolicy> tenants_;
  std::map<std::string, SharePolicy, std::less<>> shares_;
};

}  // namespace kv
