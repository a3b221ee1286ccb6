#include "client/verbs_lender.h"

#include <utility>

#include "base/assert.h"
#include "transport/verbs_module.h"

namespace kv {

VerbsLender::VerbsLender(asio::any_io_executor executor, std::vector<std::string> device_names,
                         verbs::Provider* provider)
    : executor_(std::move(executor)),
      device_names_(std::move(device_names)),
      provider_(provider),
      slow_calls_(/*in_place=*/provider != nullptr) {}

VerbsLender::~VerbsLender() { *alive_ = false; }

void VerbsLender::open() {
  if (state_ != State::kIdle) return;
  state_ = State::kOpening;
  struct Attempt {
    std::shared_ptr<Open> open = std::make_shared<Open>();
    std::string why;
    bool is_open = false;
  };
  const auto attempt = std::make_shared<Attempt>();
  const auto open_all = [attempt, given = provider_, names = device_names_] {
    if (given == nullptr) {
      auto loaded = verbs::load_verbs(&attempt->why);
      if (!loaded) return;
      attempt->open->provider = std::move(*loaded);
    }
    verbs::Provider& provider = given != nullptr ? *given : *attempt->open->provider;
    auto devices = verbs::open_devices(provider, {.names = names}, &attempt->why);
    if (!devices) return;
    attempt->open->devices = std::move(*devices);
    attempt->is_open = true;
  };
  slow_calls_.run(open_all, executor_, [this, alive = alive_, attempt] {
    if (!*alive) return;
    why_ = std::move(attempt->why);
    state_ = attempt->is_open ? State::kReady : State::kUnavailable;
    if (attempt->is_open) open_ = std::move(attempt->open);
  });
}

VerbsLender::Registration VerbsLender::registration(const std::shared_ptr<LentMemory::Region>& region) {
  KV_ASSERT(state_ == State::kReady);
  if (const auto found = entries_.find(region.get()); found != entries_.end()) return found->second->state;
  const auto entry = std::make_shared<Entry>();
  entry->open = open_;
  entry->region = region;
  entries_.emplace(region.get(), entry);
  const auto register_all = [entry] {
    auto made = verbs::RegisteredMemory::make(entry->open->devices, entry->region->bytes(),
                                              {.local_write = true, .remote_write = true, .remote_read = true},
                                              /*slice_bytes_max=*/0, &entry->why);
    if (made) entry->memory = std::move(*made);
  };
  slow_calls_.run(register_all, executor_, [this, alive = alive_, entry] {
    entry->state = entry->memory ? Registration::kReady : Registration::kFailed;
    if (*alive && !entry->memory) why_ = entry->why;
  });
  return entry->state;
}

const verbs::RegisteredMemory& VerbsLender::registered(const LentMemory::Region& region) const {
  const auto found = entries_.find(&region);
  KV_ASSERT(found != entries_.end() && found->second->memory);
  return *found->second->memory;
}

void VerbsLender::forget(const LentMemory::Region& region) {
  const auto found = entries_.find(&region);
  if (found == entries_.end()) return;
  auto entry = std::make_shared<std::shared_ptr<Entry>>(std::move(found->second));
  entries_.erase(found);
  slow_calls_.run([entry] { entry->reset(); }, executor_, [] {});
}

}  // namespace kv
