// store/node/membership/key_store.h: membership's interface to etcd. Implemented by etcd.h, and in memory by tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

/// Keys with values, some tied to a lease: they go when it ends. Calls end by a deadline of the store's own. Error
/// texts are for a log. Thread safety: none; one call at a time.
class KeyStore {
 public:
  template <class T>
  using Reply = asio::awaitable<Result<T, Failure>>;
  using Lease = std::int64_t;  ///< 0: absent.
  struct Entry {
    std::string key, value;
  };
  struct Listing {
    std::uint64_t revision = 0;  ///< Grows with each change of any key.
    std::vector<Entry> entries;
  };

  virtual ~KeyStore() = default;
  virtual Reply<Lease> grant(std::chrono::seconds life) = 0;
  virtual Reply<bool> keep_alive(Lease lease) = 0;  ///< False: it has ended.
  virtual Reply<bool> revoke(Lease lease) = 0;      ///< False: it had ended already.
  /// False: the lease has ended, and the key is unchanged.
  virtual Reply<bool> put(std::string key, std::string value, Lease lease) = 0;
  virtual Reply<bool> put_new(std::string key, std::string value) = 0;  ///< Without a lease. False: the key exists.
  virtual Reply<Listing> list(std::string prefix) = 0;
};

}  // namespace kv
