// client/blocking_client.h: the calls of Client from any thread, with an I/O thread of its own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/client.h"
#include "client/types/context_archive.h"

namespace kv {

class ClientThread;

struct BlockingOptions {
  /// How long the I/O thread polls for work before it sleeps, and a caller for its answer. Some tens of microseconds
  /// save the wake-ups, at the price of a busy core.
  std::chrono::microseconds busy_poll{0};
};

/// As Client; each call blocks its thread until it is complete, by its deadline. Thread safety: all calls from any
/// thread but the I/O thread itself (so not from a segment callback); the destructor requires that all calls have
/// returned. Slow work (touching and unmapping memory) runs on the caller's thread, so that other calls do not wait for
/// it. CompletionQueue has the same calls without blocking.
class BlockingClient {
 public:
  /// Throws as Client's constructor. `network` outlives the client.
  explicit BlockingClient(ClientConfig config, BlockingOptions options = {}, Network& network = socket_network());
  /// Calls of completion queues in progress end with kCancelled; the queues remain, to be reaped. Afterwards RDMA
  /// devices cannot reach lent memory, unless the client is_disabled(). If it is_forked(), it is only discarded.
  ~BlockingClient();

  Result<Space> open(NamespaceRecord record, std::chrono::microseconds deadline);
  Result<void> wait_open(Space space, std::chrono::microseconds deadline);
  std::size_t block_bytes(Space space) const;  ///< Does not wait. 0: not opened here.
  Result<MatchResult> match(Space space, Hashes hashes, MatchOptions options);
  Result<MissReport> why(Space space, Hashes hashes, std::chrono::microseconds deadline);
  void release(Lease lease);
  /// The segment callback runs on the I/O thread.
  Result<GetResult> get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options);
  Result<PutResult> put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options);
  Result<SetMatchResult> match_set(Space set, Hashes hashes, SetMatchOptions options);
  Result<SetGetResult> get_set(Space set, Hashes hashes, TargetBlocks blocks, SetGetOptions options);
  Result<SetPutResult> put_set(Space set, Hashes hashes, SourceBlocks blocks, SetPutOptions options);
  Result<std::size_t> touch(Space space, Hashes hashes, std::chrono::microseconds deadline);
  Result<std::size_t> retain(Space space, Hashes hashes, std::chrono::microseconds deadline);
  Result<std::size_t> unretain(Space space, Hashes hashes, std::chrono::microseconds deadline);
  Result<DropResult> drop(Space space, Hashes hashes, std::chrono::microseconds deadline);
  Result<NamedContext> create_context(Space space, Hashes hashes, ContextOptions options);
  Result<NamedContext> extend_context(std::string_view name, ContextTime life, std::chrono::microseconds deadline,
                                      std::optional<std::uint8_t> priority = std::nullopt);
  Result<NamedContext> delete_context(std::string_view name, std::chrono::microseconds deadline);
  Result<NamedContext> warm_context(std::string_view name, std::chrono::microseconds deadline);
  Result<NamedContext> stop_warming_context(std::string_view name, std::chrono::microseconds deadline);
  Result<ContextContent> tell_context(std::string_view name, std::chrono::microseconds deadline);
  /// A context as a file, to create it on another cluster. Errors: see archive/archive_transfer.h.
  Result<ArchivedContext, Failure> export_context(std::string_view name, const std::string& file,
                                                  const ContextExportOptions& options);
  Result<ArchivedContext, Failure> import_context(const std::string& file, const ContextImportOptions& options);
  Result<ContextList> list_contexts(std::string_view name, std::chrono::microseconds deadline);
  Result<std::vector<NodeAnswer>> ask(NodeQuestion question, std::chrono::microseconds deadline);
  Result<std::vector<std::chrono::nanoseconds>> ping(std::chrono::microseconds deadline);
  std::vector<NodeStatus> nodes() const;
  NumaStatus numa() const;
  std::string metrics_text() const;  ///< Empty: is_disabled().
  void tell_prefill_speed(double tokens_per_second);
  Result<std::span<std::byte>> allocate(std::size_t bytes);
  Result<std::size_t> lend(std::span<std::byte> memory, std::chrono::microseconds deadline);
  Result<void> free_memory(std::span<std::byte> memory);
  Result<void> add_device_memory(DeviceMemory memory);
  Result<void> remove_device_memory(std::span<std::byte> memory, std::chrono::microseconds deadline);
  bool is_quarantined(std::span<const std::byte> memory) const;
  /// Whether an internal error has ended the I/O thread; then every call fails with kUnavailable at once.
  bool is_disabled() const;
  /// Whether this is a child of fork(), and the client the parent's: its thread does not exist here, and its locks may
  /// be held for ever. Every call then fails with kForked at once; its sockets were closed here at the fork, not in the
  /// parent.
  bool is_forked() const;

 private:
  friend class CompletionQueue;
  std::unique_ptr<ClientThread> thread_;
};

}  // namespace kv
