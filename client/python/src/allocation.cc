#include "client/python/src/allocation.h"

#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "client/python/src/errors.h"
#include "client/types/numa_place.h"
#include "transport/shared_memory.h"

namespace kv::python {
namespace {

/// Runs a function of the client and waits for it. kCancelled: the client is being abandoned, and no longer answers.
template <class Function>
error_code run_and_wait(IoClient& io, const CallPtr& call, Function function) {
  io.run(call, std::move(function));
  while (!call->wait(1s)) {
    if (io.is_over()) return Errc::kCancelled;
  }
  return call->error();
}

}  // namespace

void LentMemory::take_back() {
  if (io_->is_forked()) return;
  const std::lock_guard lock(mutex_);
  if (mapping_ || io_->is_over()) return;
  try {
    // Not `this`: it may be gone before a client being abandoned runs the function.
    const auto taken = std::make_shared<std::shared_ptr<const void>>();
    const auto call = std::make_shared<Call>();
    const error_code failed =
        run_and_wait(*io_, call, [memory = bytes_, taken](Client& client) -> std::pair<error_code, Outcome> {
          auto released = client.release_memory(memory);
          if (released) *taken = std::move(*released);
          return {};
        });
    if (!failed) mapping_ = std::move(*taken);
  } catch (const std::bad_alloc&) {
    // It stays the client's, and goes with it.
  }
}

Result<void> LentMemory::lock_pages(std::shared_ptr<const CudaModule> module) {
  const std::lock_guard lock(mutex_);
  if (const auto locked = module->lock_pages(bytes_); !locked) return locked.error();
  locked_by_ = std::move(module);
  return {};
}

void LentMemory::unmap() {
  if (!io_->is_forked()) {
    const std::lock_guard lock(mutex_);
    // Before the client may unmap it.
    if (const auto module = std::exchange(locked_by_, nullptr)) static_cast<void>(module->unlock_pages(bytes_.data()));
  }
  take_back();
  if (io_->is_forked()) return;
  std::shared_ptr<const void> unmapped;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  unmapped = std::exchange(mapping_, nullptr);
}

std::shared_ptr<Allocation> Allocation::begin(std::shared_ptr<IoClient> io, std::size_t bytes) {
  KV_ASSERT(!io->is_forked());
  auto made = std::make_shared<Allocation>(std::move(io), bytes);
  // Only the process's own threads handle signals.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  error_code failed;
  try {
    std::thread([made] { made->make(); }).detach();
  } catch (const std::system_error& error) {
    failed = error_code(error.code().value(), boost::system::system_category());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) throw failure_of(failed);
  return made;
}

std::shared_ptr<LentMemory> Allocation::memory() const {
  KV_ASSERT(call_->is_done() && !call_->error());
  return std::make_shared<LentMemory>(io_, std::get<std::span<std::byte>>(call_->outcome()));
}

void Allocation::abandon() {
  if (state_.exchange(State::kAbandoned) == State::kMade) memory()->take_back();
}

void Allocation::make() {
  std::span<std::byte> made;
  error_code failed;
  try {
    failed = make_memory(made);
  } catch (const std::bad_alloc&) {
    failed = error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
  } catch (const std::exception&) {  // a failed KV_ASSERT
    failed = Errc::kUnavailable;
  }
  if (failed) return call_->end(failed, std::monostate());
  // Ended first, so that an abandoning thread finds the memory there.
  call_->end({}, made);
  State waited_for = State::kWaitedFor;
  if (!state_.compare_exchange_strong(waited_for, State::kMade)) LentMemory(io_, made).take_back();
}

error_code Allocation::make_memory(std::span<std::byte>& made) {
  const auto reserve = std::make_shared<Call>(), adopt = std::make_shared<Call>();
  const std::size_t bytes = bytes_;
  error_code failed = run_and_wait(*io_, reserve, [bytes](Client& client) -> std::pair<error_code, Outcome> {
    const auto reserved = client.reserve_memory(bytes);
    return {reserved ? error_code() : reserved.error(), std::monostate()};
  });
  if (failed) return failed;
  const auto memory =
      std::make_shared<Result<std::unique_ptr<SharedMemory>>>(kv::make_memory(io_->numa_place(), bytes));
  failed = run_and_wait(*io_, adopt, [bytes, memory](Client& client) -> std::pair<error_code, Outcome> {
    const auto adopted = client.adopt_memory(bytes, std::move(*memory));
    if (!adopted) return {adopted.error(), std::monostate()};
    return {{}, *adopted};
  });
  if (!failed) made = std::get<std::span<std::byte>>(adopt->outcome());
  return failed;
}

}  // namespace kv::python
