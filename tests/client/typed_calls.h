// tests/client/typed_calls.h: a client's and a queue's calls with a function for each operation, for tests that make
// many.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/archive/archive_transfer.h"
#include "client/blocking_client.h"
#include "client/completion_queue.h"

namespace kv {

/// Requests of the calls of Client of these names.
namespace request_of {

inline Request chain(Op op, Space space, Hashes hashes, std::chrono::microseconds deadline, std::uint64_t tag = 0) {
  return {.op = op, .space = space, .hashes = hashes, .deadline = deadline, .tag = tag};
}
template <class Options>
Request with_options(Op op, Space space, Hashes hashes, const Options& options, std::uint64_t tag = 0) {
  Request request = chain(op, space, hashes, options.deadline, tag);
  if constexpr (requires { options.reuse; }) request.reuse = options.reuse;
  if constexpr (requires { options.prefetch; }) {
    request.wants_lease = options.lease;
    request.prefetch = options.prefetch;
  } else if constexpr (requires { options.lease; }) {
    request.lease = options.lease;
  }
  if constexpr (requires { options.memory_only; }) request.memory_only = options.memory_only;
  if constexpr (requires { options.token_ids; }) {
    request.token_ids = options.token_ids;
    request.extras = options.extras;
  }
  if constexpr (requires { options.segment_ends; }) {
    request.segment_ends = options.segment_ends;
    request.on_segment = options.on_segment;
    request.checksums = options.checksums;
  } else if constexpr (requires { options.checksums; }) {
    request.checksums_of_from = options.checksums;
  }
  if constexpr (requires { options.group_counts; }) request.group_counts = options.group_counts;
  if constexpr (requires { options.block_count_min; }) request.block_count_min = options.block_count_min;
  if constexpr (requires { options.tell_match; }) request.tell_match = options.tell_match;
  if constexpr (requires { options.control; }) request.trace = options.control.trace;
  return request;
}

}  // namespace request_of

class TypedClient : public BlockingClient {
 public:
  using BlockingClient::BlockingClient;
  using Time = std::chrono::microseconds;

