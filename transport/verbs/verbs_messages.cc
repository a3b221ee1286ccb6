#include "transport/verbs/verbs_messages.h"

#include <cstring>
#include <utility>

#include "base/assert.h"

namespace kv::verbs {

Result<std::unique_ptr<VerbsMessages>, Failure> VerbsMessages::create(ProtectionDomain& domain, CompletionQueue& queue,
                                                                      const MessagesOptions& options) {
  KV_ASSERT(options.count > 0 && options.bytes_max > 0);
  std::unique_ptr<VerbsMessages> messages(new VerbsMessages(options));
  const std::span<std::byte> memory(messages->memory_.get(), 2ull * options.count * options.bytes_max);
  auto region = domain.register_memory(memory, {.local_write = true});
  if (!region) return region.error();
  messages->region_ = std::move(*region);
  auto pair = domain.create_queue_pair(queue, {.request_count_max = options.count * (1 + options.write_count_max),
                                               .receive_count_max = options.count,
                                               .piece_count_max = 1,
                                               .inline_bytes_max = 220,  // accepted by common devices
                                               .port = options.port,
                                               .remote = options.remote});
  if (!pair) return pair.error();
  messages->pair_ = std::move(*pair);
  // Before the peer can learn the queue pair's number: its first message finds a RECV.
  for (std::uint64_t i = 0; i < options.count; ++i) {
    const auto posted = messages->post_receive(i);
    if (!posted) return posted.error();
  }
  return messages;
}

VerbsMessages::VerbsMessages(const MessagesOptions& options)
    : options_(options),
      memory_(std::make_unique<std::byte[]>(2ull * options.count * options.bytes_max)),
      owners_(2ull * options.count) {
  for (std::uint64_t i = options.count; i < 2ull * options.count; ++i) free_.push_back(i);
}

VerbsMessages::~VerbsMessages() {
  // First the completions end, then the queue pair, and with it the device's access to the memory.
  if (loop_ != nullptr) loop_->remove(pair_->number());
  pair_.reset();  // the device no longer touches the memory; only now do the owners go
}

void VerbsMessages::attach(CompletionLoop& loop, Clock& clock, OnMessage on_message, OnBroken on_broken) {
  KV_ASSERT(loop_ == nullptr);
  loop_ = &loop;
  clock_ = &clock;
  alarm_ = clock.make_alarm(loop.executor());
  listener_ = std::make_shared<Listener>(Listener{std::move(on_message), std::move(on_broken)});
  loop.add(pair_->number(), [this](const Completion& completion) { on_completion(completion); });
}

/// Buffers [0, count) are for RECVs, [count, 2 count) for SENDs. The index is also the id of the request.
std::span<std::byte> VerbsMessages::buffer(std::uint64_t index) {
  KV_ASSERT(index < 2ull * options_.count);
  return {memory_.get() + index * options_.bytes_max, options_.bytes_max};
}

Result<void> VerbsMessages::post_receive(std::uint64_t index) {
  KV_ASSERT(index < options_.count);
  const std::span<std::byte> to = buffer(index);
  const Piece piece{to.data(), static_cast<std::uint32_t>(to.size()), region_->lkey()};
  return pair_->post_receive(std::span(&piece, 1), index);
}

Result<void> VerbsMessages::send(std::span<const std::byte> message, std::span<const Stretch> before, Owner owner) {
  KV_ASSERT(loop_ != nullptr && !message.empty() && before.size() <= options_.write_count_max);
  if (message.size() > options_.bytes_max) return Errc::kTooLarge;
  if (is_broken_) return Errc::kUnavailable;
  if (free_.empty()) return Errc::kBusy;
  const std::uint64_t index = free_.back();
  KV_ASSERT(index >= options_.count && !owners_[index]);
  std::memcpy(buffer(index).data(), message.data(), message.size());
  // All pieces first: requests hold spans into the vector.
  pieces_.clear();
  for (const Stretch& each : before) {
    KV_ASSERT(!each.local.empty() && each.local.size() < 1ull << 32);
    pieces_.push_back({each.local.data(), static_cast<std::uint32_t>(each.local.size()), each.lkey});
  }
  pieces_.push_back({buffer(index).data(), static_cast<std::uint32_t>(message.size()), region_->lkey()});
  requests_.clear();
  for (std::size_t i = 0; i < before.size(); ++i) {
    requests_.push_back({.opcode = Opcode::kWrite,
                         .pieces = std::span(pieces_).subspan(i, 1),
                         .remote_address = before[i].remote_address,
                         .rkey = before[i].rkey});
  }
  requests_.push_back({.opcode = Opcode::kSend,
                       .is_inline = message.size() <= pair_->inline_bytes_max(),
                       .pieces = std::span(pieces_).last(1)});
  KV_ASSERT(requests_.size() == before.size() + 1 && pieces_.size() == requests_.size());
  const auto posted = pair_->post(requests_, index);
  if (!posted) return posted.error();        // the buffer is still free
  if (is_idle()) progress_ = clock_->now();  // the time without progress begins with the first message
  free_.pop_back();
  owners_[index] = std::move(owner);
  watch();
  return Result<void>();
}

/// A SEND's completion frees its buffer; a RECV's brings a message. The RECV is posted again before the message is
/// handed on, or a quick peer's next message would find none.
void VerbsMessages::on_completion(const Completion& completion) {
  Owner owner;  // released last: it may destroy this object
  if (!completion.is_receive && completion.is_last) {
    // Each SEND buffer is either free or posted, so the id is valid and outstanding. Peers cannot break this. A failing
    // device can; that costs this queue pair, never the node.
    if (completion.id < options_.count || completion.id >= 2ull * options_.count || free_.size() >= options_.count)
      return broke(make_error_code(Status::kGeneral));
    free_.push_back(completion.id);
    owner = std::move(owners_[completion.id]);
    progress_ = clock_->now();
  }
  if (is_broken_) return;
  if (completion.status != Status::kSuccess) return broke(make_error_code(completion.status));
  if (!completion.is_receive) return;
  if (completion.id >= options_.count) return broke(make_error_code(Status::kGeneral));  // as above
  if (completion.bytes > options_.bytes_max) return broke(make_error_code(Status::kLocalLength));
  const std::span<const std::byte> came = buffer(completion.id).first(completion.bytes);
  // Copied, so that the RECV is posted again before the answer leaves and the peer sends its next request.
  const auto inbox = inbox_ ? std::move(inbox_) : std::make_shared<std::vector<std::byte>>();
  inbox->assign(came.begin(), came.end());
  const auto posted = post_receive(completion.id);
  if (!posted) return broke(posted.error());
  inbox_ = inbox;  // reuses its memory; the copy stays valid if the call below destroys this object
  const auto listener = listener_;
  listener->on_message(*inbox);  // last: it may destroy this
}

/// Reported once. The session ends with it: a request or an answer may be lost, and it is unknown which.
void VerbsMessages::broke(error_code why) {
  if (is_broken_) return;
  fail();
  const auto listener = listener_;
  listener->on_broken(why);
}

/// Armed once per `timeout`, not per message: that would double the cost of a short message.
void VerbsMessages::watch() {
  if (is_watched_) return;
  is_watched_ = true;
  alarm_->arm(progress_ + options_.timeout, [this] {
    is_watched_ = false;
    if (is_idle()) return;
    if (clock_->now() - progress_ >= options_.timeout) return broke(asio::error::timed_out);
    watch();
  });
}

void VerbsMessages::fail() {
  if (is_broken_) return;
  is_broken_ = true;
  if (alarm_) alarm_->disarm();
  // A device that refuses even this is gone.
  [[maybe_unused]] const auto failed = pair_->fail();
}

}  // namespace kv::verbs
