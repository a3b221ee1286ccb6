#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/ibverbs/objects.h"

namespace kv::verbs {

Result<std::unique_ptr<CompletionQueue>> IbCompletionQueue::create(ibv_context& context, std::uint32_t count) {
  IbChannel channel(ibv_create_comp_channel(&context));
  if (!channel) return last_errno();
  // Non-blocking: take_events() reads until the channel is empty.
  const int flags = ::fcntl(channel->fd, F_GETFL);
  if (flags < 0 || ::fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) return last_errno();
  IbQueue queue(ibv_create_cq(&context, static_cast<int>(count), nullptr, channel.get(), 0));
  if (!queue) return last_errno();
  return std::unique_ptr<CompletionQueue>(new IbCompletionQueue(std::move(channel), std::move(queue), count));
}

IbCompletionQueue::~IbCompletionQueue() {
  if (is_destroyed(ibv_destroy_cq(queue_.release()))) return;
  // The device is gone. libibverbs would refuse to destroy the channel, which still counts the queue.
  ::close(channel_.release()->fd);
}

/// Drops completions of destroyed queue pairs, which may still lie in the queue.
std::size_t IbCompletionQueue::poll(std::span<Completion> to) {
  std::size_t filled = 0;
  std::array<ibv_wc, 16> some;
  while (filled < to.size()) {
    const int wanted = static_cast<int>(std::min(some.size(), to.size() - filled));
    const int count = ibv_poll_cq(queue_.get(), wanted, some.data());
    if (count < 0) {  // the device is gone, or its driver lost track: the queue pairs end, the node goes on
      is_lost_ = true;
      break;
    }
    KV_ASSERT(count <= wanted);  // else the driver has written past `some`
    for (int i = 0; i < count; ++i) {
      const ibv_wc& each = some[static_cast<std::size_t>(i)];
      const auto owner = pairs_.find(each.qp_num);
      if (owner == pairs_.end()) continue;
      // After an error only these fields are valid; even the opcode is not.
      Completion completion{.id = each.wr_id >> 2,
                            .queue_pair = each.qp_num,
                            .status = each.status < kStatusCount ? static_cast<Status>(each.status) : Status::kGeneral,
                            .is_receive = (each.wr_id & 2) != 0,
                            .is_last = (each.wr_id & 1) != 0};
      if (completion.status == Status::kSuccess && completion.is_receive) {
        completion.bytes = each.byte_len;
        // A WRITE with an immediate value consumes a RECV too, without writing there: its length is that of the WRITE.
        if (each.opcode != IBV_WC_RECV) completion.status = Status::kGeneral;
      }
      owner->second->took(completion);
      to[filled++] = completion;
    }
    if (count < wanted) break;
  }
  return filled;
}

Result<void> IbCompletionQueue::arm() {
  if (is_lost_) return system_error(EIO);
  if (const int error = ibv_req_notify_cq(queue_.get(), 0); error != 0) return system_error(error);
  return {};
}

Result<void> IbCompletionQueue::take_events() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned count = 0;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ++count;
  const int error = errno;
  if (count > 0) ibv_ack_cq_events(queue_.get(), count);  // or destroying the queue would wait for them
  if (error != EAGAIN && error != EINTR) return system_error(error);
  return {};
}

void IbCompletionQueue::add(IbQueuePair& pair, std::uint32_t completion_count) {
  KV_ASSERT(completion_count <= room_);  // else the queue could overflow, which ends every queue pair on it
  room_ -= completion_count;
  const bool is_new = pairs_.emplace(pair.number(), &pair).second;
  KV_ASSERT(is_new);
}

void IbCompletionQueue::remove(std::uint32_t number, std::uint32_t completion_count) {
  room_ += completion_count;
  KV_ASSERT(pairs_.erase(number) == 1);
}

}  // namespace kv::verbs
