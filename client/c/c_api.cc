// client/c/c_api.cc: kvstore.h over BlockingClient. Exceptions stop here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "client/blocking_client.h"
#include "client/c/c_arguments.h"
#include "client/c/c_handles.h"
#include "client/c/c_status.h"
#include "client/c/set_results.h"
#include "client/c/stats_json.h"
#include "client/kvstore.h"
#include "transport/tls/tls_identity.h"

namespace kv {
namespace {

using c_api::fail, c_api::microseconds, c_api::parse_record, c_api::read_struct, c_api::refuse, c_api::status_of,
    c_api::write_struct;

/// Runs `body`, which returns a status; turns exceptions into one. Every call that needs a client goes through here.
/// Two states are refused first: a child of fork() lacks the I/O thread, so a call would wait for ever; a disabled
/// client has failed an assertion, so its state cannot be trusted.
template <class Body>
int guarded(kvs_client* client, Body body) noexcept {
  if (client == nullptr) return fail(KVS_BAD_REQUEST, "client is NULL");
  return c_api::guarded([&] {
    if (client->client.is_forked()) return fail(make_error_code(Errc::kForked));
    if (client->client.is_disabled()) return fail(KVS_INTERNAL, "the client is disabled after an internal error");
    // If this call failed the assertion, the I/O thread ended it as unavailable, which invites a useless retry.
    const int status = body(client->client);
    if (status != KVS_OK && client->client.is_disabled()) {
      return fail(KVS_INTERNAL, "the client is disabled after an internal error");
    }
    return status;
  });
}

/// Calls with hashes in, and a count of blocks out; a failure leaves `*blocks` unchanged, for callers without checks.
using CountVerb = Result<std::size_t> (BlockingClient::*)(Space, Hashes, std::chrono::microseconds);

int count_blocks(kvs_client* client, CountVerb verb, kvs_space space, const kvs_hash* hashes, std::size_t count,
                 std::uint64_t deadline_us, std::uint64_t* blocks) noexcept {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const auto done = (blocking.*verb)(Space{space}, c_api::read_chain(hashes, count), microseconds(deadline_us));
    if (!done) return fail(done.error());
    if (blocks != nullptr) *blocks = *done;
    return KVS_OK;
  });
}

int told(const Result<void>& done) { return done ? KVS_OK : fail(done.error()); }

template <class T>
int write_json(const Result<T>& answer, std::string (*json_of)(const T&), char* json, std::size_t capacity,
               std::size_t* length) {
  return answer ? c_api::write_text(json_of(*answer), json, capacity, length) : fail(answer.error());
}

/// Zero always means "not given", since an older caller's struct reads as zeros. ClientConfig has the defaults.
ClientConfig config_of(const kvs_options& options) {
  if (options.nodes == nullptr && options.node_count > 0) refuse(KVS_BAD_REQUEST, "nodes is NULL");
  ClientConfig config;
  for (std::size_t i = 0; i < options.node_count; ++i) {
    const kvs_node& node = options.nodes[i];
    if (node.endpoint == nullptr) refuse(KVS_BAD_REQUEST, "nodes: an endpoint is NULL");
    NodeConfig& added = config.nodes.emplace_back();
    added.endpoint = node.endpoint;
    if (node.name != nullptr) added.name = node.name;
    if (node.weight != 0) added.weight = node.weight;
  }
  if (options.identity != nullptr) config.identity = options.identity;
  if (options.connections_per_node != 0) config.connections_per_node = options.connections_per_node;
  if (options.calls_max != 0) config.calls_max = options.calls_max;
  if (options.connect_timeout_us != 0) config.connect_timeout = microseconds(options.connect_timeout_us);
  if (options.region_bytes_max != 0) config.region_bytes_max = options.region_bytes_max;
  if (options.rdma_off != 0) config.rdma = ClientConfig::Rdma::kOff;
  if (options.rdma_devices != nullptr) {
    // Spaces around a name are dropped. The client refuses an empty name, with the field's name.
    std::istringstream names(options.rdma_devices);
    for (std::string name; std::getline(names >> std::ws, name, ',');) {
      name.erase(name.find_last_not_of(' ') + 1);
      config.rdma_devices.push_back(name);
    }
  }
  config.rdma_lanes = options.rdma_lanes;
  if (options.rdma_messages_off != 0) config.rdma_messages = 0;
  config.rdma_traffic_class = options.rdma_traffic_class;
  if (options.extent_blocks != 0) config.extent_blocks = options.extent_blocks;
  for (const auto& [given_file, to] :
       {std::pair(options.tls_cert_file, &config.tls.cert_file), std::pair(options.tls_key_file, &config.tls.key_file),
        std::pair(options.tls_ca_file, &config.tls.ca_file), std::pair(options.tls_crl_file, &config.tls.crl_file),
        std::pair(options.tls_server_name, &config.tls.server_name)}) {
    if (given_file != nullptr) *to = given_file;
  }
  if (options.tls_names != nullptr) config.tls.node_names = split_patterns(options.tls_names);
  if (options.token != nullptr) config.token = Secret(options.token);
  if (options.token_file != nullptr) config.token_file = options.token_file;
  if (options.hedge_share != 0) config.hedge_share = std::max(options.hedge_share, 0.0);
  if (options.hedge_after_max_us != 0) config.hedge_after_max = microseconds(options.hedge_after_max_us);
  if (options.hedge_after_min_us != 0) config.hedge_after_min = microseconds(options.hedge_after_min_us);
  if (options.zone != nullptr) config.zone = options.zone;
  if (options.numa_nodes != nullptr) config.numa_nodes = options.numa_nodes;
  return config;
}

}  // namespace
}  // namespace kv

