#include "transport/resolver.h"

#include <netdb.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/event.h"
#include "transport/forked.h"

namespace kv {
namespace {

error_code error_of(int code) {
  switch (code) {
    case EAI_AGAIN: return asio::error::host_not_found_try_again;
    case EAI_FAIL: return asio::error::no_recovery;
    case EAI_MEMORY: return asio::error::no_memory;
    case EAI_SERVICE: return asio::error::service_not_found;
    case EAI_SYSTEM: return last_errno();
    default: return asio::error::host_not_found;
  }
}

}  // namespace

/// One waiting resolve(). A thread uses its executor only under the lock, and only while the waiter is in the list: so
/// resolve() can leave, and its executor end, at any moment in between.
struct Resolver::Waiter {
  explicit Waiter(const asio::any_io_executor& e) : executor(e), outcome(std::make_shared<Outcome>(e)) {}
  struct Outcome {
    explicit Outcome(const asio::any_io_executor& executor) : event(executor) {}
    Event event;
    Result<Addresses> addresses = error_code(asio::error::operation_aborted);
  };
  asio::any_io_executor executor;
  std::shared_ptr<Outcome> outcome;
};

struct Resolver::State {
  using Name = std::pair<std::string, std::string>;
  struct Asked {
    std::list<Waiter*> waiters;
    bool is_under_way = false;
  };

  std::mutex mutex;
  Lookup lookup;
  std::size_t thread_count_max = 0, thread_count = 0;
  std::map<Name, Asked> names;
  std::deque<Name> queue;  ///< Not begun. Names without a waiter are skipped.
  const std::uint32_t generation = fork_generation();

  static void run(std::shared_ptr<State> self);
  bool next(Name& name);
};

/// Takes the next name out of the queue, or ends the thread. Under the lock.
bool Resolver::State::next(Name& name) {
  while (!queue.empty()) {
    name = std::move(queue.front());
    queue.pop_front();
    const auto asked = names.find(name);
    if (asked == names.end() || asked->second.is_under_way) continue;
    asked->second.is_under_way = true;
    return true;
  }
  KV_ASSERT(thread_count > 0);
  --thread_count;  // under the same lock as the empty queue: a new name finds this thread, or starts another
  return false;
}

/// A thread holds the state, not the resolver, which may be destroyed during a getaddrinfo() of a minute.
void Resolver::State::run(std::shared_ptr<State> self) {
  std::unique_lock lock(self->mutex);
  for (Name name; self->next(name);) {
    lock.unlock();
    Result<Addresses> addresses = error_code(asio::error::no_memory);
    try {
      addresses = self->lookup(name.first, name.second);
    } catch (const std::exception&) {  // out of memory: the waiters try again
    }
    lock.lock();
    const auto asked = self->names.find(name);
    KV_ASSERT(asked != self->names.end());  // only this thread removes a name in progress
    for (Waiter* const waiter : asked->second.waiters) {
      // A weak pointer: if the executor ends with this in it, the outcome must stay untouched.
      asio::post(waiter->executor, [weak = std::weak_ptr(waiter->outcome), addresses] {
        const auto outcome = weak.lock();
        if (!outcome) return;
        outcome->addresses = addresses;
        outcome->event.set();
      });
    }
    self->names.erase(asked);
  }
}

Resolver::Resolver(Lookup lookup, std::size_t thread_count_max)
    : lookup_(std::move(lookup)), thread_count_max_(thread_count_max) {
  (void)state();
}

/// The state of this process. A child starts afresh: the parent's state lacks threads, and may be locked.
std::shared_ptr<Resolver::State> Resolver::state() {
  // Only the first thread of a child meets an old generation. That state may be locked for ever: abandon it.
  const std::shared_ptr<State>* held = state_.load(std::memory_order_acquire);
  if (held == nullptr || (*held)->generation != fork_generation()) {
    auto fresh = std::make_unique<std::shared_ptr<State>>(std::make_shared<State>());
    (*fresh)->lookup = lookup_;
    (*fresh)->thread_count_max = thread_count_max_;
    held = fresh.release();  // the old one is never destroyed
    state_.store(held, std::memory_order_release);
  }
  return *held;
}

Resolver::~Resolver() { delete state_.load(std::memory_order_acquire); }

std::size_t Resolver::thread_count() const {
  const std::shared_ptr<State> state = *state_.load(std::memory_order_acquire);
  const std::lock_guard lock(state->mutex);
  return state->thread_count;
}

/// Waiters for one name share a lookup, and threads are bounded: an absent name server must not cost one per retry.
Async<Resolver::Addresses> Resolver::resolve(std::string host, std::string port, asio::any_io_executor executor) {
  const std::shared_ptr<State> shared = state();
  Waiter waiter(executor);
  const State::Name name(std::move(host), std::move(port));
  /// Also runs when the coroutine is destroyed while it waits, as its executor ends.
  struct Leave {
    State& state;
    const State::Name& name;
    Waiter& waiter;
    ~Leave() {
      const std::lock_guard lock(state.mutex);
      const auto asked = state.names.find(name);
      if (asked == state.names.end()) return;
      asked->second.waiters.remove(&waiter);
      if (asked->second.waiters.empty() && !asked->second.is_under_way) {
        state.names.erase(asked);
        std::erase(state.queue, name);
      }
    }
  };
  {
    const std::lock_guard lock(shared->mutex);
    const auto [asked, is_new] = shared->names.try_emplace(name);
    asked->second.waiters.push_back(&waiter);
    if (is_new) shared->queue.push_back(name);
    if (!asked->second.is_under_way && shared->thread_count < shared->thread_count_max) {
      ++shared->thread_count;
      try {
        std::thread(&State::run, shared).detach();
      } catch (const std::system_error&) {  // a running thread takes the name, or the next resolve() tries
        --shared->thread_count;
      }
    }
  }
  // From here on the waiter is in the list, and leaves it however the coroutine ends.
  const Leave leave{*shared, name, waiter};
  co_await waiter.outcome->event.wait();  // returns on cancellation too
  co_return waiter.outcome->addresses;
}

Result<Resolver::Addresses> Resolver::ask_the_system(const std::string& host, const std::string& port) {
  // With AI_ADDRCONFIG, ::1 would not count as an address. Families without one fail at once instead.
  constexpr std::size_t kAddressesMax = 16;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) return error_of(failed);
  Addresses addresses;
  for (const addrinfo* each = found; each != nullptr && addresses.size() < kAddressesMax; each = each->ai_next) {
    Address address;
    if (each->ai_addrlen > address.capacity()) continue;
    address.resize(each->ai_addrlen);
    std::memcpy(address.data(), each->ai_addr, each->ai_addrlen);
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return error_code(asio::error::host_not_found);
  return addresses;
}

}  // namespace kv
