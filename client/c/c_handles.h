// client/c/c_handles.h: the types behind the pointers of the C ABI.
#pragma once

#include <utility>

#include "client/blocking_client.h"
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
