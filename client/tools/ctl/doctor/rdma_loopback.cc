#include "client/tools/ctl/doctor/rdma_loopback.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/this_coro.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/event.h"
#include "transport/verbs/verbs_mover.h"

namespace kv {
namespace {

using verbs::Direction;
using Step = Loopback::Step;

/// Bytes differ by place and direction, so that a misplaced chunk, or a READ that left the WRITE's bytes, shows.
void fill(std::span<std::byte> memory, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (std::byte& byte : memory) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

struct Peer {
  std::unique_ptr<verbs::ProtectionDomain> domain;
  std::vector<std::byte> memory;
  std::unique_ptr<verbs::MemoryRegion> region;
};

/// Moves the value of `made` to `to`, or its error to `result`.
template <class T>
bool take(Result<T> made, T& to, Loopback& result) {
  if (made) to = std::move(*made);
  if (!made) result.error = made.error();
  return made.has_value();
}
template <class T>
bool take(Result<T, Failure> made, T& to, Loopback& result) {
  if (made) to = std::move(*made);
  if (!made) result.error = made.error().code, result.why = made.error().text;
  return made.has_value();
}

/// One transfer without the loop of completions. Parents first, so that no queue pair outlives its queue or domain.
class Transfer {
 public:
  Transfer(verbs::Device& device, const verbs::Attachment& attachment, Clock& clock, Loopback& result)
      : device_(device), attachment_(attachment), clock_(clock), result_(result) {}

  bool open() {
    result_.step = Step::kOpen;
    for (Peer* const peer : {&node_, &client_}) {
      if (!take(device_.create_domain(), peer->domain, result_)) return false;
    }
    return take(device_.create_completion_queue(256), client_queue_, result_);
  }

  bool prepare(verbs::CompletionLoop& loop) {
    result_.step = Step::kRegister;
    // As in production: the client allows all access, the node none.
    const verbs::Access lent{.local_write = true, .remote_write = true, .remote_read = true};
    for (Peer* const peer : {&node_, &client_}) {
      const verbs::Access access = peer == &client_ ? lent : verbs::Access{.local_write = true};
      peer->memory.resize(result_.bytes);
      if (!take(peer->domain->register_memory(peer->memory, access), peer->region, result_)) return false;
    }
    result_.step = Step::kConnect;
    verbs::MoverOptions options;
    options.port = attachment_.port;
    if (!take(verbs::VerbsMover::create(loop, clock_, *node_.domain, options), mover_, result_)) return false;
    const verbs::QueuePairOptions open{.port = attachment_.port, .remote = lent};
    if (!take(client_.domain->create_queue_pair(*client_queue_, open), client_pair_, result_)) return false;
    const std::uint32_t node_psn = verbs::random_psn(), client_psn = verbs::random_psn();
    const auto node = address_of(attachment_, mover_->queue_pair().number(), node_psn);
    const auto client = address_of(attachment_, client_pair_->number(), client_psn);
    const auto there = mover_->queue_pair().connect(client, path_to(attachment_, node_psn, client));
    const auto back = there ? client_pair_->connect(node, path_to(attachment_, client_psn, node)) : there;
    if (back) return true;
    result_.error = back.error().code;
    result_.why = back.error().text;
    return false;
  }

  asio::awaitable<bool> move(Direction direction, Duration deadline, Duration* took) {
    const bool is_write = direction == Direction::kToPeer;
    result_.step = is_write ? Step::kWrite : Step::kRead;
    std::vector<std::byte>& from = is_write ? node_.memory : client_.memory;
    std::vector<std::byte>& to = is_write ? client_.memory : node_.memory;
    KV_ASSERT(from.size() == result_.bytes && to.size() == from.size());  // the stretch spans all of both
    fill(from, is_write ? 1 : 2);
    std::fill(to.begin(), to.end(), std::byte{0});  // a missing byte must not pass
    std::vector<verbs::Stretch> stretches = {{node_.memory, node_.region->lkey(),
                                              reinterpret_cast<std::uintptr_t>(client_.memory.data()),
                                              client_.region->rkey()}};
    const TimePoint start = clock_.now();
    auto moving = mover_->move(direction, std::move(stretches), {1}, nullptr, start + deadline, {});
    const Result<void> moved = co_await std::move(moving);
    *took = clock_.now() - start;
    if (!moved) {
      result_.error = moved.error();
      co_return false;
    }
    const auto wrong = std::mismatch(from.begin(), from.end(), to.begin()).first;
    if (wrong == from.end()) co_return true;
    result_.wrong_byte = static_cast<std::size_t>(wrong - from.begin());
    co_return false;
  }

 private:
  verbs::Device& device_;
  const verbs::Attachment& attachment_;
  Clock& clock_;
  Loopback& result_;
  Peer node_, client_;
  std::unique_ptr<verbs::CompletionQueue> client_queue_;
  std::unique_ptr<verbs::QueuePair> client_pair_;
  std::unique_ptr<verbs::VerbsMover> mover_;
};

}  // namespace

std::string_view name_of(Loopback::Step step) {
  switch (step) {
    case Step::kOpen: return "setting up";
    case Step::kRegister: return "registering memory";
    case Step::kConnect: return "connecting two queue pairs";
    case Step::kWrite: return "WRITE";
    case Step::kRead: return "READ";
    case Step::kDone: break;
  }
  return "done";
}

/// The order of the end matters: queue pairs before the loop that dispatches their completions, the loop before its
/// queue. The loop is a coroutine, so it is stopped and then awaited.
asio::awaitable<Loopback> run_loopback(verbs::Device& device, const verbs::Attachment& attachment, std::size_t bytes,
                                       Clock& clock, Duration deadline) {
  Loopback result;
  result.bytes = bytes;
  std::unique_ptr<verbs::CompletionQueue> queue;
  if (!take(device.create_completion_queue(256), queue, result)) co_return result;
  const auto executor = co_await asio::this_coro::executor;
  verbs::CompletionLoop loop(executor, std::move(queue));
  Event loop_ended(executor);
  asio::co_spawn(executor, loop.run(),
                 [&loop_ended](const std::exception_ptr&, const Result<void>&) { loop_ended.set(); });
  {  // the mover ends before its loop stops
    Transfer transfer(device, attachment, clock, result);
    bool is_good = transfer.open() && transfer.prepare(loop);
    if (is_good) is_good = co_await transfer.move(Direction::kToPeer, deadline, &result.write_time);
    if (is_good) is_good = co_await transfer.move(Direction::kFromPeer, deadline, &result.read_time);
    if (is_good) result.step = Step::kDone;
  }
  loop.stop();
  co_await loop_ended.wait();
  co_return result;
}

}  // namespace kv