using namespace kv;

uint32_t kvs_abi_version(void) { return KVS_ABI_VERSION; }

const char* kvs_last_error(void) { return c_api::last_error(); }

int kvs_traceparent(const char* traceparent) {
  TraceContext& trace = c_api::trace_of_thread();
  trace = {};
  if (traceparent == nullptr) return KVS_OK;
  const auto parsed = TraceContext::parse({traceparent, ::strnlen(traceparent, 512)});
  if (!parsed) return fail(KVS_BAD_REQUEST, "traceparent: not one of W3C's");
  trace = *parsed;
  return KVS_OK;
}

const char* kvs_status_text(int status) {
  switch (status) {
    case KVS_OK: return "ok";
    case KVS_OUT_OF_MEMORY: return "nothing evictable is left in the node";
    case KVS_STALE_LEASE: return "the lease has ended";
    case KVS_CORRUPT_BLOCK: return "block checksum mismatch";
    case KVS_BAD_FRAME: return "malformed frame";
    case KVS_BAD_REQUEST: return "bad request";
    case KVS_UNSUPPORTED: return "not supported";
    case KVS_NO_NAMESPACE: return "unknown namespace";
    case KVS_MISMATCH: return "the two sides disagree";
    case KVS_TOO_LARGE: return "over a limit";
    case KVS_BUSY: return "busy: a limit is reached";
    case KVS_UNAVAILABLE: return "node unavailable";
    case KVS_NO_REGION: return "memory cannot be lent";
    case KVS_QUARANTINED: return "memory is quarantined";
    case KVS_DRAINING: return "the node is draining";
    case KVS_CANCELLED: return "cancelled";
    case KVS_NOT_FOUND: return "not found";
    case KVS_DISK_FAILED: return "the disk failed";
    case KVS_PERMISSION_DENIED: return "permission denied by the node's policy";
    case KVS_OVER_QUOTA: return "a limit of the tenant is reached";
    case KVS_NOT_ADMITTED: return "not admitted: what the cache holds is worth more";
    case KVS_TIMED_OUT: return "the deadline has passed";
    case KVS_SYSTEM: return "system error";
    case KVS_FORKED: return "the client belongs to the parent process";
    case KVS_INTERNAL: return "internal error; the client is disabled";
    default: return "unknown status";
  }
}

int kvs_client_open(const kvs_options* given, kvs_client** client) {
  return c_api::guarded([&]() -> int {
    // Cleared first: a caller that ignores the status then closes NULL, not a stray pointer.
    if (client == nullptr) return fail(KVS_BAD_REQUEST, "client is NULL");
    *client = nullptr;
    const auto options = read_struct(given);
    BlockingOptions blocking;
    blocking.busy_poll = microseconds(options.busy_poll_us);
    try {
      ClientConfig config = config_of(options);
      set_assert_policy(AssertPolicy::kThrow);  // a bug here must not take the engine down
      *client = new kvs_client(std::move(config), blocking);
    } catch (const std::invalid_argument& e) {  // the caller's mistake, with the field's name
      return fail(KVS_BAD_REQUEST, e.what());
    } catch (const std::exception& e) {
      return fail(KVS_SYSTEM, e.what());
    }
    return KVS_OK;
  });
}

