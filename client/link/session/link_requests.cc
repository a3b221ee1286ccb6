#include "client/link/session/link_requests.h"

#include <utility>

#include "base/assert.h"

namespace kv {

std::uint64_t LinkRequests::take(FrameType type, Call* call, std::size_t load_bytes) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  KV_ASSERT(!slot.in_use && slot.call == nullptr && !slot.quarantine);
  ++slot.generation;
  slot.in_use = true;
  slot.is_message = false;
  slot.type = type;
  slot.call = call;
  slot.load_bytes = load_bytes;
  ++in_flight_;
  if (call != nullptr) ++call_count_;
  load_bytes_ += load_bytes;
  return (std::uint64_t{slot.generation} << 32) | index;
}

const LinkRequests::Slot* LinkRequests::find(std::uint64_t request_id) const {
  const auto index = static_cast<std::uint32_t>(request_id);
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  return slot.in_use && slot.generation == request_id >> 32 ? &slot : nullptr;
}

LinkRequests::Slot& LinkRequests::at(const Slot& slot) {
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  KV_ASSERT(index < slots_.size() && slot.in_use);
  return slots_[index];
}

void LinkRequests::free(const Slot& freed) {
  Slot& slot = at(freed);
  if (slot.call != nullptr) let_go(slot);
  if (slot.quarantine) {
    memory_.end_quarantine(*slot.quarantine);
    slot.quarantine.reset();
    --quarantine_count_;
  }
  KV_ASSERT(in_flight_ > 0 && load_bytes_ >= slot.load_bytes);  // 2
  --in_flight_;
  load_bytes_ -= slot.load_bytes;
  if (slot.is_message && --message_count_ == 0) messages_are_late_ = false;  // nothing would come that tells otherwise
  slot.in_use = false;
  free_.push_back(static_cast<std::uint32_t>(&slot - slots_.data()));
}

void LinkRequests::free_all() {
  for_each([this](const Slot& slot) { free(slot); });
  KV_ASSERT(in_flight_ == 0 && call_count_ == 0 && message_count_ == 0 && quarantine_count_ == 0 && load_bytes_ == 0);
}

void LinkRequests::went_by_send(const Slot& slot) {
  KV_ASSERT(!slot.is_message);
  at(slot).is_message = true;
  ++message_count_;
}

void LinkRequests::let_go(const Slot& slot) {
  KV_ASSERT(slot.call != nullptr && call_count_ > 0);
  at(slot).call = nullptr;
  --call_count_;
}

void LinkRequests::abandon(const Slot& slot, std::vector<std::span<const std::byte>> ranges) {
  let_go(slot);
  messages_are_late_ = messages_are_late_ || slot.is_message;
  if (ranges.empty()) return;
  KV_ASSERT(!slot.quarantine);
  at(slot).quarantine = memory_.quarantine(std::move(ranges));
  ++quarantine_count_;
}

}  // namespace kv
