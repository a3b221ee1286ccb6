// transport/resolver.h: host names -> addresses, while the caller goes on.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

/// Looks up addresses on threads of its own. A lookup cannot be interrupted, and takes minutes where name servers are
/// slow or gone. So a waiter may leave at any time; the thread then discards its result.
///   1. Each name has at most one lookup in progress, whatever the number of waiters and retries.
///   2. At most thread_count_max lookups run. Further names queue, for as long as they have a waiter.
///   3. Threads are never joined: close, the destructor and the end of an executor all return at once.
/// A forked child has none of the threads and starts afresh. Thread safety: all calls from any thread.
class Resolver {
 public:
  using Address = asio::ip::tcp::endpoint;
  using Addresses = std::vector<Address>;
  /// Blocks. Runs on the resolver's threads; its captures live as long as they do.
  using Lookup = std::function<Result<Addresses>(const std::string& host, const std::string& port)>;

  explicit Resolver(Lookup lookup = &Resolver::ask_the_system, std::size_t thread_count_max = 4);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// The addresses of `host`, best first: 1 to 16. Errors: of the lookup; operation_aborted on cancellation by the
  /// awaiting coroutine's slot. The executor may be destroyed with a resolve() in it.
  Async<Addresses> resolve(std::string host, std::string port, asio::any_io_executor executor);

  std::size_t thread_count() const;  ///< Now. Threads keep the state alive after the resolver's end.
  static Result<Addresses> ask_the_system(const std::string& host, const std::string& port);

 private:
  struct State;
  struct Waiter;
  std::shared_ptr<State> state();

  Lookup lookup_;
  std::size_t thread_count_max_;
  std::atomic<const std::shared_ptr<State>*> state_{nullptr};  ///< Of this process; a child of fork() has its own.
};

}  // namespace kv
