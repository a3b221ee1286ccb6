// store/node/access/tenant_secret.h: the secret by which names of different tenants are kept apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"

namespace kv {

/// A file with 64 hexadecimal digits, the same on all nodes of a cluster. What a tenant stores is named by its record
/// and an HMAC under this secret of who the node found it to be: so no record that another one sends names the same.
///
/// There is one secret at a time (an *epoch*). With another one every tenant begins anew, and the blocks of before age
/// out unasked for; `kvstorectl erase` finds them. Refused: looking under the secret before as well. It would cost each
/// miss a second look, and its time would tell the two apart; for a cache that fills again within the hour.
class TenantSecret {
 public:
  static constexpr std::size_t kBytes = 32;

  /// Errors: system errors, kBadRequest; the words name the file, and no part of what is in it. Refused: a file that
  /// others than its owner may read or write, or that belongs to somebody else than this process's user or root.
  static Result<TenantSecret, Failure> read(const std::string& file);
  /// From the digits themselves.
  static Result<TenantSecret, Failure> parse(std::string_view digits);

  std::string salt_of_tenant(std::string_view tenant) const;  ///< 64 hexadecimal digits.
  std::string salt_of_share(std::string_view share) const;    ///< The same, and never that of a tenant.
  std::uint64_t epoch() const { return epoch_; }              ///< Never 0. Tells this secret from another, and no more.

 private:
  std::string hmac(std::string_view kind, std::string_view name) const;

  Secret key_;
  std::uint64_t epoch_ = 0;
};

}  // namespace kv
