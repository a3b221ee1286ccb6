// client/c/c_api.cc: what kvstore.h has besides calls (calls_c.cc): clients, memory, hashes. Exceptions stop here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "base/assert.h"
#include "client/blocking_client.h"
#include "client/c/c_handles.h"
#include "client/c/c_status.h"
#include "client/c/read_request.h"
#include "client/kvstore.h"
#include "transport/tls/tls_identity.h"

namespace kv {
namespace {

using c_api::fail, c_api::guarded, c_api::parse_record, c_api::read_struct, c_api::refuse;

std::chrono::microseconds microseconds(std::uint64_t count) {
  // Cut to one over the client's limit of a day: still refused, and cannot overflow when added to a time.
  return std::chrono::microseconds(std::min<std::uint64_t>(count, 24ull * 3600 * 1'000'000 + 1));
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
  if (options.endpoints != nullptr) {
    if (options.nodes != nullptr) refuse(KVS_BAD_REQUEST, "endpoints: is set, allowed beside nodes is NULL");
    for (std::string& each : split_patterns(options.endpoints)) config.nodes.push_back({.endpoint = std::move(each)});
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
  return guarded([&] {
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

int kvs_metrics_text(kvs_client* client, char* text, size_t capacity, size_t* length) {
  return guarded(client, [&](BlockingClient& calls) -> int {
    const auto metrics = calls.with([](Client& each) { return each.metrics_text(); });
    return metrics ? c_api::write_text(*metrics, text, capacity, length) : fail(metrics.error());
  });
}

int kvs_tell_prefill_speed(kvs_client* client, double tokens_per_second) {
  return guarded(client, [&](BlockingClient& calls) -> int {
    const auto told = calls.with([&](Client& each) { each.tell_prefill_speed(tokens_per_second); });
    return told ? KVS_OK : fail(told.error());
  });
}

int kvs_allocate(kvs_client* client, size_t bytes, void** memory) {
  return guarded(client, [&](BlockingClient& calls) -> int {
    if (memory == nullptr) return fail(KVS_BAD_REQUEST, "memory is NULL");
    *memory = nullptr;
    const auto span = calls.allocate(bytes);
    if (!span) return fail(span.error());
    KV_ASSERT(span->size() == bytes && span->data() != nullptr);
    *memory = span->data();
    return KVS_OK;
  });
}

int kvs_free(kvs_client* client, void* memory, size_t bytes) {
  return guarded(client, [&](BlockingClient& calls) -> int {
    const auto freed = calls.free_memory({static_cast<std::byte*>(memory), bytes});
    return freed ? KVS_OK : fail(freed.error());
  });
}

int kvs_add_device_memory(kvs_client* client, const kvs_device_memory* given) {
  return guarded(client, [&](BlockingClient& calls) -> int {
    const auto memory = read_struct(given);
    // 0 is not a descriptor here: a zeroed struct, or an older one without the field, would lend standard input.
    const DeviceMemory own{.bytes = {static_cast<std::byte*>(memory.address), memory.bytes},
                           .dmabuf_fd = memory.dmabuf_fd > 0 ? memory.dmabuf_fd : -1,
                           .dmabuf_offset = memory.dmabuf_offset};
    const auto added = calls.with([&](Client& each) { return each.add_device_memory(own); });
    return added ? KVS_OK : fail(added.error());
  });
}
