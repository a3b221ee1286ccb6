// store/node/access/tenant_secret.h: the secret that keeps names of different tenants apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret/secret.h"

namespace kv {

/// A file of 64 hexadecimal digits, the same on all nodes of a cluster. A tenant's blocks are named by their record and
/// an HMAC, under this secret, of the tenant that the node identified: so other tenants' records give other names.
///
/// There is one secret at a time (an *epoch*). After a change every tenant starts with an empty cache, and the old
/// blocks age out unused; `kvstorectl erase` finds them. Refused: looking under the previous secret as well. Each miss
/// would cost a second lookup, whose time would tell the two apart, for a cache that fills again within the hour.
class TenantSecret {
 public:
  static constexpr std::size_t kBytes = 32;

  /// Errors: system errors, kBadRequest; the text names the file and shows none of its contents. Refused: a file that
  /// anybody but its owner may read or write, or whose owner is neither this process's user nor root.
  static Result<TenantSecret, Failure> read(const std::string& file);
  static Result<TenantSecret, Failure> parse(std::string_view digits);

  std::string salt_of_tenant(std::string_view tenant) const;  ///< 64 hexadecimal digits.
  std::string salt_of_share(std::string_view share) const;    ///< 64 hexadecimal digits, different from any tenant's.
  std::uint64_t epoch() const { return epoch_; }              ///< Never 0. Only tells this secret from another.

 private:
  std::string hmac(std::string_view kind, std::string_view name) const;

  Secret key_;
  std::uint64_t epoch_ = 0;
};

}  // namespace kv
