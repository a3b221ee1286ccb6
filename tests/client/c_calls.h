/* tests/client/c_calls.h: short forms of a kvs_request, for programs in C that make many. */
#ifndef KV_TESTS_CLIENT_C_CALLS_H
#define KV_TESTS_CLIENT_C_CALLS_H

#include "client/kvstore.h"

/* A request on hashes, without more. */
static inline kvs_request of(uint32_t op, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us) {
  kvs_request request = KVS_REQUEST_INIT(op);
  request.space = space;
  request.hashes = hashes;
  request.count = count;
  request.deadline_us = deadline_us;
  return request;
}
/* `options`, on these hashes and blocks. */
static inline kvs_request with(const kvs_request* options, kvs_space space, const kvs_hash* hashes, size_t count,
                               void* const* blocks) {
  kvs_request request = *options;
  request.space = space;
  request.hashes = hashes;
  request.count = count;
  request.blocks = blocks;
  return request;
}
/* The same for a set: what is held goes to held and held_bytes, what becomes of each block to `outcomes`. */
static inline kvs_request with_held(const kvs_request* options, kvs_space set, const kvs_hash* names, size_t count,
                                    uint8_t* held, uint32_t* held_bytes) {
  kvs_request request = with(options, set, names, count, NULL);
  request.held = held;
  request.held_bytes = held_bytes;
  return request;
}
static inline kvs_request with_set(const kvs_request* options, kvs_space set, const kvs_hash* names, size_t count,
                                   void* const* blocks, const size_t* lengths, void* outcomes) {
  kvs_request request = with(options, set, names, count, blocks);
  request.lengths = lengths;
  if (request.op == KVS_OP_GET_SET) request.landed = outcomes;
  if (request.op == KVS_OP_PUT_SET) request.outcomes = outcomes;
  return request;
}
static inline kvs_request open_of(const char* record, uint64_t deadline_us) {
  kvs_request request = KVS_REQUEST_INIT(KVS_OP_OPEN);
  request.record = record;
  request.deadline_us = deadline_us;
  return request;
}
static inline kvs_request lease_of(kvs_lease lease) {
  kvs_request request = KVS_REQUEST_INIT(KVS_OP_RELEASE);
  request.lease = lease;
  return request;
}
static inline kvs_request memory_of(uint32_t op, void* memory, uint64_t bytes) {
  kvs_request request = KVS_REQUEST_INIT(op);
  request.memory = memory;
  request.bytes = bytes;
  request.deadline_us = 5000000;
  return request;
}
/* `request`, whose answer goes to json. */
static inline kvs_request answered(kvs_request request, char* json, size_t capacity) {
  request.json = json;
  request.json_capacity = capacity;
  return request;
}
static inline kvs_request context_of(uint32_t op, const char* name) {
  kvs_request request = KVS_REQUEST_INIT(op);
  request.name = name;
  request.deadline_us = 5000000;
  return request;
}

static inline int run(kvs_client* client, kvs_request request, kvs_completion* completion) {
  return kvs_run(client, &request, completion, completion == NULL ? 0 : sizeof *completion);
}
/* The same, of which only the space or the count of blocks matters. */
static inline int open_space(kvs_client* client, const char* record, uint64_t deadline_us, kvs_space* space) {
  kvs_completion done;
  const int status = run(client, open_of(record, deadline_us), &done);
  if (status == KVS_OK) *space = done.space;
  return status;
}
static inline int count_blocks(kvs_client* client, kvs_request request, uint64_t* blocks) {
  kvs_completion done;
  const int status = run(client, request, &done);
  if (status == KVS_OK) *blocks = done.block_count;
  return status;
}
static inline int submit(kvs_queue* queue, kvs_request request, uint64_t tag, kvs_call* call) {
  request.tag = tag;
  return kvs_submit(queue, &request, call);
}

#endif
