#include "client/link/verbs_lender.h"

#include <utility>

#include "base/assert.h"
#include "transport/verbs/verbs_module.h"

namespace kv {
namespace {

constexpr Duration kOpenPause = 5s;  // Opening asks the kernel for each device, so not at every call that lends.

}  // namespace

VerbsLender::VerbsLender(asio::any_io_executor executor, Clock& clock, verbs::DevicesConfig devices,
                         verbs::Provider* provider, const NumaChoice& numa)
    : executor_(std::move(executor)),
      clock_(clock),
      config_(std::move(devices)),
      provider_(provider),
      slow_calls_(/*in_place=*/provider != nullptr, /*thread_count=*/1, numa) {}

VerbsLender::~VerbsLender() = default;

void VerbsLender::open() {
  const bool may_try = state_ == State::kIdle || (state_ == State::kUnavailable && clock_.now() >= open_again_);
  if (!may_try || is_opening_) return;
  is_opening_ = true;
  struct Attempt {
    std::shared_ptr<Open> open = std::make_shared<Open>();
    std::string why;
    bool is_open = false, may_come = false;
  };
  const auto attempt = std::make_shared<Attempt>();
  const auto open_all = [attempt, given = provider_, config = config_] {
    if (given == nullptr) {
      auto loaded = verbs::load_verbs();
      if (!loaded) {
        attempt->why = loaded.error().text;
        return;
      }
      attempt->open->provider = std::move(*loaded);
    }
    verbs::Provider& provider = given != nullptr ? *given : *attempt->open->provider;
    auto opened = verbs::open_devices(provider, config);
    attempt->why = opened ? std::move(opened->left_out) : opened.error().text;
    attempt->may_come = !opened && opened.error() == Errc::kUnavailable;
    if (!opened) return;
    attempt->open->devices = std::move(opened->devices);
    attempt->is_open = true;
  };
  const auto opened = [this, attempt] {
    KV_ASSERT(is_opening_);
    is_opening_ = false;
    why_ = std::move(attempt->why);
    state_ = attempt->is_open ? State::kReady : State::kUnavailable;
    if (attempt->is_open) open_ = std::move(attempt->open);
    open_again_ = attempt->may_come ? clock_.now() + kOpenPause : TimePoint::max();
  };
  slow_calls_.run(open_all, executor_, lifeline_.guard(opened));
}

/// Registering takes 0.2 s per GiB, so it runs on the slow thread, while calls go through the socket. The entry holds
/// the region: memory freed meanwhile stays mapped.
VerbsLender::Registration VerbsLender::registration(const std::shared_ptr<LentMemory::Region>& region) {
  KV_ASSERT(state_ == State::kReady);
  if (const auto found = entries_.find(region.get()); found != entries_.end()) return found->second->state;
  const auto entry = std::make_shared<Entry>();
  entry->open = open_;
  entry->region = region;
  entries_.emplace(region.get(), entry);
  const auto register_all = [entry] {
    const LentMemory::Region& lent = *entry->region;
    const verbs::Access access{.local_write = true, .remote_write = true, .remote_read = true};
    auto made = lent.is_device()
                    ? verbs::RegisteredMemory::make_of_device(entry->open->devices, lent.bytes(), lent.dmabuf.get(),
                                                              lent.dmabuf_offset, access)
                    : verbs::RegisteredMemory::make(entry->open->devices, lent.bytes(), access,
                                                    /*slice_bytes_max=*/0);
    entry->why = made ? (*made)->left_out() : made.error().text;
    entry->is_registered = made.has_value();
    if (made) entry->memory = std::move(*made);
  };
  const auto registered = [this, entry] {
    KV_ASSERT(entry->state == Registration::kPending);
    entry->state = entry->is_registered ? Registration::kReady : Registration::kFailed;
    if (!entry->why.empty()) why_ = entry->why;
  };
  slow_calls_.run(register_all, executor_, lifeline_.guard(registered));
  return entry->state;
}

const verbs::RegisteredMemory& VerbsLender::registered(const LentMemory::Region& region) const {
  const auto found = entries_.find(&region);
  KV_ASSERT(found != entries_.end() && found->second->state == Registration::kReady && found->second->memory);
  return *found->second->memory;
}

/// Follows a registration in progress, since slow calls run in order. Before `then`, devices lose access to the memory.
void VerbsLender::forget(const LentMemory::Region& region, std::function<void()> then) {
  const auto found = entries_.find(&region);
  if (found == entries_.end()) return then();
  auto entry = std::make_shared<std::shared_ptr<Entry>>(std::move(found->second));
  entries_.erase(found);
  const auto let_go = [entry] {
    // First: the callback of a registration that has just ended may hold the entry a little longer.
    (*entry)->memory.reset();
    entry->reset();
  };
  slow_calls_.run(let_go, executor_, lifeline_.guard(std::move(then)));
}

}  // namespace kv
