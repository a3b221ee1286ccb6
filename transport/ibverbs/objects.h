// transport/ibverbs/: transport/verbs/verbs.h on libibverbs, as a module. Start here.
//
// Loaded as a file (transport/verbs/verbs_module.h); other folders never include it. Files, in reading order:
//   objects.h            the classes and the owners of handles (this file)
//   provider.cc          the module's exported functions
//   device.cc            a device's properties and limits
//   domain.cc            registered memory
//   queue_pair.cc        connecting, posting
//   completion_queue.cc  polling, sleeping
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <map>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "transport/verbs/verbs.h"

namespace kv::verbs {

/// A failed destroy means that a child outlived its parent: a bug in member order that no destructor can repair. The
/// exception is EIO: the device was pulled out, or its driver restarted, and the kernel has already freed the object.
inline bool is_destroyed(int error) {
  if (error == 0) return true;
  KV_ASSERT(error == EIO || (error < 0 && errno == EIO));  // some return -1 and set errno
  return false;
}
template <auto destroy>
struct DeleteWith {
  void operator()(auto* handle) const noexcept { static_cast<void>(is_destroyed(destroy(handle))); }
};
using IbContext = std::unique_ptr<ibv_context, DeleteWith<&ibv_close_device>>;
using IbDomain = std::unique_ptr<ibv_pd, DeleteWith<&ibv_dealloc_pd>>;
using IbRegion = std::unique_ptr<ibv_mr, DeleteWith<&ibv_dereg_mr>>;
using IbChannel = std::unique_ptr<ibv_comp_channel, DeleteWith<&ibv_destroy_comp_channel>>;
using IbQueue = std::unique_ptr<ibv_cq, DeleteWith<&ibv_destroy_cq>>;
using IbPair = std::unique_ptr<ibv_qp, DeleteWith<&ibv_destroy_qp>>;

inline error_code system_error(int error) { return {error, boost::system::system_category()}; }
int access_flags(Access access);

class IbQueuePair;

/// Completions name their queue pair by number; those of a destroyed one are dropped.
class IbCompletionQueue final : public CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> create(ibv_context& context, std::uint32_t count);
  ~IbCompletionQueue() override;

  std::size_t poll(std::span<Completion> to) override;
  Result<void> arm() override;
  int descriptor() const override { return channel_->fd; }
  Result<void> take_events() override;

  ibv_cq& handle() const { return *queue_; }
  std::uint32_t room() const { return room_; }
  void add(IbQueuePair& pair, std::uint32_t completion_count);
  void remove(std::uint32_t number, std::uint32_t completion_count);

 private:
  IbCompletionQueue(IbChannel channel, IbQueue queue, std::uint32_t count)
      : channel_(std::move(channel)), queue_(std::move(queue)), room_(count) {}

  IbChannel channel_;
  IbQueue queue_;
  std::uint32_t room_;
  bool is_lost_ = false;  ///< Polling failed: waiters for completions get an error from arm().
  std::map<std::uint32_t, IbQueuePair*> pairs_;
};

class IbQueuePair final : public QueuePair {
 public:
  static Result<std::unique_ptr<QueuePair>, Failure> create(ibv_pd& domain, IbCompletionQueue& queue,
                                                            const QueuePairOptions& options,
                                                            const DeviceLimits& limits);
  ~IbQueuePair() override;

  std::uint32_t number() const override { return pair_->qp_num; }
  State state() const override;
  std::uint32_t inline_bytes_max() const override { return options_.inline_bytes_max; }
  Result<void, Failure> connect(const QueuePairAddress& peer, const Path& path) override;
  Result<void> fail() override;
  Result<void> post(std::span<const Request> batch, std::uint64_t id) override;
  Result<void> post_receive(std::span<const Piece> pieces, std::uint64_t id) override;

  void took(const Completion& completion);  ///< The completion queue has handed it out.

 private:
  IbQueuePair(IbPair pair, IbCompletionQueue& queue, const QueuePairOptions& options, const DeviceLimits& limits)
      : pair_(std::move(pair)), queue_(queue), options_(options), limits_(limits), sends_(options.request_count_max) {}

  IbPair pair_;
  IbCompletionQueue& queue_;
  QueuePairOptions options_;
  DeviceLimits limits_;
  Outstanding sends_;
  std::uint32_t receive_count_ = 0;
  bool is_connected_ = false;
  std::vector<ibv_sge> pieces_;  ///< Of the batch being posted; both vectors are members to reuse their memory.
  std::vector<ibv_send_wr> requests_;
};

/// The contents of a wr_id, the only valid field after an error. So ids are below 2^62.
constexpr std::uint64_t pack_id(std::uint64_t id, bool is_receive, bool is_last) {
  return id << 2 | std::uint64_t{is_receive} << 1 | std::uint64_t{is_last};
}

Result<DeviceInfo> query_device(ibv_context& context);
std::unique_ptr<ProtectionDomain> make_domain(IbDomain domain, DeviceInfo info);

}  // namespace kv::verbs
