#include "client/queue/serve_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/assert.h"
#include "client/queue/completions.h"
#include "client/thread/client_thread.h"

namespace kv {
namespace {

/// Takes over a call's result. Returns as serve_call().
template <class T>
error_code keep(Result<T>&& result, T& to) {
  if (!result) return result.error();
  to = *std::move(result);
  if constexpr (requires { to.why; }) return to.why == Errc::kCancelled ? to.why : error_code();
  return {};
}
template <class T>
error_code keep(Result<T>&& result, T SetResults::*member, Completion& end) {
  if (!result) return result.error();
  SetResults sets;
  const error_code error = keep(std::move(result), sets.*member);
  end.sets = std::make_shared<const SetResults>(std::move(sets));
  return error;
}

/// The end of a call whose deadline passed before any node was asked.
error_code end_late(Op op, std::size_t count, Completion& end) {
  const error_code why = asio::error::timed_out;
  SetResults sets;
  switch (op) {
    case Op::kMatch:
    case Op::kGet:
    case Op::kLoad:
    case Op::kPut:
      end.match.why = end.get.why = end.put.why = why;
      end.put.refused = count;
      return {};
    case Op::kMatchSet:
      sets.match.held.resize(count, Held::kNowhere);
      sets.match.block_bytes.resize(count, 0);
      sets.match.why = why;
      break;
    case Op::kGetSet:
      sets.get.blocks.resize(count, {.why = why});
      sets.get.why = why;
      break;
    case Op::kPutSet:
      sets.put.blocks.resize(count, SetPutBlock::kRefused);
      sets.put.refused = count;
      sets.put.why = why;
      break;
    default: return why;
  }
  end.sets = std::make_shared<const SetResults>(std::move(sets));
  return {};
}

std::chrono::microseconds time_left(const CallEntry& entry) {
  return std::chrono::duration_cast<std::chrono::microseconds>(entry.until - std::chrono::steady_clock::now());
}

GetOptions get_options(const Request& request, std::chrono::microseconds left, CallControl control) {
  return {.deadline = left,
          .lease = request.lease,
          .segment_ends = request.segment_ends,
          .on_segment = request.on_segment,
          .memory_only = request.memory_only,
          .checksums = request.checksums,
          .control = control,
          .group_counts = request.group_counts};
}

/// Matches, then gets the found blocks.
asio::awaitable<error_code> load(Client& client, CallEntry& entry, CallControl control) {
  const Request& request = entry.request;
  Completion& end = entry.end;
  const MatchOptions wanted{.deadline = std::max(time_left(entry), std::chrono::microseconds(0)),
                            .lease = true,  // found blocks stay until the get, and are not searched twice
                            .prefetch = !request.memory_only,
                            .reuse = request.reuse,
                            .control = control};
  const auto match = co_await client.match(request.space, request.hashes, wanted);
  if (!match) co_return match.error();
  const Lease lease = match->lease;
  const std::size_t found = match->block_count;
  KV_ASSERT(found <= request.hashes.size());
  end.match = *match;
  end.match.lease = Lease{};  // used up here
  end.get.why = match->why;
  if (request.tell_match && entry.waiter == nullptr) entry.completions->tell_matched(entry, end.match);
  if (control.is_cancelled()) end.get.why = Errc::kCancelled;
  if (end.get.why == Errc::kCancelled || found < std::max<std::size_t>(request.block_count_min, 1)) {
    client.release(lease);
    co_return end.get.why == Errc::kCancelled ? end.get.why : error_code();
  }
  auto given = get_options(request, std::max(time_left(entry), std::chrono::microseconds(0)), control);
  given.lease = lease;
  given.checksums = given.checksums.first(given.checksums.size() / request.hashes.size() * found);
  const auto got = co_await client.get(request.space, request.hashes.first(found), request.to.first(found), given);
  if (!got) {
    client.release(lease);  // it was refused before it took the lease
    co_return got.error();
  }
  end.get = *got;
  if (got->block_count == found && !got->why) end.get.why = match->why;  // why there are not more
  co_return end.get.why == Errc::kCancelled ? end.get.why : error_code();
}

/// Calls on a list of hashes.
asio::awaitable<error_code> serve_list(Client& client, CallEntry& entry, std::chrono::microseconds left,
                                       CallControl control) {
  const Request& request = entry.request;
  const Space space = request.space;
  const Hashes hashes = request.hashes;
  Completion& end = entry.end;
  const MatchOptions match{.deadline = left,
                           .lease = request.wants_lease,
                           .prefetch = request.prefetch,
                           .token_ids = request.token_ids,
                           .extras = request.extras,
                           .reuse = request.reuse,
                           .control = control,
                           .group_counts = request.group_counts};
  const GetOptions get = get_options(request, left, control);
  const PutOptions put{.deadline = left,
                       .token_ids = request.token_ids,
                       .extras = request.extras,
                       .checksums = request.checksums_of_from,
                       .reuse = request.reuse,
                       .control = control,
                       .group_counts = request.group_counts};
  switch (request.op) {
    case Op::kMatch: co_return keep(co_await client.match(space, hashes, match), end.match);
    case Op::kGet: co_return keep(co_await client.get(space, hashes, request.to, get), end.get);
    case Op::kLoad: {
      const error_code error = co_await load(client, entry, control);
      co_return error;
    }
    case Op::kPut: co_return keep(co_await client.put(space, hashes, request.from, put), end.put);
    case Op::kMatchSet: co_return keep(co_await client.match_set(space, hashes, match), &SetResults::match, end);
    case Op::kGetSet: co_return keep(co_await client.get_set(space, hashes, request.to, get), &SetResults::get, end);
    case Op::kPutSet: co_return keep(co_await client.put_set(space, hashes, request.from, put), &SetResults::put, end);
    case Op::kTouch: co_return keep(co_await client.touch(space, hashes, left, control), end.count);
    case Op::kRetain: co_return keep(co_await client.retain(space, hashes, left, control), end.count);
    case Op::kUnretain: co_return keep(co_await client.unretain(space, hashes, left, control), end.count);
    case Op::kDrop: co_return keep(co_await client.drop(space, hashes, left, control), end.drop);
    default: co_return Errc::kBadRequest;  // without `work`
  }
}

}  // namespace

asio::awaitable<error_code> serve_call(ClientThread& thread, CallEntry& entry, bool waits_while_away) {
  const Request& request = entry.request;
  Client& client = thread.client();
  Completion& end = entry.end;
  const bool is_late = time_left(entry) <= std::chrono::microseconds(0);
  const auto left = std::max(time_left(entry), std::chrono::microseconds(0));
  CallControl control;
  control.at_once = !waits_while_away;
  control.cancellation = &*entry.cancellation;
  control.trace = request.trace;
  if (control.is_cancelled()) co_return Errc::kCancelled;
  if (request.work != nullptr) {
    auto made = (*request.work)(client, control);
    auto done = co_await std::move(made);
    co_return keep(std::move(done), end.count);
  }
  if (request.op == Op::kRelease) {
    client.release(request.lease);
    co_return error_code();
  }
  if (request.op == Op::kOpen) {
    if (request.record == nullptr) co_return Errc::kBadRequest;
    control.at_once = false;  // may wait for a node until its deadline
    NamespaceRecord record = *request.record;
    auto opened = co_await thread.open(std::move(record), left, control);
    co_return keep(std::move(opened), end.space);
  }
  // The call's turn came too late. Asking the nodes would count against them.
  if (is_late && entry.waiter == nullptr) co_return end_late(request.op, request.hashes.size(), end);
  switch (request.op) {
    case Op::kWaitOpen: {
      control.at_once = false;
      const auto waited = co_await client.wait_open(request.space, left, control);
      co_return waited ? error_code() : waited.error();
    }
    case Op::kLend: co_return keep(co_await client.lend(request.memory, left, control), end.count);
    case Op::kRemoveDeviceMemory: {
      const auto removed = co_await client.remove_device_memory(request.memory, left, control);
      co_return removed ? error_code() : removed.error();
    }
    default: {
      const error_code error = co_await serve_list(client, entry, left, control);
      co_return error;
    }
  }
}

std::string reason_in(const Completion& end, Client& client) {
  error_code why = end.error;
  for (const error_code& each : {end.match.why, end.get.why, end.put.why}) why = why ? why : each;
  if (!why && end.sets) {
    for (const error_code& each : {end.sets->match.why, end.sets->get.why, end.sets->put.why}) why = why ? why : each;
  }
  try {
    return why ? client.reason_of(why) : std::string();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace kv