  Result<Space> open(const NamespaceRecord& record, Time deadline) {
    return told(run({.op = Op::kOpen, .deadline = deadline, .record = &record}), &Completion::space);
  }
  Result<void> wait_open(Space space, Time deadline) {
    const Completion end = run({.op = Op::kWaitOpen, .space = space, .deadline = deadline});
    return end.error ? Result<void>(end.error) : Result<void>();
  }
  std::size_t block_bytes(Space space) const { return size_of(space).block_bytes; }
  Result<MatchResult> match(Space space, Hashes hashes, MatchOptions options) {
    return told(run(request_of::with_options(Op::kMatch, space, hashes, options)), &Completion::match);
  }
  Result<MissReport> why(Space space, Hashes hashes, Time deadline) {
    return with([&](Client& client) { return client.why(space, hashes, deadline); });
  }
  void release(Lease lease) { static_cast<void>(run({.op = Op::kRelease, .lease = lease})); }
  Result<GetResult> get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options) {
    if (options.first_block > 0) {
      return with([&](Client& client) { return client.get(space, hashes, blocks, options); });
    }
    Request request = request_of::with_options(Op::kGet, space, hashes, options);
    request.to = blocks;
    return told(run(request), &Completion::get);
  }
  Result<PutResult> put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options) {
    Request request = request_of::with_options(Op::kPut, space, hashes, options);
    request.from = blocks;
    return told(run(request), &Completion::put);
  }
  Result<SetMatchResult> match_set(Space set, Hashes hashes, MatchOptions options) {
    return told(run(request_of::with_options(Op::kMatchSet, set, hashes, options)), &SetResults::match);
  }
  Result<SetGetResult> get_set(Space set, Hashes hashes, TargetBlocks blocks, GetOptions options) {
    Request request = request_of::with_options(Op::kGetSet, set, hashes, options);
    request.to = blocks;
    return told(run(request), &SetResults::get);
  }
  Result<SetPutResult> put_set(Space set, Hashes hashes, SourceBlocks blocks, PutOptions options) {
    Request request = request_of::with_options(Op::kPutSet, set, hashes, options);
    request.from = blocks;
    return told(run(request), &SetResults::put);
  }
  Result<std::size_t> touch(Space space, Hashes hashes, Time deadline) {
    return told(run(request_of::chain(Op::kTouch, space, hashes, deadline)), &Completion::count);
  }
  Result<std::size_t> retain(Space space, Hashes hashes, Time deadline) {
    return told(run(request_of::chain(Op::kRetain, space, hashes, deadline)), &Completion::count);
  }
  Result<std::size_t> unretain(Space space, Hashes hashes, Time deadline) {
    return told(run(request_of::chain(Op::kUnretain, space, hashes, deadline)), &Completion::count);
  }
  Result<DropResult> drop(Space space, Hashes hashes, Time deadline) {
    return told(run(request_of::chain(Op::kDrop, space, hashes, deadline)), &Completion::drop);
  }
  Result<NamedContext> create_context(Space space, Hashes hashes, ContextOptions options) {
    return with([&](Client& client) { return client.create_context(space, hashes, options); });
  }
  Result<NamedContext> extend_context(std::string_view name, ContextTime life, Time deadline,
                                      std::optional<std::uint8_t> priority = std::nullopt) {
    return with([&](Client& client) { return client.extend_context(name, life, deadline, {}, priority); });
  }
  Result<NamedContext> delete_context(std::string_view name, Time deadline) {
    return with([&](Client& client) { return client.delete_context(name, deadline); });
  }
  Result<ContextContent> tell_context(std::string_view name, Time deadline) {
    return with([&](Client& client) { return client.tell_context(name, deadline); });
  }
  Result<ContextList> list_contexts(std::string_view name, Time deadline) {
    return with([&](Client& client) { return client.list_contexts(name, deadline); });
  }
  Result<ArchivedContext, Failure> export_context(std::string_view name, const std::string& file,
                                                  const ContextExportOptions& options) {
    return kv::export_context(*this, name, file, options);
  }
  Result<ArchivedContext, Failure> import_context(const std::string& file, const ContextImportOptions& options) {
    return kv::import_context(*this, file, options);
  }
  Result<std::vector<NodeAnswer>> ask(NodeQuestion question, Time deadline) {
    return with([&](Client& client) { return client.ask(question, deadline); });
  }
  Result<std::vector<std::chrono::nanoseconds>> ping(Time deadline) {
    return with([&](Client& client) { return client.ping(deadline); });
  }
  std::vector<NodeStatus> nodes() {
    const auto nodes = with([](Client& client) { return client.nodes(); });
    return nodes ? *nodes : std::vector<NodeStatus>();
  }
  std::string metrics_text() {
    const auto text = with([](Client& client) { return client.metrics_text(); });
    return text ? *text : std::string();
  }
  void tell_prefill_speed(double tokens_per_second) {
    static_cast<void>(with([&](Client& client) { client.tell_prefill_speed(tokens_per_second); }));
  }
  Result<std::size_t> lend(std::span<std::byte> memory, Time deadline) {
    return told(run({.op = Op::kLend, .deadline = deadline, .memory = memory}), &Completion::count);
  }
  Result<void> add_device_memory(DeviceMemory memory) {
    return with([&](Client& client) { return client.add_device_memory(memory); });
  }
  Result<void> remove_device_memory(std::span<std::byte> memory, Time deadline) {
    const Completion end = run({.op = Op::kRemoveDeviceMemory, .deadline = deadline, .memory = memory});
    return end.error ? Result<void>(end.error) : Result<void>();
  }
  bool is_quarantined(std::span<const std::byte> memory) {
    const auto is = with([&](Client& client) { return client.is_quarantined(memory); });
    return is && *is;
  }

 private:
  template <class T>
  static Result<T> told(const Completion& end, T Completion::*result) {
    return end.error ? Result<T>(end.error) : Result<T>(end.*result);
  }
  template <class T>
  static Result<T> told(const Completion& end, T SetResults::*result) {
    return end.error ? Result<T>(end.error) : Result<T>(end.sets.get()->*result);
  }
};

/// The options of a load: those of a get, and its own.
struct TypedLoad {
  std::chrono::microseconds deadline;
  std::size_t block_count_min = 1;
  bool tell_match = false;
  std::span<const std::uint64_t> segment_ends = {};
  SegmentCallback on_segment = {};
  bool memory_only = false;
  std::span<std::uint64_t> checksums = {};
};

class TypedQueue : public CompletionQueue {
 public:
  using CompletionQueue::CompletionQueue;
  using Time = std::chrono::microseconds;

