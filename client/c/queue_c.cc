// client/c/queue_c.cc: the non-blocking part of kvstore.h, over CompletionQueue. Exceptions stop here.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.h"
#include "client/c/c_arguments.h"
#include "client/c/c_handles.h"
#include "client/c/c_status.h"
#include "client/c/set_results.h"
#include "client/c/stats_json.h"

namespace kv {
namespace {

using c_api::fail, c_api::microseconds, c_api::status_of;

// On the stack, so that reaping does not allocate: completions cannot be put back if memory is short.
constexpr std::size_t kReapedAtOnce = 32;

// The numbers are public and cast, not translated. Comparing the last ones catches an insertion in one of the lists.
static_assert(KVS_VERB_OPEN == static_cast<int>(Verb::kOpen) && KVS_VERB_MATCH == static_cast<int>(Verb::kMatch) &&
              KVS_VERB_PUT == static_cast<int>(Verb::kPut) && KVS_VERB_STATS == static_cast<int>(Verb::kOther) &&
              KVS_VERB_MATCH_SET == static_cast<int>(Verb::kMatchSet) &&
              KVS_VERB_PUT_SET == static_cast<int>(Verb::kPutSet));
static_assert(KVS_EVENT_MATCHED == static_cast<int>(Completion::Kind::kMatched) &&
              KVS_EVENT_SEGMENT == static_cast<int>(Completion::Kind::kSegment));

/// Unlike in c_api.cc, a disabled client is allowed: earlier completions can still be reaped.
template <class Queue, class Body>
int guarded(Queue* queue, Body body) noexcept {
  if (queue == nullptr) return fail(KVS_BAD_REQUEST, "queue is NULL");
  return c_api::guarded([&] {
    if (queue->queue.is_forked()) return fail(make_error_code(Errc::kForked));
    return body(queue->queue);
  });
}

/// The status of a submit. `*call` is written before its completion is visible on the caller's thread, but another
/// thread may reap it first: use `tag` to tell calls apart.
int told(const CompletionQueue& queue, const Result<CallId>& submitted, kvs_call* call) {
  if (submitted) {
    if (call != nullptr) *call = static_cast<kvs_call>(*submitted);
    return KVS_OK;
  }
  if (queue.is_disabled()) return fail(KVS_INTERNAL, "the client is disabled after an internal error");
  return fail(submitted.error());
}

using ChainVerb = Result<CallId> (CompletionQueue::*)(Space, Hashes, std::chrono::microseconds, std::uint64_t);

int submit_chain(kvs_queue* queue, ChainVerb verb, kvs_space space, const kvs_hash* hashes, std::size_t count,
                 std::uint64_t deadline_us, std::uint64_t tag, kvs_call* call) noexcept {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const Hashes chain = c_api::read_chain(hashes, count);
    return told(calls, (calls.*verb)(Space{space}, chain, microseconds(deadline_us), tag), call);
  });
}

/// Requires an opened space, because bytes in flight are counted by its block size.
template <class Address>
auto read_blocks(const CompletionQueue& calls, kvs_space space, Address* blocks, std::size_t count) {
  return c_api::read_blocks(blocks, count, c_api::block_bytes_of(calls, space, "space"));
}

