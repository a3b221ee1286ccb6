#include "client/thread/client_thread.h"

#include <algorithm>
#include <cstdio>

#include "base/busy_poll.h"

namespace kv {
namespace {

// A sleeping thread takes 5 to 10 us to wake, and then has to submit. With other calls in progress more ends follow
// soon, and most of the time goes to those: p99 of a submit with 64 large gets in flight fell from 17 to 6 us.
constexpr std::chrono::microseconds kLinger{20}, kLingerBusy{200};

/// One step of a spin. The answering thread may be on the same core, and must get to run.
inline void give_way() { std::this_thread::yield(); }

}  // namespace

SpaceSizes::~SpaceSizes() {
  for (const auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

void SpaceSizes::note(Space space, std::size_t block_bytes) {
  const auto index = static_cast<std::size_t>(space);
  KV_ASSERT(index < kSpacesMax && block_bytes > 0);
  auto& chunk = chunks_[index / kChunk];
  // Written only on the I/O thread, read on any: plain stores are enough. Readers see only zeroed chunks.
  if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk{}, std::memory_order_release);
  (*chunk.load(std::memory_order_relaxed))[index % kChunk].store(block_bytes, std::memory_order_release);
}

std::size_t SpaceSizes::find(Space space) const {
  const auto index = static_cast<std::size_t>(space);
  if (index >= kSpacesMax) return 0;
  const Chunk* const chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? 0 : (*chunk)[index % kChunk].load(std::memory_order_acquire);
}

ClientThread::ClientThread(ClientConfig config, std::chrono::microseconds busy_poll, Network& network)
    : busy_poll_(busy_poll),
      client_(std::make_unique<Client>(io_->get_executor(), std::move(config), network)),
      numa_place_(client_->numa_place()),
      thread_([this] { run(); }) {}

ClientThread::~ClientThread() {
  KV_ASSERT(!is_forked() && !is_current());
  // On its own thread, the only one that may use the client.
  asio::post(*io_, [this] { close(); });
  thread_.join();      // the coroutines of closed sessions run to their end
  if (is_disabled_) {  // 2: the remaining state cannot be trusted to destroy itself
    never_destroy(std::move(client_));
    never_destroy(std::move(watched_));
    never_destroy(std::move(io_));
  }
}

void ClientThread::abandon() {
  KV_ASSERT(!is_forked() && !is_current());
  // Without closing or notifications: pending handlers stay where they are, and their memory with them.
  io_->stop();
  thread_.join();
}

void ClientThread::close() {
  std::vector<std::shared_ptr<Guest>> guests;
  {
    const std::lock_guard lock(mutex_);
    guests = guests_;  // they stay listed until they detach: if the thread fails before that, run() notifies them
  }
  // One more than there are guests: a guest that closes at once must not end the client during this loop.
  closing_count_ = guests.size() + 1;
  for (const auto& guest : guests) guest->client_closes([this] { guest_closed(); });
  guest_closed();
}

void ClientThread::guest_closed() {
  KV_ASSERT(closing_count_ > 0);
  if (--closing_count_ > 0) return;
  asio::post(*io_, [this] {  // after the guest's last call has returned
    client_.reset();
    if (watched_) (void)watched_->release();
    watched_.reset();
    work_.reset();
  });
}

void ClientThread::run() {
  // An error leaves it on the caller's processors: slower, but serving.
  if (!numa_place_.choice.processors.empty()) static_cast<void>(keep_to_processors(numa_place_.choice.processors));
  try {
    run_until_stopped();
    return;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kvstore: client disabled: %s\n", e.what());
  } catch (...) {
    std::fprintf(stderr, "kvstore: client disabled\n");
  }
  // Guests are notified once more, but not served: this thread runs no more handlers.
  served_.clear();
  std::vector<std::shared_ptr<Guest>> guests;
  {
    const std::lock_guard lock(mutex_);
    is_disabled_ = true;
    for (Waiting* each : waiting_) each->fail();
    waiting_.clear();
    guests.swap(guests_);
  }
  for (const auto& guest : guests) guest->client_disabled();
}

void ClientThread::run_until_stopped() {
  const bool spins = busy_poll_.count() > 0;
  BusyPoll poll(*io_, busy_poll_);
  TimePoint idle_since = std::chrono::steady_clock::now();
  while (!io_->stopped()) {
    if (served_.empty() && !spins) {
      io_->run_one();
      continue;
    }
    // One handler, though more may be ready: during a long transfer there is always another, and guests would wait.
    const bool has_run = poll.poll_one();
    if (serve_guests() || has_run) {
      if (spins) idle_since = std::chrono::steady_clock::now();
    } else if (spins && std::chrono::steady_clock::now() - idle_since < busy_poll_) {
      give_way();
    } else if (awake_until_ != TimePoint{} && std::chrono::steady_clock::now() < awake_until_) {
      give_way();
    } else {
      awake_until_ = {};
      poll.rest();
      // Before the check for guests' work: a submitter in between sees a sleeper and wakes it.
      waker_->fall_asleep();
      if (std::ranges::none_of(served_, [](const Guest* guest) { return guest->has_work(); })) io_->run_one();
      waker_->awake();
      if (spins) idle_since = std::chrono::steady_clock::now();
    }
  }
}

void ClientThread::linger(bool is_busy) {
  awake_until_ = std::chrono::steady_clock::now() + (is_busy ? kLingerBusy : kLinger);
}

bool ClientThread::serve_guests() {
  bool had_work = false;
  for (std::size_t i = served_.size(); i-- > 0;) {  // from the end: a guest may detach itself
    if (!served_[i]->has_work()) continue;
    served_[i]->work();
    had_work = true;
  }
  return had_work;
}

void ClientThread::watch_waker() {
  if (!watched_) watched_ = std::make_unique<asio::posix::stream_descriptor>(*io_, waker_->fd());
  watched_->async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    if (error || !watched_) return;
    waker_->drain();
    watch_waker();
  });
}

