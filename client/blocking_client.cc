#include "client/blocking_client.h"

#include <thread>

#include "client/thread/client_thread.h"

namespace kv {

BlockingClient::BlockingClient(ClientConfig config, BlockingOptions options, Network& network)
    : thread_(std::make_unique<ClientThread>(std::move(config), options.busy_poll, network)),
      calls_(new CompletionQueue(*thread_, options)) {}

BlockingClient::~BlockingClient() {
  if (!thread_->is_forked()) return;
  // In a forked child the thread cannot be joined, and removing a socket from the event queue would affect the parent.
  never_destroy(std::shared_ptr<ClientThread>(std::move(thread_)));
}

Completion BlockingClient::run(const Request& request, const Interrupt* interrupt) {
  return calls_->run(request, interrupt);
}
void BlockingClient::cancel_all() { calls_->cancel_all(); }
void BlockingClient::abandon() { thread_->abandon(); }

SpaceSize BlockingClient::size_of(Space space) const {
  return thread_->is_forked() ? SpaceSize() : calls_->size_of(space);
}

/// In three steps: the budget is reserved on the I/O thread, the memory is allocated and touched here, and then handed
/// over. Without memory, adopt_memory() returns the budget.
Result<std::span<std::byte>> BlockingClient::allocate(std::size_t bytes) {
  const auto reserved = with([&](Client& client) { return client.reserve_memory(bytes); });
  if (!reserved) return reserved.error();
  // Not on the client's thread: 0.3 s per GiB would delay all deadlines.
  auto memory = make_memory(thread_->numa_place(), bytes);
  for (bool has_run = false;;) {
    auto adopted = with([&](Client& client) {
      has_run = true;
      return client.adopt_memory(bytes, std::move(memory));
    });
    if (has_run || adopted || adopted.error() != Errc::kBusy) return adopted;
    std::this_thread::yield();  // the reserved budget must reach adopt_memory()
  }
}

Result<void> BlockingClient::free_memory(std::span<std::byte> memory) {
  // Unmapped with `released`, on this thread and after its call: 0.1 s per GiB.
  const auto released = release_memory(memory);
  return released ? Result<void>() : Result<void>(released.error());
}

Result<std::shared_ptr<const void>> BlockingClient::release_memory(std::span<std::byte> memory) {
  return with([&](Client& client) { return client.release_memory(memory); });
}

bool BlockingClient::is_forked() const { return thread_->is_forked(); }
bool BlockingClient::is_disabled() const { return !thread_->is_forked() && thread_->is_disabled(); }

}  // namespace kv