void kvs_client_close(kvs_client* client) {
  try {
    delete client;  // in a forked child: only discards it
  } catch (...) {
  }
}

// Not guarded: it does not allocate or throw.
int kvs_digest_extra(const void* extra, size_t bytes, kvs_extra* digest) {
  if (digest == nullptr || (extra == nullptr && bytes > 0)) return fail(KVS_BAD_REQUEST, "a pointer is NULL");
  const ExtraDigest made = extra_digest({static_cast<const std::byte*>(extra), bytes});
  std::memcpy(digest, &made, sizeof *digest);
  return KVS_OK;
}

int kvs_hash_chain(const char* record_text, const uint32_t* tokens, size_t token_count, kvs_hash* hashes,
                   size_t capacity, size_t* count) {
  return c_api::guarded([&] {
    if (record_text == nullptr || count == nullptr || (tokens == nullptr && token_count > 0)) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    const auto record = parse_record(record_text);
    if (!record) refuse(KVS_BAD_REQUEST, record.error().text);
    if (record->is_set()) refuse(KVS_UNSUPPORTED, "record: a set has no chains of hashes");
    // Set before the capacity check, to report the required size. A partial last block has no hash.
    *count = token_count / record->block_size();
    if (*count > capacity || (hashes == nullptr && *count > 0)) refuse(KVS_TOO_LARGE, "capacity is too small");
    const auto chain = hash_chain(record->digest(), {tokens, token_count}, record->block_size());
    KV_ASSERT(chain.size() == *count);
    if (!chain.empty()) std::memcpy(hashes, chain.data(), chain.size() * sizeof(kvs_hash));
  });
}

int kvs_open(kvs_client* client, const char* record_text, uint64_t deadline_us, kvs_space* space) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (record_text == nullptr || space == nullptr) return fail(KVS_BAD_REQUEST, "record or space is NULL");
    auto record = parse_record(record_text);
    if (!record) return fail(KVS_BAD_REQUEST, record.error().text.c_str());
    const auto opened = blocking.open(std::move(*record), microseconds(deadline_us));
    if (!opened) return fail(opened.error());
    *space = static_cast<kvs_space>(*opened);
    return KVS_OK;
  });
}

int kvs_wait_open(kvs_client* client, kvs_space space, uint64_t deadline_us) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    return told(blocking.wait_open(Space{space}, microseconds(deadline_us)));
  });
}

int kvs_block_bytes(kvs_client* client, kvs_space space, uint64_t* bytes) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (bytes == nullptr) return fail(KVS_BAD_REQUEST, "bytes is NULL");
    *bytes = blocking.block_bytes(Space{space});
    return *bytes != 0 ? KVS_OK : fail(KVS_BAD_REQUEST, "space: not opened by this client");
  });
}

int kvs_match(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, const kvs_match_options* given,
              kvs_match_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const MatchOptions options = c_api::read_match(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto match = blocking.match(Space{space}, chain, options);
    if (!match) return fail(match.error());
    KV_ASSERT(match->disk_block_count <= match->block_count && match->block_count <= count);
    // If write_struct() refuses `result`, the lease is lost to the caller, and ends after the node's lease duration.
    kvs_match_result out = KVS_MATCH_RESULT_INIT;
    out.block_count = match->block_count;
    out.why = status_of(match->why);
    out.lease = static_cast<kvs_lease>(match->lease);
    out.partial_token_count = match->partial_token_count;
    out.disk_block_count = match->disk_block_count;
    out.disk_us = static_cast<std::uint64_t>(match->disk_time.count());
    std::memcpy(&out.partial_block, &match->partial_block, sizeof out.partial_block);
    return write_struct(out, result);
  });
}

int kvs_release(kvs_client* client, kvs_lease lease) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    blocking.release(Lease{lease});
    return KVS_OK;
  });
}

