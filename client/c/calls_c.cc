// client/c/calls_c.cc: the calls of kvstore.h: kvs_run over BlockingClient, the rest over CompletionQueue. Exceptions
// stop here.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.h"
#include "client/archive/archive_transfer.h"
#include "client/c/c_handles.h"
#include "client/c/c_status.h"
#include "client/c/read_request.h"
#include "client/c/request_rules.h"
#include "client/c/stats_json.h"

namespace kv {
namespace {

using c_api::fail, c_api::guarded, c_api::status_of;

// On the stack, so that reaping does not allocate: completions cannot be put back if memory is short.
constexpr std::size_t kReapedAtOnce = 32;

static_assert(KVS_EVENT_MATCHED == static_cast<int>(Completion::Kind::kMatched) &&
              KVS_EVENT_SEGMENT == static_cast<int>(Completion::Kind::kSegment));

std::chrono::microseconds timeout_of(std::uint64_t count) {
  return std::chrono::microseconds(std::min<std::uint64_t>(count, INT64_MAX / 2000));  // as nanoseconds too
}

void write_set(const Completion& from, kvs_completion& to) {
  if (!from.sets) return;
  const SetResults& sets = *from.sets;
  to.why = status_of(from.op == Op::kMatchSet ? sets.match.why : from.op == Op::kGetSet ? sets.get.why : sets.put.why);
  // Only the result for this operation is filled, so one sum covers all three.
  to.block_count = sets.match.held_count + sets.get.landed_count + sets.put.stored;
  to.disk_block_count = sets.match.disk_count;
  to.disk_us = static_cast<std::uint64_t>(sets.match.disk_time.count());
  to.lease = static_cast<kvs_lease>(sets.match.lease);
  to.corrupt_count = sets.get.corrupt_count;
  to.already_stored = sets.put.already_stored;
  to.conflicts = sets.put.conflicts;
  to.refused = sets.put.refused;
}

void write_match(const MatchResult& from, kvs_completion& to) {
  KV_ASSERT(from.disk_block_count <= from.block_count);
  to.why = status_of(from.why);
  to.block_count = to.matched_count = from.block_count;
  to.disk_block_count = from.disk_block_count;
  to.disk_us = static_cast<std::uint64_t>(from.disk_time.count());
  to.lease = static_cast<kvs_lease>(from.lease);
  to.partial_token_count = from.partial_token_count;
  std::memcpy(&to.partial_block, &from.partial_block, sizeof to.partial_block);
}

void write_get(const GetResult& from, kvs_completion& to) {
  to.why = status_of(from.why);
  to.block_count = from.block_count;
  to.corrupt_count = from.corrupt_count;
}

/// `calls`: the queue or client that made the call.
template <class Calls>
kvs_completion completion_of(const Completion& from, const Calls& calls) {
  kvs_completion to{};
  to.call = static_cast<kvs_call>(from.call);
  to.tag = from.tag;
  to.event = static_cast<int>(from.kind);
  to.op = static_cast<int>(from.op);
  // A disabled client ends its calls as unavailable, which would look like a node that may come back.
  to.status = from.error == Errc::kUnavailable && calls.is_disabled() ? KVS_INTERNAL : status_of(from.error);
  to.segment = from.segment;
  KV_ASSERT(from.kind != Completion::Kind::kMatched || from.op == Op::kLoad);
  KV_ASSERT(from.kind != Completion::Kind::kSegment || from.op == Op::kGet || from.op == Op::kLoad);
  switch (from.op) {
    case Op::kOpen:
      to.space = static_cast<kvs_space>(from.space);
      if (!from.error) to.block_bytes = calls.size_of(from.space).block_bytes;
      break;
    case Op::kMatch: write_match(from.match, to); break;
    case Op::kGet: write_get(from.get, to); break;
    case Op::kLoad:
      // A match and then a get. Both its events report the match; block_count means found in the first and landed in
      // the last.
      write_match(from.match, to);
      if (from.kind != Completion::Kind::kMatched) write_get(from.get, to);
      break;
    case Op::kPut:
      to.why = status_of(from.put.why);
      to.block_count = from.put.stored;
      to.already_stored = from.put.already_stored;
      to.refused = from.put.refused;
      break;
    case Op::kMatchSet:
    case Op::kGetSet:
    case Op::kPutSet: write_set(from, to); break;
    case Op::kDrop:
      to.block_count = from.drop.block_count;
      to.until_restart = from.drop.until_restart;
      break;
    case Op::kTouch:
    case Op::kRetain:
    case Op::kUnretain:
    case Op::kLend: to.block_count = from.count; break;
    default:
      to.length = from.count & ~c_api::kDoesNotFit;
      if (from.count != to.length) to.status = KVS_TOO_LARGE;
      break;
  }
  return to;
}

/// Writes the caller's `index`-th completion, whose size may be another version's.
void write_completion(const kvs_completion& from, void* completions, std::size_t size, std::size_t index) {
  // A newer caller's additional fields are zeroed. An older caller's elements are shorter: its fields come first.
  std::byte* const to = static_cast<std::byte*>(completions) + index * size;
  std::memcpy(to, &from, std::min(size, sizeof from));
  if (size > sizeof from) std::memset(to + sizeof from, 0, size - sizeof from);
}

/// Up to block_count, the fields name the call and its outcome.
void check_completion_size(std::size_t size) {
  c_api::check_struct_size("completion_size", size, offsetof(kvs_completion, block_count));
}

void check_list(const void* completions, std::size_t size, std::size_t capacity, const std::size_t* count) {
  if (completions == nullptr && capacity > 0) c_api::refuse(KVS_BAD_REQUEST, "completions is NULL");
  if (count == nullptr) c_api::refuse(KVS_BAD_REQUEST, "count is NULL");
  check_completion_size(size);
}

/// Export or import: the file is the caller's thread's work. Writes the answer.
int run_of_file(BlockingClient& client, const c_api::ReadRequest& read, kvs_completion& to) {
  const kvs_request& given = read.given();
  const bool is_import = given.op == KVS_OP_CONTEXT_IMPORT;
  to.tag = given.tag;
  to.op = static_cast<int>(given.op);
  const auto archived = is_import ? import_context(client, given.file, read.import_options())
                                  : export_context(client, given.name, given.file, read.export_options());
  if (!archived) return fail(status_of(archived.error().code), archived.error().text);
  return c_api::write_text(c_api::archived_json(*archived, is_import), given.json, given.json_capacity, &to.length);
}

int run(BlockingClient& client, const kvs_request* request, kvs_completion& to) {
  const c_api::ReadRequest read(request, client);
  if (read.is_of_file()) return run_of_file(client, read, to);
  const Completion end = client.run(read.request());
  to = completion_of(end, client);
  if (end.error) return fail(to.status, to.status == KVS_INTERNAL ? c_api::kDisabledText : end.error.message());
  if (to.status != KVS_TOO_LARGE) return to.status;
  return fail(KVS_TOO_LARGE, "json_capacity: " + std::to_string(read.given().json_capacity) + ", the answer needs " +
                                 std::to_string(to.length + 1));
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_run(kvs_client* client, const kvs_request* request, kvs_completion* completion, size_t completion_size) {
  const bool is_wanted = completion != nullptr || completion_size != 0;
  kvs_completion to{};
  const int status = guarded(client, [&](BlockingClient& calls) -> int {
    if (is_wanted) {
      check_completion_size(completion_size);
      if (completion == nullptr) c_api::refuse(KVS_BAD_REQUEST, "completion is NULL, allowed with completion_size 0");
    }
    return run(calls, request, to);
  });
  to.status = status;
  if (completion != nullptr && completion_size >= offsetof(kvs_completion, block_count) && completion_size <= 65536) {
    write_completion(to, completion, completion_size, 0);
  }
  return status;
}

int kvs_queue_open(kvs_client* client, const kvs_queue_options* given, kvs_queue** queue) {
  return c_api::guarded([&]() -> int {
    if (client == nullptr || queue == nullptr) return fail(KVS_BAD_REQUEST, "client or queue is NULL");
    *queue = nullptr;
    if (client->client.is_forked()) return fail(make_error_code(Errc::kForked));
    const auto options = c_api::read_struct(given);
    CompletionQueueOptions own;
    if (options.calls_max != 0) own.calls_max = options.calls_max;
    if (options.bytes_max != 0) own.bytes_max = options.bytes_max;
    own.wait_while_away = options.wait_while_away != 0;
    try {
      // As in kvs_client_open(): not internal errors, but a bad option, or a descriptor denied to the process.
      *queue = new kvs_queue(client->client, own);
    } catch (const std::invalid_argument& e) {
      return fail(KVS_BAD_REQUEST, e.what());
    } catch (const std::system_error& e) {
      return fail(KVS_SYSTEM, e.what());
    }
    return KVS_OK;
  });
}

void kvs_queue_close(kvs_queue* queue) {
  try {
    delete queue;  // in a forked child: only discards it
  } catch (...) {
  }
}

int kvs_queue_shutdown(kvs_queue* queue) {
  return guarded(queue, [](CompletionQueue& calls) -> int {
    calls.shutdown();
    return KVS_OK;
  });
}

int kvs_queue_fd(const kvs_queue* queue) { return queue == nullptr ? -1 : queue->queue.fd(); }

int kvs_queue_in_flight(const kvs_queue* queue, size_t* calls, uint64_t* bytes) {
  return guarded(queue, [&](const CompletionQueue& in_flight) -> int {
    if (calls != nullptr) *calls = in_flight.calls_in_flight();
    if (bytes != nullptr) *bytes = in_flight.bytes_in_flight();
    return KVS_OK;
  });
}

int kvs_submit(kvs_queue* queue, const kvs_request* request, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const c_api::ReadRequest read(request, calls);
    if (read.is_of_file()) {
      return fail(KVS_UNSUPPORTED, "op: " + std::to_string(read.given().op) + ", " + c_api::op_name(read.given().op) +
                                       " is allowed for kvs_run only");
    }
    const auto submitted = calls.submit(read.request());
    if (!submitted) {
      return calls.is_disabled() ? fail(KVS_INTERNAL, c_api::kDisabledText) : fail(submitted.error());
    }
    // Written before the call's completion is visible on the caller's thread, but another thread may reap it first: use
    // `tag` to tell calls apart.
    if (call != nullptr) *call = static_cast<kvs_call>(*submitted);
    return KVS_OK;
  });
}

int kvs_cancel(kvs_queue* queue, kvs_call call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const auto cancelled = calls.cancel(CallId{call});
    return cancelled ? KVS_OK : fail(cancelled.error());
  });
}

