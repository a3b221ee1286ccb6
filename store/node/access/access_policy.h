// store/node/access/access_policy.h: a policy file as it was read.
//
//     [workers]                                            # its name, for the log
//     match = ["spiffe://example.org/worker/*", "unix:uid=1000"]
//     token-sha256 = ["<64 hexadecimal digits>"]           # of each token that is good now
//     tenant = "research"
//     roles = ["reader", "writer"]
//
//     [tenants.research]                                   # what all of the tenant's clients have together
//     memory-bytes = "10GiB"
//     memory-bytes-max = "20GiB"
//     requests-per-second = 5000
//
//     [shares.system-prompts]                              # what several tenants have together
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
#include "store/node/access/access_table.h"
#include "store/node/access/tenant_rates.h"
#include "transport/stream.h"

namespace kv {

using TokenHash = std::array<unsigned char, 32>;  ///< SHA-256 of the token.
TokenHash token_hash(std::string_view token);

/// What a peer has shown of itself.
struct PeerIdentity {
  Stream::Protection protection = Stream::Protection::kNone;
  std::vector<std::string> names = {};              ///< Of its certificate, as Stream::peer_names().
  std::optional<Stream::User> user = std::nullopt;  ///< Of a Unix socket.
  std::optional<TokenHash> token = std::nullopt;

  static PeerIdentity of(const Stream& stream);  ///< Without a token.
  std::string text() const;                      ///< For a person: 'uri:spiffe://...', 'unix:uid=7,gid=7', 'a token'.
};

/// What a policy gives to a peer.
struct AccessGrant {
  std::string section = {};  ///< Of the policy; empty: none fits.
  std::string tenant = {};   ///< Whose namespaces it may open; empty: all.
  Roles roles = 0;
};

/// Who may use what a record with this `share` names.
struct SharePolicy {
  std::set<std::string, std::less<>> readers = {}, writers = {};  ///< Tenants; "*": all.

  bool is_reader(std::string_view tenant) const { return has(readers, tenant); }
  bool is_writer(std::string_view tenant) const { return has(writers, tenant); }

 private:
  /// A client without a tenant is in no list, that of all included.
  static bool has(const std::set<std::string, std::less<>>& list, std::string_view tenant) {
    return !tenant.empty() && (list.contains(tenant) || list.contains("*"));
  }
};

/// Never changes, so it is shared by threads.
///   1. A peer that shows a token is who the token says, or nobody. Any other is of the first section that it fits.
///   2. Tokens are compared in a time that does not depend on where they differ.
class AccessPolicy {
 public:
  static constexpr std::size_t kTextBytesMax = 1 << 20, kSectionsMax = 4096, kTenantsMax = 256;

  /// Errors: kBadRequest; the words say which section and field, what stands there, and what is allowed.
  static Result<std::shared_ptr<const AccessPolicy>, Failure> parse(std::string_view text);
  /// nullptr: no section fits. As long as this lives.
  const AccessGrant* find(const PeerIdentity& peer) const;
  /// Each once. What a share may hold is in it too, as a tenant "share:NAME" (NamespaceRecord::owner).
  const std::vector<TenantPolicy>& tenants() const { return tenants_; }
  const SharePolicy* find_share(std::string_view name) const;  ///< nullptr: there is none. As long as this lives.
  /// What is wrong with the tenants on a node with so many bytes; no code: nothing.
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