// `blocks` has an address per hash, each of block_bytes of the space; 0, for an unopened space, is refused by the call.
int kvs_get(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, void* const* blocks,
            const kvs_get_options* given, kvs_get_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const GetOptions options = c_api::read_get(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto to = c_api::read_blocks(blocks, count, blocking.block_bytes(Space{space}));
    const auto got = blocking.get(Space{space}, chain, to, options);
    if (!got) return fail(got.error());
    // The engine skips prefill for these blocks: too high a count would read unfilled memory.
    KV_ASSERT(got->block_count <= count);
    kvs_get_result out = KVS_GET_RESULT_INIT;
    out.block_count = got->block_count;
    out.why = status_of(got->why);
    out.corrupt_count = got->corrupt_count;
    return write_struct(out, result);
  });
}

int kvs_put(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, const void* const* blocks,
            const kvs_put_options* given, kvs_put_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const PutOptions options = c_api::read_put(given);
    const Hashes chain = c_api::read_chain(hashes, count);
    const auto from = c_api::read_blocks(blocks, count, blocking.block_bytes(Space{space}));
    const auto put = blocking.put(Space{space}, chain, from, options);
    if (!put) return fail(put.error());
    KV_ASSERT(put->stored + put->already_stored + put->refused == count);
    kvs_put_result out = KVS_PUT_RESULT_INIT;
    out.stored = put->stored;
    out.already_stored = put->already_stored;
    out.refused = put->refused;
    out.why = status_of(put->why);
    return write_struct(out, result);
  });
}

// The public names pin and unpin are retain and unretain inside, since leases and moves also hold pins.
int kvs_touch(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
              uint64_t* blocks) {
  return count_blocks(client, &BlockingClient::touch, space, hashes, count, deadline_us, blocks);
}
int kvs_pin(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
            uint64_t* blocks) {
  return count_blocks(client, &BlockingClient::retain, space, hashes, count, deadline_us, blocks);
}
int kvs_unpin(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
              uint64_t* blocks) {
  return count_blocks(client, &BlockingClient::unretain, space, hashes, count, deadline_us, blocks);
}
// Not count_blocks(): an empty list is allowed and means the whole namespace, and there is a second result.
int kvs_drop(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
             uint64_t* blocks, int* until_restart) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const auto dropped = blocking.drop(Space{space}, c_api::read_chain(hashes, count), microseconds(deadline_us));
    if (!dropped) return fail(dropped.error());
    if (blocks != nullptr) *blocks = dropped->block_count;
    if (until_restart != nullptr) *until_restart = dropped->until_restart;
    return KVS_OK;
  });
}

int kvs_match_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count,
                  const kvs_match_set_options* given, uint8_t* held, uint32_t* block_bytes,
                  kvs_match_set_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const SetMatchOptions options = c_api::read_match_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    const auto match = blocking.match_set(Space{set}, names, options);
    if (!match) return fail(match.error());
    KV_ASSERT(match->held.size() == count && match->disk_count <= match->held_count && match->held_count <= count);
    kvs_match_set_result out = KVS_MATCH_SET_RESULT_INIT;
    out.held_count = match->held_count;
    out.disk_count = match->disk_count;
    out.disk_us = static_cast<std::uint64_t>(match->disk_time.count());
    out.why = status_of(match->why);
    out.lease = static_cast<kvs_lease>(match->lease);
    // The struct first: if its size is refused, the caller's lists stay untouched.
    write_struct(out, result);
    c_api::write_held(*match, count, held, block_bytes);
    return KVS_OK;
  });
}

int kvs_get_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count, void* const* blocks,
                const size_t* rooms, const kvs_get_set_options* given, kvs_set_block* landed,
                kvs_get_set_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const SetGetOptions options = c_api::read_get_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    // read_rooms() cuts rooms to the set's longest block: the node could not fill more.
    const std::size_t bytes_max = c_api::block_bytes_of(blocking, set, "set");
    const auto to = c_api::read_rooms(blocks, rooms, count, bytes_max);
    const auto got = blocking.get_set(Space{set}, names, to, options);
    if (!got) return fail(got.error());
    KV_ASSERT(got->blocks.size() == count && got->landed_count <= count);
    kvs_get_set_result out = KVS_GET_SET_RESULT_INIT;
    out.landed_count = got->landed_count;
    out.corrupt_count = got->corrupt_count;
    out.why = status_of(got->why);
    write_struct(out, result);
    c_api::write_landed(*got, {}, count, landed);
    return KVS_OK;
  });
}

