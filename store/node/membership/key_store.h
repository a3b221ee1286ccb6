// store/node/membership/key_store.h: what membership needs of etcd. etcd.h has it from a real one, tests from memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

/// Keys with values, some of which a lease keeps: they go when the lease ends.
/// Every call ends by a deadline of the store's own. Errors are told in words, for a log.
/// Thread safety: none; one call at a time.
class KeyStore {
 public:
  template <class T>
  using Reply = asio::awaitable<Result<T, Failure>>;
  using Lease = std::int64_t;  ///< 0: none.
  struct Entry {
    std::string key, value;
  };
  struct Listing {
    std::uint64_t revision = 0;  ///< Grows with each change of any key: a later state has a larger one.
    std::vector<Entry> entries;
  };

  virtual ~KeyStore() = default;
  virtual Reply<Lease> grant(std::chrono::seconds life) = 0;
  virtual Reply<bool> keep_alive(Lease lease) = 0;  ///< False: it has ended.
  virtual Reply<bool> revoke(Lease lease) = 0;      ///< False: it had ended already.
  /// False: the lease has ended, and nothing was put.
  virtual Reply<bool> put(std::string key, std::string value, Lease lease) = 0;
  virtual Reply<bool> put_new(std::string key, std::string value) = 0;  ///< Without a lease. False: the key is there.
  virtual Reply<Listing> list(std::string prefix) = 0;
};

}  // namespace kv
