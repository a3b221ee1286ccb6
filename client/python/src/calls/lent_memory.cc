#include "client/python/src/calls/lent_memory.h"

#include <condition_variable>
#include <csignal>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "client/python/src/errors.h"
#include "client/python/src/waits.h"

namespace kv::python {

void LentMemory::take_back(BlockingClient& client) {
  const std::lock_guard lock(mutex_);
  if (mapping_) return;
  // After an error, for want of memory, it stays the client's and goes with it.
  if (auto released = client.release_memory(bytes_)) mapping_ = std::move(*released);
}

Result<void> LentMemory::lock_pages(std::shared_ptr<const CudaModule> module) {
  const std::lock_guard lock(mutex_);
  if (const auto locked = module->lock_pages(bytes_); !locked) return locked.error();
  locked_by_ = std::move(module);
  return {};
}

void LentMemory::unmap() {
  if (core_->is_forked()) return;
  {
    const std::lock_guard lock(mutex_);
    // Before the client may unmap it.
    if (const auto module = std::exchange(locked_by_, nullptr)) static_cast<void>(module->unlock_pages(bytes_.data()));
  }
  static_cast<void>(core_->use_blocking<void>([&](BlockingClient& client) -> Result<void> {
    take_back(client);
    return {};
  }));
  std::shared_ptr<const void> unmapped;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  unmapped = std::exchange(mapping_, nullptr);
}

namespace {

/// Memory being allocated, between the thread that makes it and the caller, who may leave.
class Allocation {
 public:
  void make(ClientCore& core, std::size_t bytes) {
    Result<std::span<std::byte>> made = error_code(Errc::kUnavailable);
    try {
      made = core.use_blocking<std::span<std::byte>>([&](BlockingClient& client) { return client.allocate(bytes); });
    } catch (const std::bad_alloc&) {
      made = error_code(boost::system::errc::not_enough_memory, boost::system::generic_category());
    } catch (const std::exception&) {  // a failed KV_ASSERT
    }
    std::unique_lock lock(mutex_);
    made_ = made;
    ended_.notify_all();
    if (!is_left_ || !made) return;
    lock.unlock();
    give_back(core);
  }
  void wait(std::chrono::microseconds time) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, time, [&] { return made_.has_value(); });
  }
  const std::optional<Result<std::span<std::byte>>>& made() {
    const std::lock_guard lock(mutex_);
    return made_;
  }
  /// The caller has left: the memory goes back at once, or when it is there.
  void leave(ClientCore& core) {
    std::unique_lock lock(mutex_);
    is_left_ = true;
    if (!made_ || !*made_) return;
    lock.unlock();
    give_back(core);
  }

 private:
  void give_back(ClientCore& core) {
    static_cast<void>(core.use_blocking<void>([&](BlockingClient& client) { return client.free_memory(**made_); }));
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_left_ = false;
  std::optional<Result<std::span<std::byte>>> made_;  ///< Set once.
};

void start_thread(const std::shared_ptr<Allocation>& allocation, const std::shared_ptr<ClientCore>& core,
                  std::size_t bytes) {
  // Only the process's own threads handle signals.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  error_code failed;
  try {
    std::thread([=] { allocation->make(*core, bytes); }).detach();
  } catch (const std::system_error& error) {
    failed = error_code(error.code().value(), boost::system::system_category());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) throw failure_of(failed);
}

}  // namespace

std::shared_ptr<LentMemory> allocate(const std::shared_ptr<ClientCore>& core, std::size_t bytes) {
  core->check_open();
  if (core->is_forked()) throw failure_of(Errc::kForked);
  const auto allocation = std::make_shared<Allocation>();
  start_thread(allocation, core, bytes);
  try {
    wait_in_steps(
        std::nullopt, [&](auto time) { allocation->wait(time); }, [&] { return allocation->made().has_value(); });
  } catch (...) {
    const WithoutGil without_gil;
    allocation->leave(*core);
    throw;
  }
  const auto& made = *allocation->made();
  core->check_open();  // otherwise the client was closed meanwhile, and the memory went with it
  if (!made) throw failure_of(made.error());
  auto lent = std::make_shared<LentMemory>(core, *made);
  core->add(lent);
  return lent;
}

}  // namespace kv::python
