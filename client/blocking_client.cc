#include "client/blocking_client.h"

#include <utility>
#include <vector>

#include "client/archive/archive_transfer.h"
#include "client/thread/client_thread.h"

namespace kv {

BlockingClient::BlockingClient(ClientConfig config, BlockingOptions options, Network& network)
    : thread_(std::make_unique<ClientThread>(std::move(config), options.busy_poll, network)) {}

BlockingClient::~BlockingClient() {
  if (!thread_->is_forked()) return;
  // In a forked child the thread cannot be joined, and removing a socket from the event queue would affect the parent.
  never_destroy(std::shared_ptr<ClientThread>(std::move(thread_)));
}

Result<Space> BlockingClient::open(NamespaceRecord record, std::chrono::microseconds deadline) {
  ClientThread& thread = *thread_;
  return thread.call<Space>([&](Client&) { return thread.open(std::move(record), deadline, {}); });
}
Result<void> BlockingClient::wait_open(Space space, std::chrono::microseconds deadline) {
  return thread_->call<void>([&](Client& client) { return client.wait_open(space, deadline); });
}
std::size_t BlockingClient::block_bytes(Space space) const {
  return thread_->is_forked() ? 0 : thread_->block_bytes(space);
}
Result<MatchResult> BlockingClient::match(Space space, Hashes hashes, MatchOptions options) {
  return thread_->call<MatchResult>([&](Client& client) { return client.match(space, hashes, options); });
}
Result<MissReport> BlockingClient::why(Space space, Hashes hashes, std::chrono::microseconds deadline) {
  return thread_->call<MissReport>([&](Client& client) { return client.why(space, hashes, deadline); });
}
void BlockingClient::release(Lease lease) {
  // Only waits until the I/O thread has taken it.
  thread_->run_there<bool>(false, [&](Client& client) {
    client.release(lease);
    return true;
  });
}
Result<GetResult> BlockingClient::get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options) {
  return thread_->call<GetResult>([&](Client& client) { return client.get(space, hashes, blocks, options); });
}
Result<PutResult> BlockingClient::put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options) {
  return thread_->call<PutResult>([&](Client& client) { return client.put(space, hashes, blocks, options); });
}
Result<SetMatchResult> BlockingClient::match_set(Space set, Hashes hashes, SetMatchOptions options) {
  return thread_->call<SetMatchResult>([&](Client& client) { return client.match_set(set, hashes, options); });
}
Result<SetGetResult> BlockingClient::get_set(Space set, Hashes hashes, TargetBlocks blocks, SetGetOptions options) {
  return thread_->call<SetGetResult>([&](Client& client) { return client.get_set(set, hashes, blocks, options); });
}
Result<SetPutResult> BlockingClient::put_set(Space set, Hashes hashes, SourceBlocks blocks, SetPutOptions options) {
  return thread_->call<SetPutResult>([&](Client& client) { return client.put_set(set, hashes, blocks, options); });
}
Result<std::size_t> BlockingClient::touch(Space space, Hashes hashes, std::chrono::microseconds deadline) {
  return thread_->call<std::size_t>([&](Client& client) { return client.touch(space, hashes, deadline); });
}
Result<std::size_t> BlockingClient::retain(Space space, Hashes hashes, std::chrono::microseconds deadline) {
  return thread_->call<std::size_t>([&](Client& client) { return client.retain(space, hashes, deadline); });
}
Result<std::size_t> BlockingClient::unretain(Space space, Hashes hashes, std::chrono::microseconds deadline) {
  return thread_->call<std::size_t>([&](Client& client) { return client.unretain(space, hashes, deadline); });
}
Result<DropResult> BlockingClient::drop(Space space, Hashes hashes, std::chrono::microseconds deadline) {
  return thread_->call<DropResult>([&](Client& client) { return client.drop(space, hashes, deadline); });
}
Result<NamedContext> BlockingClient::create_context(Space space, Hashes hashes, ContextOptions options) {
  return thread_->call<NamedContext>([&](Client& client) { return client.create_context(space, hashes, options); });
}
Result<NamedContext> BlockingClient::extend_context(std::string_view name, ContextTime life,
                                                    std::chrono::microseconds deadline,
                                                    std::optional<std::uint8_t> priority) {
  return thread_->call<NamedContext>(
      [&](Client& client) { return client.extend_context(name, life, deadline, {}, priority); });
}
Result<NamedContext> BlockingClient::delete_context(std::string_view name, std::chrono::microseconds deadline) {
  return thread_->call<NamedContext>([&](Client& client) { return client.delete_context(name, deadline); });
}
Result<NamedContext> BlockingClient::warm_context(std::string_view name, std::chrono::microseconds deadline) {
  return thread_->call<NamedContext>([&](Client& client) { return client.warm_context(name, deadline); });
}
Result<NamedContext> BlockingClient::stop_warming_context(std::string_view name, std::chrono::microseconds deadline) {
  return thread_->call<NamedContext>([&](Client& client) { return client.stop_warming_context(name, deadline); });
}
Result<ContextContent> BlockingClient::tell_context(std::string_view name, std::chrono::microseconds deadline) {
  return thread_->call<ContextContent>([&](Client& client) { return client.tell_context(name, deadline); });
}
Result<ArchivedContext, Failure> BlockingClient::export_context(std::string_view name, const std::string& file,
                                                                const ContextExportOptions& options) {
  return kv::export_context(*thread_, name, file, options);
}
Result<ArchivedContext, Failure> BlockingClient::import_context(const std::string& file,
                                                                const ContextImportOptions& options) {
  return kv::import_context(*thread_, file, options);
}
Result<ContextList> BlockingClient::list_contexts(std::string_view name, std::chrono::microseconds deadline) {
  return thread_->call<ContextList>([&](Client& client) { return client.list_contexts(name, deadline); });
}
Result<std::vector<NodeAnswer>> BlockingClient::ask(NodeQuestion question, std::chrono::microseconds deadline) {
  return thread_->call<std::vector<NodeAnswer>>([&](Client& client) { return client.ask(question, deadline); });
}
Result<std::vector<std::chrono::nanoseconds>> BlockingClient::ping(std::chrono::microseconds deadline) {
  return thread_->call<std::vector<std::chrono::nanoseconds>>([&](Client& client) { return client.ping(deadline); });
}
std::vector<NodeStatus> BlockingClient::nodes() const {
  return thread_->run_there<std::vector<NodeStatus>>({}, [](Client& client) { return client.nodes(); });
}
NumaStatus BlockingClient::numa() const {
  return thread_->run_there<NumaStatus>({}, [](Client& client) { return client.numa(); });
}
std::string BlockingClient::metrics_text() const {
  return thread_->run_there<std::string>({}, [](Client& client) { return client.metrics_text(); });
}
void BlockingClient::tell_prefill_speed(double tokens_per_second) {
  thread_->run_there<bool>(false, [tokens_per_second](Client& client) {
    client.tell_prefill_speed(tokens_per_second);
    return true;
  });
}
/// In three steps: the budget is reserved on the I/O thread, the memory is allocated and touched here, and then handed
/// over. Without memory, adopt_memory() returns the budget.
Result<std::span<std::byte>> BlockingClient::allocate(std::size_t bytes) {
  const auto reserved = thread_->run_there<Result<void>>(thread_->why_not(),
                                                         [&](Client& client) { return client.reserve_memory(bytes); });
  if (!reserved) return reserved.error();
  // Not on the client's thread: 0.3 s per GiB would delay all deadlines.
  auto memory = make_memory(thread_->numa_place(), bytes);
  return thread_->run_there<Result<std::span<std::byte>>>(
      thread_->why_not(), [&](Client& client) { return client.adopt_memory(bytes, std::move(memory)); });
}
Result<std::size_t> BlockingClient::lend(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  return thread_->call<std::size_t>([&](Client& client) { return client.lend(memory, deadline); });
}
Result<void> BlockingClient::free_memory(std::span<std::byte> memory) {
  // Unmapped with `released`, on this thread: 0.1 s per GiB.
  auto released = thread_->run_there<Result<std::shared_ptr<const void>>>(
      thread_->why_not(), [&](Client& client) { return client.release_memory(memory); });
  if (!released) return released.error();
  return {};
}
Result<void> BlockingClient::add_device_memory(DeviceMemory memory) {
  return thread_->run_there<Result<void>>(thread_->why_not(),
                                          [&](Client& client) { return client.add_device_memory(memory); });
}
Result<void> BlockingClient::remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline) {
  return thread_->call<void>([&](Client& client) { return client.remove_device_memory(memory, deadline); });
}
bool BlockingClient::is_quarantined(std::span<const std::byte> memory) const {
  return thread_->run_there<bool>(false, [&](Client& client) { return client.is_quarantined(memory); });
}
bool BlockingClient::is_forked() const { return thread_->is_forked(); }
bool BlockingClient::is_disabled() const { return !thread_->is_forked() && thread_->is_disabled(); }

}  // namespace kv