int kvs_put_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count, const void* const* blocks,
                const size_t* lengths, const kvs_put_set_options* given, uint8_t* outcomes,
                kvs_put_set_result* result) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const SetPutOptions options = c_api::read_put_set(given);
    const Hashes names = c_api::read_names(hashes, count, options.group_counts);
    const std::size_t bytes_max = c_api::block_bytes_of(blocking, set, "set");
    const auto from = c_api::read_lengths(blocks, lengths, count, bytes_max);
    const auto put = blocking.put_set(Space{set}, names, from, options);
    if (!put) return fail(put.error());
    KV_ASSERT(put->stored + put->already_stored + put->conflicts + put->refused == count);
    kvs_put_set_result out = KVS_PUT_SET_RESULT_INIT;
    out.stored = put->stored;
    out.already_stored = put->already_stored;
    out.conflicts = put->conflicts;
    out.refused = put->refused;
    out.why = status_of(put->why);
    write_struct(out, result);
    c_api::write_outcomes(*put, count, outcomes);
    return KVS_OK;
  });
}

int kvs_stats(kvs_client* client, uint64_t deadline_us, char* json, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const auto stats = blocking.ask({.path = "/stats.json"}, microseconds(deadline_us));
    if (!stats) return fail(stats.error());
    return c_api::write_text(c_api::stats_json(*stats, blocking.numa()), json, capacity, length);
  });
}

int kvs_metrics_text(kvs_client* client, char* text, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const std::string metrics = blocking.metrics_text();
    if (metrics.empty()) return fail(Errc::kUnavailable);
    return c_api::write_text(metrics, text, capacity, length);
  });
}

int kvs_tell_prefill_speed(kvs_client* client, double tokens_per_second) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    blocking.tell_prefill_speed(tokens_per_second);
    return KVS_OK;
  });
}

int kvs_why(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us, char* json,
            size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const Hashes chain = c_api::read_chain(hashes, count);
    return write_json(blocking.why(Space{space}, chain, microseconds(deadline_us)), c_api::miss_json, json, capacity,
                      length);
  });
}

int kvs_context_create(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, const char* name,
                       const char* const* tags, size_t tag_count, uint64_t ttl_us, int sliding, uint64_t until_us,
                       int priority, uint64_t deadline_us, char* json, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const Hashes chain = c_api::read_chain(hashes, count);
    if (name == nullptr) return fail(KVS_BAD_REQUEST, "name is NULL");
    const ContextTime life = c_api::read_context_time(ttl_us, sliding, until_us);
    if (tags == nullptr && tag_count > 0) return fail(KVS_BAD_REQUEST, "tags is NULL");
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < tag_count; ++i) {
      if (tags[i] == nullptr || i == 64) return fail(KVS_BAD_REQUEST, "tags: one is NULL, or there are too many");
      texts.emplace_back(tags[i]);
    }
    const auto wanted = c_api::read_priority(priority);
    const ContextOptions options{.deadline = microseconds(deadline_us),
                                 .name = name,
                                 .life = life,
                                 .tags = texts,
                                 .priority = wanted.value_or(ContextOptions{}.priority)};
    return write_json(blocking.create_context(Space{space}, chain, options), c_api::context_json, json, capacity,
                      length);
  });
}

int kvs_context_extend(kvs_client* client, const char* name, uint64_t ttl_us, int sliding, uint64_t until_us,
                       int priority, uint64_t deadline_us, char* json, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (name == nullptr) return fail(KVS_BAD_REQUEST, "name is NULL");
    const ContextTime life = c_api::read_context_time(ttl_us, sliding, until_us);
    const auto wanted = c_api::read_priority(priority);
    return write_json(blocking.extend_context(name, life, microseconds(deadline_us), wanted), c_api::context_json, json,
                      capacity, length);
  });
}

int kvs_context_delete(kvs_client* client, const char* name, uint64_t deadline_us, char* json, size_t capacity,
                       size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (name == nullptr) return fail(KVS_BAD_REQUEST, "name is NULL");
    return write_json(blocking.delete_context(name, microseconds(deadline_us)), c_api::context_json, json, capacity,
                      length);
  });
}

int kvs_context_warm(kvs_client* client, const char* name, int stop, uint64_t deadline_us, char* json, size_t capacity,
                     size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (name == nullptr) return fail(KVS_BAD_REQUEST, "name is NULL");
    const auto deadline = microseconds(deadline_us);
    const auto now = stop != 0 ? blocking.stop_warming_context(name, deadline) : blocking.warm_context(name, deadline);
    if (!now) return fail(now.error());
    return c_api::write_text(c_api::context_json(*now), json, capacity, length);
  });
}

