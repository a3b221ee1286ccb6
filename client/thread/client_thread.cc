#include "client/thread/client_thread.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

// A sleeping thread takes 5 to 10 us to wake, and then has to submit. With other calls in progress more ends follow
// soon, and most of the time goes to those: p99 of a submit with 64 large gets in flight fell from 17 to 6 us.
constexpr std::chrono::microseconds kLinger{20}, kLingerBusy{200};

/// See ClientThread, 3. Longer, and a connection's end is noticed later; shorter, and more calls find the I/O thread in
/// charge, which takes a wake-up more.
constexpr std::chrono::milliseconds kParkTime{10};

/// One step of a spin. The answering thread may be on the same core, and must get to run.
inline void give_way() { std::this_thread::yield(); }

}  // namespace

SpaceSizes::~SpaceSizes() {
  for (const auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

void SpaceSizes::note(Space space, SpaceSize size) {
  const auto index = static_cast<std::size_t>(space);
  KV_ASSERT(index < kSpacesMax && size.block_bytes > 0);
  auto& chunk = chunks_[index / kChunk];
  // Written only on the I/O thread, read on any: plain stores are enough. Readers see only zeroed chunks.
  if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk{}, std::memory_order_release);
  Entry& entry = (*chunk.load(std::memory_order_relaxed))[index % kChunk];
  entry.block_size.store(size.block_size, std::memory_order_relaxed);
  entry.block_bytes.store(size.block_bytes, std::memory_order_release);
}

SpaceSize SpaceSizes::find(Space space) const {
  const auto index = static_cast<std::size_t>(space);
  if (index >= kSpacesMax) return {};
  const Chunk* const chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
  if (chunk == nullptr) return {};
  const Entry& entry = (*chunk)[index % kChunk];
  const std::size_t bytes = entry.block_bytes.load(std::memory_order_acquire);
  return {.block_bytes = bytes, .block_size = entry.block_size.load(std::memory_order_relaxed)};
}

thread_local const ClientThread* ClientThread::current_ = nullptr;

ClientThread::ClientThread(ClientConfig config, std::chrono::microseconds busy_poll, Network& network)
    : busy_poll_(busy_poll),
      client_(std::make_unique<Client>(io_->get_executor(), std::move(config), network)),
      numa_place_(client_->numa_place()),
      thread_([this] { run(); }) {}

ClientThread::~ClientThread() {
  KV_ASSERT(!is_forked() && !is_current());
  // On its own thread, the only one that may use the client.
  asio::post(*io_, [this] { close(); });
  waker_->wake();
  thread_.join();      // the coroutines of closed sessions run to their end
  if (is_disabled_) {  // 4: the remaining state cannot be trusted to destroy itself
    never_destroy(std::move(client_));
    never_destroy(std::move(watched_));
    never_destroy(std::move(poll_));
    never_destroy(std::move(io_));
  }
}

void ClientThread::abandon() {
  KV_ASSERT(!is_forked() && !is_current());
  // Without closing or notifications: pending handlers stay where they are, and their memory with them.
  io_->stop();
  waker_->wake();
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
  current_ = this;
  poll_ = std::make_unique<BusyPoll>(*io_, busy_poll_);
  try {
    run_until_stopped();
  } catch (const std::exception& e) {
    fail(e.what());
  } catch (...) {
    fail("unknown exception");
  }
  if (!has_failed_) poll_.reset();
}

void ClientThread::fail(const char* why) {
  std::fprintf(stderr, "kvstore: client disabled: %s\n", why);
  has_failed_ = true;
  // Guests are notified once more, but not served.
  served_.clear();
  std::vector<std::shared_ptr<Guest>> guests;
  {
    const std::lock_guard lock(mutex_);
    is_disabled_ = true;
    guests.swap(guests_);
  }
  for (const auto& guest : guests) guest->client_disabled();
}

void ClientThread::run_until_stopped() {
  const bool spins = busy_poll_.count() > 0;
  TimePoint idle_since = std::chrono::steady_clock::now();
  while (!io_->stopped() && !has_failed_) {
    if (served_.empty() && !spins) {
      io_->run_one();
      continue;
    }
    // One handler, though more may be ready: during a long transfer there is always another, and guests would wait.
    const bool has_run = poll_->poll_one();
    if (serve_guests() || has_run) {
      if (spins) idle_since = std::chrono::steady_clock::now();
    } else if (std::exchange(may_park_, false) && !is_busy()) {
      park();
    } else if (spins && std::chrono::steady_clock::now() - idle_since < busy_poll_) {
      give_way();
    } else if (awake_until_ != TimePoint{} && std::chrono::steady_clock::now() < awake_until_) {
      give_way();
    } else {
      awake_until_ = {};
      run_one();
      if (spins) idle_since = std::chrono::steady_clock::now();
    }
  }
}

void ClientThread::run_one(TimePoint until) {
  poll_->rest();
  // Before the check for guests' work: a submitter in between sees a sleeper and wakes it.
  waker_->fall_asleep();
  if (!has_work()) until == TimePoint::max() ? io_->run_one() : io_->run_one_until(until);
  waker_->awake();
}

// -- in charge

void ClientThread::park() {
  poll_->rest();
  std::unique_lock lock(charge_mutex_);
  charge_ = Charge::kNobody;
  waker_->fall_asleep();
  bool is_needed = has_work();
  while (!is_needed) {
    const std::uint64_t callers = callers_;
    lock.unlock();
    pollfd woken{.fd = waker_->fd(), .events = POLLIN, .revents = 0};
    is_needed = ::poll(&woken, 1, static_cast<int>(kParkTime.count())) > 0;
    lock.lock();
    is_needed |= callers == callers_;  // 3
  }
  is_wanted_back_ = true;
  charge_changed_.wait(lock, [this] { return charge_ == Charge::kNobody; });
  is_wanted_back_ = false;
  charge_ = Charge::kIoThread;
  waker_->awake();
}

bool ClientThread::take_charge() {
  const std::lock_guard lock(charge_mutex_);
  if (charge_ != Charge::kNobody || is_wanted_back_ || has_failed_) return false;
  charge_ = Charge::kCaller;
  ++callers_;
  waker_->awake();
  return true;
}

void ClientThread::give_charge_back() {
  bool is_needed = false;
  {
    const std::lock_guard lock(charge_mutex_);
    charge_ = Charge::kNobody;
    waker_->fall_asleep();
    // Looked for under the lock: behind it the next one in charge may change what is looked at.
    is_needed = has_failed_ || io_->stopped() || is_busy() || has_work();
    if (is_wanted_back_) charge_changed_.notify_one();
  }
  if (is_needed) waker_->wake();
}

bool ClientThread::run_here(const bool& is_over, bool& is_in_charge, TimePoint until) {
  const ClientThread* const before = std::exchange(current_, this);
  try {
    const bool spins = busy_poll_.count() > 0;
    TimePoint idle_since = std::chrono::steady_clock::now();
    while (!is_over && !io_->stopped() && !is_forked() &&
           (until == TimePoint::max() || std::chrono::steady_clock::now() < until)) {
      // A handler in each turn: else a stream of submits and cancels would keep back all of them, and deadlines.
      const bool had_work = serve_guests();
      const bool has_run = (had_work || spins) && poll_->poll_one();
      if (had_work || has_run) {
        if (spins) idle_since = std::chrono::steady_clock::now();
      } else if (spins && std::chrono::steady_clock::now() - idle_since < busy_poll_) {
        give_way();
      } else {
        run_one(until);
      }
    }
  } catch (const std::exception& e) {
    if (!is_forked()) fail(e.what());  // 5
  } catch (...) {
    if (!is_forked()) fail("unknown exception");
  }
  current_ = before;
  if (is_forked()) return false;   // a callback has forked: this is the child, where nothing may be touched
  const bool has_ended = is_over;  // later another thread may write it
  is_in_charge = false;
  give_charge_back();
  return has_ended;
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

bool ClientThread::has_work() const {
  return std::ranges::any_of(served_, [](const Guest* guest) { return guest->has_work(); });
}

bool ClientThread::is_busy() const {
  return std::ranges::any_of(served_, [](const Guest* guest) { return guest->is_running(); }) ||
         (client_ && client_->is_connecting());
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

Async<Space> ClientThread::open(NamespaceRecord record, std::chrono::microseconds deadline, CallControl control) {
  const SpaceSize size{.block_bytes = record.block_bytes(), .block_size = record.is_set() ? 0 : record.block_size()};
  const auto opened = co_await client_->open(std::move(record), deadline, control);
  if (opened) space_sizes_->note(*opened, size);
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
  waker_->wake();
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