int kvs_reap(kvs_queue* queue, kvs_completion* completions, size_t completion_size, size_t capacity, size_t count_min,
             uint64_t timeout_us, size_t* count) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    check_list(completions, completion_size, capacity, count);
    *count = 0;
    const std::size_t wanted = std::min(count_min, capacity);
    // The timeout covers the whole call, which may take several rounds.
    const auto until = std::chrono::steady_clock::now() + timeout_of(timeout_us);
    std::array<Completion, kReapedAtOnce> some;
    while (*count < capacity) {
      const std::size_t room = std::min(capacity - *count, some.size());
      // A round waits only until count_min is reached; then it takes completions that are ready.
      const std::size_t missing = wanted - std::min(wanted, *count);
      const auto left = missing == 0
                            // Rounded up: rounding less than a microsecond down would poll without waiting.
                            ? std::chrono::microseconds(0)
                            : std::chrono::ceil<std::chrono::microseconds>(until - std::chrono::steady_clock::now());
      const auto reaped = calls.reap(std::span(some).first(room), missing, left);
      // `*count` already counts the written completions, which must not be lost.
      if (!reaped) return fail(reaped.error());
      KV_ASSERT(*reaped <= room);
      for (std::size_t i = 0; i < *reaped; ++i) {
        write_completion(completion_of(some[i], calls), completions, completion_size, (*count)++);
      }
      if (*reaped < room) break;  // the queue is empty, or time is up
    }
    return KVS_OK;
  });
}

int kvs_wait(kvs_queue* queue, const kvs_call* names, size_t call_count, size_t count_min, uint64_t timeout_us,
             kvs_completion* completions, size_t completion_size, size_t* count) {
  static_assert(sizeof(kvs_call) == sizeof(CallId) && alignof(kvs_call) == alignof(CallId));
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    check_list(completions, completion_size, call_count, count);
    *count = 0;
    if (names == nullptr && call_count > 0) return fail(KVS_BAD_REQUEST, "calls is NULL");
    // Before waiting: if memory is short, no completion is lost.
    std::vector<Completion> ended(call_count);
    const std::span<const CallId> named(reinterpret_cast<const CallId*>(names), call_count);
    const auto waited = calls.wait(named, count_min, timeout_of(timeout_us), ended);
    if (!waited) return fail(waited.error());
    KV_ASSERT(*waited <= call_count);
    for (std::size_t i = 0; i < *waited; ++i) {
      write_completion(completion_of(ended[i], calls), completions, completion_size, i);
    }
    *count = *waited;
    return KVS_OK;
  });
}