kvs_completion completion_of(const Completion& from, bool is_disabled) {
  kvs_completion to{};
  to.call = static_cast<kvs_call>(from.call);
  to.tag = from.tag;
  to.event = static_cast<int>(from.kind);
  to.verb = static_cast<int>(from.verb);
  // A disabled client ends its calls as unavailable, which would look like a node that may come back.
  to.status = is_disabled && from.error == Errc::kUnavailable ? KVS_INTERNAL : status_of(from.error);
  to.segment = from.segment;
  KV_ASSERT(from.call != CallId{} && from.verb >= Verb::kOpen && from.verb <= Verb::kPutSet);
  KV_ASSERT(from.kind != Completion::Kind::kMatched || from.verb == Verb::kLoad);
  KV_ASSERT(from.kind != Completion::Kind::kSegment || from.verb == Verb::kGet || from.verb == Verb::kLoad);
  switch (from.verb) {
    case Verb::kOpen: to.space = static_cast<kvs_space>(from.space); break;
    case Verb::kMatch: to.why = status_of(from.match.why); break;
    case Verb::kGet:
    case Verb::kLoad: to.why = status_of(from.get.why); break;
    case Verb::kPut:
      to.why = status_of(from.put.why);
      to.block_count = from.put.stored;
      to.already_stored = from.put.already_stored;
      to.refused = from.put.refused;
      break;
    case Verb::kMatchSet:
    case Verb::kGetSet:
    case Verb::kPutSet: {
      if (!from.sets) break;
      const SetResults& sets = *from.sets;
      to.why = status_of(from.verb == Verb::kMatchSet ? sets.match.why
                         : from.verb == Verb::kGetSet ? sets.get.why
                                                      : sets.put.why);
      // Only the result for this verb is filled, so one sum covers all three.
      to.block_count = sets.match.held_count + sets.get.landed_count + sets.put.stored;
      to.disk_block_count = sets.match.disk_count;
      to.disk_us = static_cast<std::uint64_t>(sets.match.disk_time.count());
      to.lease = static_cast<kvs_lease>(sets.match.lease);
      to.corrupt_count = sets.get.corrupt_count;
      to.already_stored = sets.put.already_stored;
      to.conflicts = sets.put.conflicts;
      to.refused = sets.put.refused;
      break;
    }
    case Verb::kDrop:
      to.block_count = from.drop.block_count;
      to.until_restart = from.drop.until_restart;
      break;
    default: to.block_count = from.count; break;
  }
  // A load is a match and then a get. Both its events report the match; block_count means found in the first event and
  // landed in the last, as set below.
  if (from.verb == Verb::kMatch || from.verb == Verb::kLoad) {
    to.block_count = to.matched_count = from.match.block_count;
    to.disk_block_count = from.match.disk_block_count;
    to.disk_us = static_cast<std::uint64_t>(from.match.disk_time.count());
    to.lease = static_cast<kvs_lease>(from.match.lease);
    to.partial_token_count = from.match.partial_token_count;
    std::memcpy(&to.partial_block, &from.match.partial_block, sizeof to.partial_block);
  }
  if (from.kind == Completion::Kind::kMatched) {
    to.why = status_of(from.match.why);
  } else if (from.verb == Verb::kGet || from.verb == Verb::kLoad) {
    to.block_count = from.get.block_count;
    to.corrupt_count = from.get.corrupt_count;
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

void check_list(const void* completions, std::size_t size, std::size_t capacity, const std::size_t* count) {
  if ((completions == nullptr && capacity > 0) || count == nullptr) c_api::refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  // Up to block_count, the fields name the call and its outcome. Above 64 KiB it is no struct but a misplaced count.
  if (size < offsetof(kvs_completion, block_count) || size > 65536) {
    c_api::refuse(KVS_BAD_REQUEST, "completion_size is not that of a kvs_completion");
  }
}

/// kvs_stats() as a coroutine on the I/O thread, writing to the caller's memory.
Async<std::size_t> write_stats(Client& client, CallControl control, std::chrono::microseconds deadline, char* json,
                               std::size_t capacity, std::size_t* length) {
  // When cancelled, it ends only after the client's call: `json` is not written after the completion.
  NodeQuestion question{.path = "/stats.json"};
  const auto stats = co_await client.ask(std::move(question), deadline, control);
  if (!stats) co_return stats.error();
  const std::string text = c_api::stats_json(*stats, client.numa());
  *length = text.size();
  if (text.size() + 1 > capacity) co_return error_code(Errc::kTooLarge);
  std::memcpy(json, text.c_str(), text.size() + 1);
  co_return text.size();
}

}  // namespace
}  // namespace kv

using namespace kv;

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

int kvs_submit_open(kvs_queue* queue, const char* record_text, uint64_t deadline_us, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    if (record_text == nullptr) return fail(KVS_BAD_REQUEST, "record is NULL");
    auto record = c_api::parse_record(record_text);
    if (!record) return fail(KVS_BAD_REQUEST, record.error().text);
    return told(calls, calls.submit_open(std::move(*record), microseconds(deadline_us), tag), call);
  });
}

int kvs_submit_wait_open(kvs_queue* queue, kvs_space space, uint64_t deadline_us, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    return told(calls, calls.submit_wait_open(Space{space}, microseconds(deadline_us), tag), call);
  });
}

int kvs_submit_match(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                     const kvs_match_options* given, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const MatchOptions options = c_api::read_match(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    return told(calls, calls.submit_match(Space{space}, chain, options, tag), call);
  });
}

int kvs_submit_get(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, void* const* blocks,
                   const kvs_get_options* given, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const GetOptions options = c_api::read_get(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto to = read_blocks(calls, space, blocks, count);
    return told(calls, calls.submit_get(Space{space}, chain, to, options, tag), call);
  });
}

int kvs_submit_load(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, void* const* blocks,
                    const kvs_load_options* given, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const LoadOptions options = c_api::read_load(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto to = read_blocks(calls, space, blocks, count);
    return told(calls, calls.submit_load(Space{space}, chain, to, options, tag), call);
  });
}

int kvs_submit_put(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, const void* const* blocks,
                   const kvs_put_options* given, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const PutOptions options = c_api::read_put(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto from = read_blocks(calls, space, blocks, count);
    return told(calls, calls.submit_put(Space{space}, chain, from, options, tag), call);
  });
}

int kvs_submit_match_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count,
                         const kvs_match_set_options* given, uint8_t* held, uint32_t* block_bytes, uint64_t tag,
                         kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const SetMatchOptions options = c_api::read_match_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    // Called once at the call's end, also after a failure: the lists then say "not held" instead of old content.
    // Without a capture: the queue keeps a function pointer and addresses only.
    const auto write = [](const SetLists& lists, const Completion& end) {
      const SetMatchResult none;
      c_api::write_held(end.sets ? end.sets->match : none, lists.count, static_cast<std::uint8_t*>(lists.first),
                        static_cast<std::uint32_t*>(lists.second));
    };
    const SetLists lists{.write = write, .first = held, .second = block_bytes, .count = count};
    return told(calls, calls.submit_match_set(Space{set}, names, options, tag, lists), call);
  });
}