bool ClientThread::is_disabled() const {
  const std::lock_guard lock(mutex_);
  return is_disabled_;
}

bool ClientThread::enter(Waiting& call) {
  if (is_forked()) return false;  // 3: before anything is locked
  KV_ASSERT(!is_current());       // it would wait for itself
  const std::lock_guard lock(mutex_);
  if (!is_disabled_) waiting_.insert(&call);
  return !is_disabled_;
}

bool ClientThread::leave(Waiting& call) {
  const std::lock_guard lock(mutex_);
  // False: the thread failed meanwhile and has failed this call. Any answer is not to be trusted.
  return waiting_.erase(&call) > 0;
}

void ClientThread::spin_until_set(const std::atomic<bool>& flag, std::chrono::microseconds spin) {
  const auto until = std::chrono::steady_clock::now() + spin;
  while (!flag.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until) give_way();
}

Async<Space> ClientThread::open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control) {
  const std::size_t block_bytes = record.block_bytes();
  const auto opened = co_await client_->open(std::move(record), deadline, control);
  if (opened) space_sizes_->note(*opened, block_bytes);
  co_return opened;
}

bool ClientThread::attach(const std::shared_ptr<Guest>& guest) {
  if (is_forked()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (is_disabled_) return false;
    guests_.push_back(guest);
  }
  asio::post(*io_, [this, guest] {
    if (!watched_) watch_waker();
    served_.push_back(guest.get());
  });
  return true;
}

void ClientThread::detach(const Guest& guest) {
  std::erase(served_, &guest);
  const std::lock_guard lock(mutex_);
  std::erase_if(guests_, [&](const auto& each) { return each.get() == &guest; });
}

void never_destroy(std::shared_ptr<const void> object) {
  struct Kept {
    std::shared_ptr<const void> object;
    Kept* before;
  };
  // Reachable for ever from a static, so leak checkers see kept memory, not a leak.
  static std::atomic<Kept*> last{nullptr};
  auto* const kept = new Kept{std::move(object), last.load()};
  while (!last.compare_exchange_weak(kept->before, kept)) {
  }
}

}  // namespace kv
