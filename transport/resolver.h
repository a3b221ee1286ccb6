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

/// Asks for addresses on threads of its own. A lookup cannot be ended from outside, and takes minutes where name
/// servers are slow or gone. So whoever waits may leave at any time, and the thread finds nobody when it comes back.
///   1. A name is looked up once at a time, however many wait for it, and however often they gave up and came again.
///   2. At most thread_count_max lookups are under way. Further names wait for their turn, and only while somebody
///      waits for them.
///   3. Nothing waits for a thread: not close, not the destructor, not the end of an executor.
/// A forked child has none of the threads and begins anew. Thread safety: all calls from any thread.
class Resolver {
 public:
  using Address = asio::ip::tcp::endpoint;
  using Addresses = std::vector<Address>;
  /// Blocks. Runs on the resolver's threads; what it uses lives as long as they do.
  using Lookup = std::function<Result<Addresses>(const std::string& host, const std::string& port)>;

  explicit Resolver(Lookup lookup = &Resolver::ask_the_system, std::size_t thread_count_max = 4);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// The addresses of `host`, best first: one at least, sixteen at most. Errors: of the lookup; operation_aborted on
  /// cancellation by the awaiting coroutine's slot. The executor may be destroyed with a resolve() in it.
  Async<Addresses> resolve(std::string host, std::string port, asio::any_io_executor executor);

  std::size_t thread_count() const;  ///< Now. Threads keep the state alive when the resolver goes.
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