int kvs_context_export(kvs_client* client, const char* name, const char* file, unsigned int flags, const char* key_file,
                       uint64_t deadline_us, char* json, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (name == nullptr || file == nullptr) return fail(KVS_BAD_REQUEST, "name or file is NULL");
    if ((flags & ~(KVS_EXPORT_PARTIAL | KVS_EXPORT_REPLACE)) != 0)
      return fail(KVS_UNSUPPORTED, "a flag is set that this version of libkvstore does not know");
    ContextExportOptions options{.deadline = microseconds(deadline_us)};
    options.is_partial = (flags & KVS_EXPORT_PARTIAL) != 0;
    options.replaces = (flags & KVS_EXPORT_REPLACE) != 0;
    if (key_file != nullptr) options.key_file = key_file;
    const auto exported = blocking.export_context(name, file, options);
    if (!exported) return fail(c_api::status_of(exported.error().code), exported.error().text);
    return c_api::write_text(c_api::archived_json(*exported, /*is_imported=*/false), json, capacity, length);
  });
}

int kvs_context_import(kvs_client* client, const char* file, const char* name, uint64_t ttl_us, int sliding,
                       uint64_t until_us, int priority, const char* key_file, uint64_t deadline_us, char* json,
                       size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (file == nullptr) return fail(KVS_BAD_REQUEST, "file is NULL");
    ContextImportOptions options{.deadline = microseconds(deadline_us)};
    if (name != nullptr) options.name = name;
    if (key_file != nullptr) options.key_file = key_file;
    if (ttl_us > 0 || until_us > 0 || sliding != 0) options.life = c_api::read_context_time(ttl_us, sliding, until_us);
    options.priority = c_api::read_priority(priority);
    const auto imported = blocking.import_context(file, options);
    if (!imported) return fail(c_api::status_of(imported.error().code), imported.error().text);
    return c_api::write_text(c_api::archived_json(*imported, /*is_imported=*/true), json, capacity, length);
  });
}

int kvs_context_list(kvs_client* client, const char* name, uint64_t deadline_us, char* json, size_t capacity,
                     size_t* length) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    return write_json(blocking.list_contexts(name == nullptr ? "" : name, microseconds(deadline_us)),
                      c_api::contexts_json, json, capacity, length);
  });
}

int kvs_allocate(kvs_client* client, size_t bytes, void** memory) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (memory == nullptr) return fail(KVS_BAD_REQUEST, "memory is NULL");
    *memory = nullptr;
    const auto span = blocking.allocate(bytes);
    if (!span) return fail(span.error());
    KV_ASSERT(span->size() == bytes && span->data() != nullptr);
    *memory = span->data();
    return KVS_OK;
  });
}

int kvs_lend(kvs_client* client, void* memory, size_t bytes, uint64_t deadline_us, size_t* connections) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    if (connections != nullptr) *connections = 0;
    const auto lent = blocking.lend({static_cast<std::byte*>(memory), bytes}, microseconds(deadline_us));
    if (!lent) return fail(lent.error());
    if (connections != nullptr) *connections = *lent;
    return KVS_OK;
  });
}

int kvs_add_device_memory(kvs_client* client, const kvs_device_memory* given) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    const auto memory = read_struct(given);
    // 0 is not a descriptor here: a zeroed struct, or an older one without the field, would lend standard input.
    return told(blocking.add_device_memory({.bytes = {static_cast<std::byte*>(memory.address), memory.bytes},
                                            .dmabuf_fd = memory.dmabuf_fd > 0 ? memory.dmabuf_fd : -1,
                                            .dmabuf_offset = memory.dmabuf_offset}));
  });
}

int kvs_remove_device_memory(kvs_client* client, void* address, uint64_t bytes, uint64_t deadline_us) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    return told(blocking.remove_device_memory({static_cast<std::byte*>(address), bytes}, microseconds(deadline_us)));
  });
}

int kvs_free(kvs_client* client, void* memory, size_t bytes) {
  return guarded(client, [&](BlockingClient& blocking) -> int {
    return told(blocking.free_memory({static_cast<std::byte*>(memory), bytes}));
  });
}