  std::size_t block_bytes(Space space) const { return size_of(space).block_bytes; }
  Result<CallId> submit_open(const NamespaceRecord& record, Time deadline, std::uint64_t tag = 0) {
    return submit({.op = Op::kOpen, .deadline = deadline, .tag = tag, .record = &record});
  }
  Result<CallId> submit_wait_open(Space space, Time deadline, std::uint64_t tag = 0) {
    return submit({.op = Op::kWaitOpen, .space = space, .deadline = deadline, .tag = tag});
  }
  Result<CallId> submit_match(Space space, Hashes hashes, MatchOptions options, std::uint64_t tag = 0) {
    return submit(request_of::with_options(Op::kMatch, space, hashes, options, tag));
  }
  Result<CallId> submit_get(Space space, Hashes hashes, TargetBlocks blocks, GetOptions options,
                            std::uint64_t tag = 0) {
    return submit_to(Op::kGet, space, hashes, blocks, options, tag);
  }
  Result<CallId> submit_load(Space space, Hashes hashes, TargetBlocks blocks, TypedLoad options,
                             std::uint64_t tag = 0) {
    return submit_to(Op::kLoad, space, hashes, blocks, options, tag);
  }
  Result<CallId> submit_put(Space space, Hashes hashes, SourceBlocks blocks, PutOptions options,
                            std::uint64_t tag = 0) {
    return submit_from(Op::kPut, space, hashes, blocks, options, tag);
  }
  Result<CallId> submit_match_set(Space set, Hashes hashes, MatchOptions options, std::uint64_t tag = 0,
                                  SetLists lists = {}) {
    Request request = request_of::with_options(Op::kMatchSet, set, hashes, options, tag);
    request.lists = lists;
    return submit(request);
  }
  Result<CallId> submit_get_set(Space set, Hashes hashes, TargetBlocks blocks, GetOptions options,
                                std::uint64_t tag = 0) {
    return submit_to(Op::kGetSet, set, hashes, blocks, options, tag);
  }
  Result<CallId> submit_put_set(Space set, Hashes hashes, SourceBlocks blocks, PutOptions options,
                                std::uint64_t tag = 0) {
    return submit_from(Op::kPutSet, set, hashes, blocks, options, tag);
  }
  Result<CallId> submit_touch(Space space, Hashes hashes, Time deadline, std::uint64_t tag = 0) {
    return submit(request_of::chain(Op::kTouch, space, hashes, deadline, tag));
  }
  Result<CallId> submit_retain(Space space, Hashes hashes, Time deadline, std::uint64_t tag = 0) {
    return submit(request_of::chain(Op::kRetain, space, hashes, deadline, tag));
  }
  Result<CallId> submit_unretain(Space space, Hashes hashes, Time deadline, std::uint64_t tag = 0) {
    return submit(request_of::chain(Op::kUnretain, space, hashes, deadline, tag));
  }
  Result<CallId> submit_drop(Space space, Hashes hashes, Time deadline, std::uint64_t tag = 0) {
    return submit(request_of::chain(Op::kDrop, space, hashes, deadline, tag));
  }
  Result<CallId> submit_release(Lease lease, std::uint64_t tag = 0) {
    return submit({.op = Op::kRelease, .tag = tag, .lease = lease});
  }
  Result<CallId> submit_lend(std::span<std::byte> memory, Time deadline, std::uint64_t tag = 0) {
    return submit({.op = Op::kLend, .deadline = deadline, .tag = tag, .memory = memory});
  }
  Result<CallId> submit_remove_device_memory(std::span<std::byte> memory, Time deadline, std::uint64_t tag = 0) {
    return submit({.op = Op::kRemoveDeviceMemory, .deadline = deadline, .tag = tag, .memory = memory});
  }
  Result<CallId> submit_other(const Work& work, std::uint64_t tag = 0) { return submit({.tag = tag, .work = &work}); }

 private:
  template <class Options>
  Result<CallId> submit_to(Op op, Space space, Hashes hashes, TargetBlocks blocks, const Options& options,
                           std::uint64_t tag) {
    Request request = request_of::with_options(op, space, hashes, options, tag);
    request.to = blocks;
    return submit(request);
  }
  template <class Options>
  Result<CallId> submit_from(Op op, Space space, Hashes hashes, SourceBlocks blocks, const Options& options,
                             std::uint64_t tag) {
    Request request = request_of::with_options(op, space, hashes, options, tag);
    request.from = blocks;
    return submit(request);
  }
};

}  // namespace kv
