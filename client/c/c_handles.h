// client/c/c_handles.h: the types behind the pointers of the C ABI, and what each call on them begins with.
#pragma once

#include <utility>

#include "client/blocking_client.h"
#include "client/c/c_status.h"
#include "client/completion_queue.h"
#include "client/kvstore.h"

struct kvs_client {
  explicit kvs_client(kv::ClientConfig config, kv::BlockingOptions options) : client(std::move(config), options) {}
  kv::BlockingClient client;
};

struct kvs_queue {
  explicit kvs_queue(kv::BlockingClient& client, kv::CompletionQueueOptions options) : queue(client, options) {}
  kv::CompletionQueue queue;
};

namespace kv::c_api {

inline constexpr const char* kDisabledText = "the client is disabled after an internal error";

/// Runs `body`, which returns a status; turns exceptions into one. Every call that needs a client goes through here.
/// Two states are refused first: a child of fork() lacks the I/O thread, so a call would wait for ever; a disabled
/// client has failed an assertion, so its state cannot be trusted.
template <class Body>
int guarded(kvs_client* client, Body body) noexcept {
  if (client == nullptr) return fail(KVS_BAD_REQUEST, "client is NULL");
  return guarded([&] {
    if (client->client.is_forked()) return fail(make_error_code(Errc::kForked));
    if (client->client.is_disabled()) return fail(KVS_INTERNAL, kDisabledText);
    // If this call failed the assertion, it was ended as unavailable, which invites a useless retry.
    const int status = body(client->client);
    return status != KVS_OK && client->client.is_disabled() ? fail(KVS_INTERNAL, kDisabledText) : status;
  });
}

/// Unlike with a client, a disabled one is allowed: earlier completions can still be reaped.
template <class Queue, class Body>
requires std::is_same_v<std::remove_const_t<Queue>, kvs_queue>
int guarded(Queue* queue, Body body) noexcept {
  if (queue == nullptr) return fail(KVS_BAD_REQUEST, "queue is NULL");
  return guarded([&] {
    if (queue->queue.is_forked()) return fail(make_error_code(Errc::kForked));
    return body(queue->queue);
  });
}

}  // namespace kv::c_api