int kvs_submit_get_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count, void* const* blocks,
                       const size_t* rooms, const kvs_get_set_options* given, kvs_set_block* landed, uint64_t tag,
                       kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const SetGetOptions options = c_api::read_get_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    const std::size_t bytes_max = c_api::block_bytes_of(calls, set, "set");
    const auto to = c_api::read_rooms(blocks, rooms, count, bytes_max);
    const auto write = [](const SetLists& lists, const Completion& end) {
      const SetGetResult none;
      c_api::write_landed(end.sets ? end.sets->get : none, end.error, lists.count,
                          static_cast<kvs_set_block*>(lists.first));
    };
    const SetLists lists{.write = write, .first = landed, .count = count};
    return told(calls, calls.submit_get_set(Space{set}, names, to, options, tag, lists), call);
  });
}

int kvs_submit_put_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count, const void* const* blocks,
                       const size_t* lengths, const kvs_put_set_options* given, uint8_t* outcomes, uint64_t tag,
                       kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const SetPutOptions options = c_api::read_put_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    const std::size_t bytes_max = c_api::block_bytes_of(calls, set, "set");
    const auto from = c_api::read_lengths(blocks, lengths, count, bytes_max);
    const auto write = [](const SetLists& lists, const Completion& end) {
      const SetPutResult none;
      c_api::write_outcomes(end.sets ? end.sets->put : none, lists.count, static_cast<std::uint8_t*>(lists.first));
    };
    const SetLists lists{.write = write, .first = outcomes, .count = count};
    return told(calls, calls.submit_put_set(Space{set}, names, from, options, tag, lists), call);
  });
}

int kvs_submit_touch(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                     uint64_t tag, kvs_call* call) {
  return submit_chain(queue, &CompletionQueue::submit_touch, space, hashes, count, deadline_us, tag, call);
}
int kvs_submit_pin(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                   uint64_t tag, kvs_call* call) {
  return submit_chain(queue, &CompletionQueue::submit_retain, space, hashes, count, deadline_us, tag, call);
}
int kvs_submit_unpin(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                     uint64_t tag, kvs_call* call) {
  return submit_chain(queue, &CompletionQueue::submit_unretain, space, hashes, count, deadline_us, tag, call);
}
int kvs_submit_drop(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                    uint64_t tag, kvs_call* call) {
  return submit_chain(queue, &CompletionQueue::submit_drop, space, hashes, count, deadline_us, tag, call);
}

// Without a deadline: a release has no answer to wait for, and a lost one still ends with its lease.
int kvs_submit_release(kvs_queue* queue, kvs_lease lease, uint64_t tag, kvs_call* call) {
  return guarded(
      queue, [&](CompletionQueue& calls) -> int { return told(calls, calls.submit_release(Lease{lease}, tag), call); });
}

int kvs_submit_lend(kvs_queue* queue, void* memory, size_t bytes, uint64_t deadline_us, uint64_t tag, kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const std::span<std::byte> lent(static_cast<std::byte*>(memory), bytes);
    return told(calls, calls.submit_lend(lent, microseconds(deadline_us), tag), call);
  });
}

int kvs_submit_remove_device_memory(kvs_queue* queue, void* address, uint64_t bytes, uint64_t deadline_us, uint64_t tag,
                                    kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    const std::span<std::byte> removed(static_cast<std::byte*>(address), bytes);
    return told(calls, calls.submit_remove_device_memory(removed, microseconds(deadline_us), tag), call);
  });
}

int kvs_submit_stats(kvs_queue* queue, uint64_t deadline_us, char* json, size_t capacity, size_t* length, uint64_t tag,
                     kvs_call* call) {
  return guarded(queue, [&](CompletionQueue& calls) -> int {
    // Checked now: at the end of the call only the completion could report it.
    if (length == nullptr || (json == nullptr && capacity > 0)) return fail(KVS_BAD_REQUEST, "a pointer is NULL");
    const auto deadline = microseconds(deadline_us);
    const auto work = [deadline, json, capacity, length](Client& client, CallControl control) {
      return write_stats(client, control, deadline, json, capacity, length);
    };
    return told(calls, calls.submit_other(work, tag), call);
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
    const auto until = std::chrono::steady_clock::now() + microseconds(timeout_us);
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
        write_completion(completion_of(some[i], calls.is_disabled()), completions, completion_size, (*count)++);
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
    const auto waited = calls.wait(named, count_min, microseconds(timeout_us), ended);
    if (!waited) return fail(waited.error());
    KV_ASSERT(*waited <= call_count);
    for (std::size_t i = 0; i < *waited; ++i) {
      write_completion(completion_of(ended[i], calls.is_disabled()), completions, completion_size, i);
    }
    *count = *waited;
    return KVS_OK;
  });
}
