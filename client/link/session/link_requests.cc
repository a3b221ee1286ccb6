#include "client/link/session/link_requests.h"

#include <utility>

#include "base/assert.h"

namespace kv {

/// A request id is an entry's index and generation. A late answer to an ended request finds another generation, and is
/// not mistaken for the answer to the entry's present request.
std::uint64_t LinkRequests::take(FrameType type, Call* call, std::size_t load_bytes) {
  if (free_.empty()) {
    entries_.emplace_back();  // first: without memory for it, no index may name it
    free_.push_back(static_cast<std::uint32_t>(entries_.size() - 1));
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[index];
  KV_ASSERT(!entry.in_use && entry.call == nullptr && !entry.quarantine);
  ++entry.generation;
  entry.in_use = true;
  entry.is_message = false;
  entry.type = type;
  entry.call = call;
  entry.load_bytes = load_bytes;
  ++in_flight_;
  if (call != nullptr) ++call_count_;
  load_bytes_ += load_bytes;
  return (std::uint64_t{entry.generation} << 32) | index;
}

const LinkRequests::Entry* LinkRequests::find(std::uint64_t request_id) const {
  const auto index = static_cast<std::uint32_t>(request_id);
  if (index >= entries_.size()) return nullptr;
  const Entry& entry = entries_[index];
  return entry.in_use && entry.generation == request_id >> 32 ? &entry : nullptr;
}

LinkRequests::Entry& LinkRequests::at(const Entry& entry) {
  const auto index = static_cast<std::size_t>(&entry - entries_.data());
  KV_ASSERT(index < entries_.size() && entry.in_use);
  return entries_[index];
}

/// The node has answered, or the stream is over: the request's memory may be used again, and its quarantine ends.
void LinkRequests::free(const Entry& freed) {
  Entry& entry = at(freed);
  if (entry.call != nullptr) let_go(entry);
  if (entry.quarantine) {
    memory_.end_quarantine(*entry.quarantine);
    entry.quarantine.reset();
    --quarantine_count_;
  }
  KV_ASSERT(in_flight_ > 0 && load_bytes_ >= entry.load_bytes);  // 2
  --in_flight_;
  load_bytes_ -= entry.load_bytes;
  if (entry.is_message && --message_count_ == 0)
    messages_are_late_ = false;  // without messages in flight, none could
                                 // prove otherwise
  entry.in_use = false;
  free_.push_back(static_cast<std::uint32_t>(&entry - entries_.data()));
}

void LinkRequests::free_all() {
  for_each([this](const Entry& entry) { free(entry); });
  KV_ASSERT(in_flight_ == 0 && call_count_ == 0 && message_count_ == 0 && quarantine_count_ == 0 && load_bytes_ == 0);
}

void LinkRequests::went_by_send(const Entry& entry) {
  KV_ASSERT(!entry.is_message);
  at(entry).is_message = true;
  ++message_count_;
}

void LinkRequests::let_go(const Entry& entry) {
  KV_ASSERT(entry.call != nullptr && call_count_ > 0);
  at(entry).call = nullptr;
  --call_count_;
}

/// The call goes and the entry stays until the node has answered: only then is it certain that the node no longer
/// writes to `ranges`. A cancel gives no such certainty.
void LinkRequests::abandon(const Entry& entry, std::vector<std::span<const std::byte>> ranges) {
  let_go(entry);
  messages_are_late_ = messages_are_late_ || entry.is_message;
  if (ranges.empty()) return;
  KV_ASSERT(!entry.quarantine);
  at(entry).quarantine = memory_.quarantine(std::move(ranges));
  ++quarantine_count_;
}

}  // namespace kv
