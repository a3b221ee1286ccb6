/* libkvstore from C, against a real node: c_api_test ENDPOINT. Exits 0 if everything is as it must be. */
#define _POSIX_C_SOURCE 200809L /* fork, waitpid, alarm */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvstore.h"
#include "tests/client/c_calls.h"
#include "tests/client/c_check.h"

#define BLOCKS 8
#define BLOCK_BYTES 131072

static size_t segments_seen;
static void on_segment(void* context, size_t segment, size_t block_count) {
  CHECK(context == &segments_seen);
  CHECK(segment == segments_seen);
  CHECK(block_count == BLOCKS);
  ++segments_seen;
}

void contexts(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count); /* context_c_api_test.c */

static void operations(kvs_client* client, unsigned char* memory) {
  const char* record = "model=c\nblock_size=16\nblock_bytes=131072\n"; /* any order of lines */
  kvs_completion done;
  CHECK(run(client, open_of(record, 5000000), &done) == KVS_OK && done.block_bytes == BLOCK_BYTES);
  const kvs_space space = done.space;

  uint32_t tokens[16 * BLOCKS];
  for (size_t i = 0; i < 16 * BLOCKS; ++i) tokens[i] = (uint32_t)i;
  kvs_hash hashes[BLOCKS];
  size_t count = 0;
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS - 1, &count) == KVS_TOO_LARGE);
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS, &count) == KVS_OK && count == BLOCKS);

  void* to[BLOCKS];
  for (size_t i = 0; i < BLOCKS; ++i) {
    memset(memory + i * BLOCK_BYTES, (int)(i + 1), BLOCK_BYTES);
    to[i] = memory + i * BLOCK_BYTES;
  }
  kvs_request put = KVS_REQUEST_INIT(KVS_OP_PUT);
  kvs_completion stored;
  put.deadline_us = 5000000;
  put.checksum_count = BLOCKS * 2;
  CHECK(run(client, with(&put, space, hashes, BLOCKS, to), &stored) == KVS_BAD_REQUEST);
  put.checksum_count = 0;
  put.reuse = KVS_REUSE_LATER + 1;
  CHECK(run(client, with(&put, space, hashes, BLOCKS, to), &stored) == KVS_BAD_REQUEST);
  put.reuse = KVS_REUSE_LATER;
  CHECK(run(client, with(&put, space, hashes, BLOCKS, to), &stored) == KVS_OK);
  CHECK(stored.block_count + stored.already_stored == BLOCKS && stored.refused == 0 && stored.why == KVS_OK);

  kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH);
  kvs_completion matched;
  match.deadline_us = 5000000;
  match.flags = KVS_FLAG_LEASE;
  match.reuse = KVS_REUSE_LATER + 1;
  CHECK(run(client, with(&match, space, hashes, BLOCKS, NULL), &matched) == KVS_BAD_REQUEST);
  match.reuse = KVS_REUSE_WITHIN_15_S;
  CHECK(run(client, with(&match, space, hashes, BLOCKS, NULL), &matched) == KVS_OK);
  CHECK(matched.block_count == BLOCKS && matched.lease != 0);
  CHECK(run(client, lease_of(matched.lease), NULL) == KVS_OK);

  memset(memory, 0, BLOCKS * BLOCK_BYTES);
  const uint64_t ends[2] = {65536, BLOCK_BYTES};
  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET);
  kvs_completion got;
  get.deadline_us = 5000000;
  get.segment_ends = ends;
  get.segment_count = 2;
  get.on_segment = &on_segment;
  get.segment_context = &segments_seen;
  segments_seen = 0;
  CHECK(run(client, with(&get, space, hashes, BLOCKS, to), &got) == KVS_OK);
  CHECK(got.block_count == BLOCKS && got.why == KVS_OK && got.corrupt_count == 0 && segments_seen == 2);
  for (size_t i = 0; i < BLOCKS; ++i) {
    for (size_t j = 0; j < BLOCK_BYTES; ++j) CHECK(memory[i * BLOCK_BYTES + j] == i + 1);
  }

  /* Checksums told, and taken back at their word. */
  uint64_t sums[BLOCKS * 2] = {0}, wrong[BLOCKS * 2];
  get.segment_count = 0;
  get.segment_ends = NULL;
  get.on_segment = NULL;
  get.checksum_count = BLOCKS * 2;
  CHECK(run(client, with(&get, space, hashes, BLOCKS, to), &got) == KVS_BAD_REQUEST);
  get.checksums = sums;
  get.checksum_count = 1;
  CHECK(run(client, with(&get, space, hashes, BLOCKS, to), &got) == KVS_BAD_REQUEST);
  get.checksum_count = BLOCKS * 2;
  CHECK(run(client, with(&get, space, hashes, BLOCKS, to), &got) == KVS_OK && got.block_count == BLOCKS);
  memcpy(wrong, sums, sizeof sums);
  wrong[0] ^= 1;
  CHECK(run(client, of(KVS_OP_DROP, space, hashes, 1, 5000000), NULL) == KVS_OK);
  put.checksums = wrong;
  put.checksum_count = BLOCKS * 2;
  CHECK(run(client, with(&put, space, hashes, BLOCKS, to), &stored) == KVS_OK && stored.why == KVS_CORRUPT_BLOCK);
  put.checksums = sums;
  CHECK(run(client, with(&put, space, hashes, BLOCKS, to), &stored) == KVS_OK && stored.block_count == BLOCKS);

  uint64_t blocks = 0;
  CHECK(count_blocks(client, of(KVS_OP_TOUCH, space, hashes, BLOCKS, 5000000), &blocks) == KVS_OK && blocks == BLOCKS);
  CHECK(count_blocks(client, of(KVS_OP_RETAIN, space, hashes, BLOCKS, 5000000), &blocks) == KVS_OK && blocks == BLOCKS);
  CHECK(run(client, of(KVS_OP_UNRETAIN, space, hashes, BLOCKS, 5000000), NULL) == KVS_OK);

  contexts(client, space, hashes, BLOCKS);
  CHECK(run(client, answered(of(KVS_OP_STATS, 0, NULL, 0, 5000000), NULL, 0), &done) == KVS_TOO_LARGE);
  CHECK(done.length > 0);
  const size_t capacity = done.length + 4096;
  char* json = malloc(capacity);
  CHECK(json != NULL);
  CHECK(run(client, answered(of(KVS_OP_STATS, 0, NULL, 0, 5000000), json, capacity), &done) == KVS_OK &&
        strlen(json) == done.length);
  CHECK(kvs_tell_prefill_speed(client, 1000.0) == KVS_OK);
  size_t metrics_length = 0;
  CHECK(kvs_metrics_text(client, NULL, 0, &metrics_length) == KVS_TOO_LARGE && metrics_length > 1000);
  char* metrics = malloc(metrics_length + 4096);
  CHECK(kvs_metrics_text(client, metrics, metrics_length + 4096, &metrics_length) == KVS_OK);
  CHECK(strlen(metrics) == metrics_length);
  CHECK(strstr(metrics, "\nkvstore_client_prefill_tokens_per_second 1000\n") != NULL);
  CHECK(strstr(metrics, "\nkvstore_client_node_connected{node=") != NULL);
  free(metrics);
  CHECK(strncmp(json, "{\"nodes\":[{\"name\":", 18) == 0 && strstr(json, "\"capacity_bytes\":") != NULL);
  free(json);
  CHECK(run(client, of(KVS_OP_DROP, space, hashes, BLOCKS, 5000000), &done) == KVS_OK);
  CHECK(done.block_count == 1 && done.until_restart == 0);

  char why[4096];
  CHECK(run(client, answered(of(KVS_OP_WHY, space, hashes, BLOCKS, 5000000), NULL, 0), &done) == KVS_TOO_LARGE &&
        done.length > 0);
  CHECK(run(client, answered(of(KVS_OP_WHY, space, hashes, BLOCKS, 5000000), why, sizeof why), &done) == KVS_OK &&
        strlen(why) == done.length);
  CHECK(strstr(why, "\"reason\":\"dropped\"") != NULL && strstr(why, "\"whole\":false") != NULL);
  CHECK(run(client, answered(of(KVS_OP_WHY, space, NULL, 1, 5000000), why, sizeof why), &done) == KVS_BAD_REQUEST);
  CHECK(run(client, answered(of(KVS_OP_WHY, space, hashes, 0, 5000000), why, sizeof why), &done) == KVS_BAD_REQUEST);

  CHECK(kvs_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") == KVS_OK);
  kvs_request traced = KVS_REQUEST_INIT(KVS_OP_MATCH);
  kvs_completion of_trace;
  traced.deadline_us = 5000000;
  CHECK(run(client, with(&traced, space, hashes, BLOCKS, NULL), &of_trace) == KVS_OK && of_trace.why == KVS_OK);
  CHECK(kvs_traceparent("00-nonsense") == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "traceparent") != NULL);
  CHECK(kvs_traceparent(NULL) == KVS_OK);
}

#define NAMES 6
static const size_t kLengths[NAMES] = {1, 64, 4095, 65536, 65537, BLOCK_BYTES};

/* Names of their own; the bytes of block i are i + 101. */
static void make_set(unsigned char* memory, kvs_hash* names, void** at) {
  memset(names, 0, NAMES * sizeof *names);
  for (size_t i = 0; i < NAMES; ++i) {
    names[i].bytes[0] = (uint8_t)(i + 1);
    at[i] = memory + i * BLOCK_BYTES;
    memset(at[i], (int)(i + 101), BLOCK_BYTES);
  }
}

static int is_filled(const unsigned char* at, size_t bytes, int value) {
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != value) return 0;
  }
  return 1;
}

/* Blocks that stand alone. */
static void sets(kvs_client* client, unsigned char* memory) {
  const char* record = "kind=set\nmodel=c\nblock_bytes_max=131072\n";
  kvs_completion done;
  CHECK(run(client, open_of(record, 5000000), &done) == KVS_OK && done.block_bytes == BLOCK_BYTES);
  const kvs_space set = done.space;
  kvs_hash names[NAMES];
  void* at[NAMES];
  make_set(memory, names, at);

  kvs_request put = KVS_REQUEST_INIT(KVS_OP_PUT_SET);
  kvs_completion stored;
  uint8_t outcomes[NAMES];
  put.deadline_us = 5000000;
  size_t wrong[NAMES];
  memcpy(wrong, kLengths, sizeof wrong);
  wrong[3] = 0;
  CHECK(run(client, with_set(&put, set, names, NAMES, at, wrong, outcomes), &stored) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "lengths[3]: 0, not 1..131072, the set's block_bytes_max") == 0);
  wrong[3] = BLOCK_BYTES + 1;
  CHECK(run(client, with_set(&put, set, names, NAMES, at, wrong, outcomes), &stored) == KVS_BAD_REQUEST);
  /* All but the last; then a name keeps what it has. */
  CHECK(run(client, with_set(&put, set, names, NAMES - 1, at, kLengths, outcomes), &stored) == KVS_OK);
  CHECK(stored.block_count == NAMES - 1 && stored.refused == 0 && stored.conflicts == 0 && stored.why == KVS_OK);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(outcomes[i] == KVS_PUT_STORED);
  CHECK(run(client, with_set(&put, set, names, 2, at, kLengths + 1, outcomes), &stored) == KVS_OK);
  CHECK(stored.already_stored == 2 && outcomes[0] == KVS_PUT_ALREADY_STORED);
  CHECK(run(client, with_set(&put, set, names, NAMES - 1, at, kLengths, NULL), &stored) == KVS_OK);
  CHECK(stored.already_stored == NAMES - 1);

  kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH_SET);
  kvs_completion matched;
  uint8_t held[NAMES];
  uint32_t found[NAMES];
  match.deadline_us = 5000000;
  match.flags = KVS_FLAG_LEASE;
  CHECK(run(client, with_held(&match, set, names, NAMES, held, found), &matched) == KVS_OK);
  CHECK(matched.block_count == NAMES - 1 && matched.disk_block_count == 0 && matched.why == KVS_OK &&
        matched.lease != 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(held[i] == KVS_HELD_IN_MEMORY && found[i] == kLengths[i]);
  CHECK(held[NAMES - 1] == KVS_HELD_NOWHERE && found[NAMES - 1] == 0);

  /* Any of them in any order: here the last first, one with too little room, and one that is not there. */
  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET_SET);
  kvs_completion got;
  kvs_set_block landed[NAMES];
  get.deadline_us = 5000000;
  get.lease = matched.lease;
  kvs_hash asked[NAMES];
  size_t rooms[NAMES];
  for (size_t i = 0; i < NAMES; ++i) {
    asked[i] = names[NAMES - 1 - i];
    rooms[i] = i == 1 ? 65536 : BLOCK_BYTES;
  }
  memset(memory, 0xEE, NAMES * BLOCK_BYTES);
  rooms[5] = SIZE_MAX; /* as much as there can be of any block */
  CHECK(run(client, with_set(&get, set, asked, NAMES, at, rooms, landed), &got) == KVS_OK);
  CHECK(got.block_count == NAMES - 2 && got.corrupt_count == 0 && got.why == KVS_OK);
  CHECK(landed[0].status == KVS_NOT_FOUND && landed[0].block_bytes == 0);
  CHECK(landed[1].status == KVS_TOO_LARGE && landed[1].block_bytes == 65537);
  for (size_t i = 2; i < NAMES; ++i) {
    const size_t length = kLengths[NAMES - 1 - i];
    CHECK(landed[i].status == KVS_OK && landed[i].block_bytes == length);
    CHECK(is_filled(at[i], length, (int)(NAMES - 1 - i + 101)));
    CHECK(is_filled((unsigned char*)at[i] + length, BLOCK_BYTES - length, 0xEE));
  }
  CHECK(run(client, lease_of(matched.lease), NULL) == KVS_OK); /* the get has ended it, and that is no error */

  uint64_t blocks = 0;
  CHECK(count_blocks(client, of(KVS_OP_TOUCH, set, names, NAMES, 5000000), &blocks) == KVS_OK && blocks == NAMES - 1);
  CHECK(count_blocks(client, of(KVS_OP_RETAIN, set, names, NAMES, 5000000), &blocks) == KVS_OK && blocks == NAMES - 1);
  CHECK(count_blocks(client, of(KVS_OP_UNRETAIN, set, names + 1, NAMES - 1, 5000000), &blocks) == KVS_OK &&
        blocks == NAMES - 2);
  CHECK(count_blocks(client, of(KVS_OP_DROP, set, names + 1, 2, 5000000), &blocks) == KVS_OK && blocks == 2);
  CHECK(run(client, with_held(&match, set, names, NAMES, held, NULL), &matched) == KVS_OK);
  CHECK(matched.block_count == NAMES - 3 && held[0] == KVS_HELD_IN_MEMORY && held[1] == KVS_HELD_NOWHERE);
  CHECK(run(client, lease_of(matched.lease), NULL) == KVS_OK);
  CHECK(run(client, with_held(&match, set, NULL, 0, NULL, NULL), &matched) == KVS_OK && matched.block_count == 0);

  /* Names in groups: 0, 1 and 2 of which two were dropped, then the rest without the last. */
  const uint32_t groups[] = {3, NAMES - 4};
  match.group_counts = get.group_counts = put.group_counts = groups;
  match.group_count = get.group_count = put.group_count = 2;
  CHECK(run(client, with_held(&match, set, names, NAMES - 1, held, NULL), &matched) == KVS_OK);
  CHECK(matched.block_count == NAMES - 4 && held[0] == KVS_HELD_NOWHERE && held[3] == KVS_HELD_IN_MEMORY);
  get.lease = matched.lease;
  CHECK(run(client, with_set(&get, set, names, NAMES - 1, at, rooms, landed), &got) == KVS_OK);
  CHECK(got.block_count == NAMES - 4);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(landed[i].status == (i < 3 ? KVS_NOT_FOUND : KVS_OK));
  CHECK(run(client, with_set(&put, set, names, NAMES - 1, at, kLengths, outcomes), &stored) == KVS_OK);
  CHECK(stored.block_count == 2 && stored.already_stored == NAMES - 3);
  CHECK(run(client, with_held(&match, set, names, NAMES - 1, held, NULL), &matched) == KVS_OK);
  CHECK(matched.block_count == NAMES - 1 && run(client, lease_of(matched.lease), NULL) == KVS_OK);
  match.group_count = 1;
  CHECK(run(client, with_held(&match, set, names, NAMES, held, NULL), &matched) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "group_counts: 3 names in all, 6 are given") == 0);
  match.group_counts = NULL;
  CHECK(run(client, with_held(&match, set, names, NAMES, held, NULL), &matched) == KVS_BAD_REQUEST);
  SAYS("group_counts: NULL, allowed for group_count 1 is a list");
  match.group_count = get.group_count = put.group_count = 0;
  CHECK(count_blocks(client, of(KVS_OP_DROP, set, names + 1, 2, 5000000), &blocks) == KVS_OK && blocks == 2);

  /* Mistakes. */
  kvs_space chain;
  CHECK(open_space(client, "model=c\nblock_size=16\nblock_bytes=131072\n", 5000000, &chain) == KVS_OK);
  kvs_request of_chain = KVS_REQUEST_INIT(KVS_OP_MATCH);
  kvs_completion prefix;
  of_chain.deadline_us = 5000000;
  CHECK(run(client, with(&of_chain, set, names, 1, NULL), &prefix) == KVS_UNSUPPORTED);
  CHECK(run(client, with_held(&match, chain, names, 1, held, found), &matched) == KVS_UNSUPPORTED);
  CHECK(run(client, with_set(&get, chain, names, 1, at, rooms, landed), &got) == KVS_UNSUPPORTED);
  CHECK(run(client, with_set(&put, chain, names, 1, at, kLengths, outcomes), &stored) == KVS_UNSUPPORTED);
  CHECK(run(client, with_set(&get, set + 9, names, 1, at, rooms, landed), &got) == KVS_BAD_REQUEST);
  CHECK(run(client, with_set(&get, set, names, 1, at, NULL, landed), &got) == KVS_BAD_REQUEST);
  SAYS("lengths: NULL, allowed for count 1 is a list");
  CHECK(run(client, with_set(&put, set, names, 1, at, NULL, outcomes), &stored) == KVS_BAD_REQUEST);
  SAYS("lengths: NULL, allowed for count 1 is a list");
  CHECK(run(client, with_held(&match, set, NULL, 1, held, found), &matched) == KVS_BAD_REQUEST);
  CHECK(run(NULL, with_held(&match, set, names, 1, held, found), &matched) == KVS_BAD_REQUEST);
  CHECK(count_blocks(client, of(KVS_OP_DROP, set, NULL, 0, 5000000), &blocks) == KVS_OK && blocks == NAMES - 3);
}

static int readable(kvs_queue* queue, int timeout_ms) {
  struct pollfd one = {kvs_queue_fd(queue), POLLIN, 0};
  return poll(&one, 1, timeout_ms);
}

static kvs_completion next(kvs_queue* queue) {
  kvs_completion one;
  size_t count = 0;
  CHECK(kvs_reap(queue, &one, sizeof one, 1, 1, 10000000, &count) == KVS_OK && count == 1);
  return one;
}

/* Those of sets without blocking. */
static void submitted_sets(kvs_client* client, unsigned char* memory) {
  kvs_space set, chain;
  CHECK(open_space(client, "kind=set\nmodel=c\nblock_bytes_max=131072\n", 5000000, &set) == KVS_OK);
  CHECK(open_space(client, "model=c\nblock_size=16\nblock_bytes=131072\n", 5000000, &chain) == KVS_OK);
  kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  options.bytes_max = NAMES * (BLOCK_BYTES + 256);
  CHECK(kvs_queue_open(client, &options, &queue) == KVS_OK);
  kvs_hash names[NAMES];
  void* at[NAMES];
  make_set(memory, names, at);

  kvs_request put = KVS_REQUEST_INIT(KVS_OP_PUT_SET);
  uint8_t outcomes[NAMES];
  memset(outcomes, 0xEE, sizeof outcomes);
  put.deadline_us = 5000000;
  kvs_call call = 0;
  CHECK(submit(queue, with_set(&put, set, names, NAMES - 1, at, kLengths, outcomes), 1, &call) == KVS_OK);
  kvs_completion end = next(queue);
  CHECK(end.call == call && end.tag == 1 && end.op == KVS_OP_PUT_SET && end.event == KVS_EVENT_END);
  CHECK(end.status == KVS_OK && end.why == KVS_OK && end.block_count == NAMES - 1 && end.refused == 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(outcomes[i] == KVS_PUT_STORED);
  CHECK(outcomes[NAMES - 1] == 0xEE);

  kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH_SET);
  uint8_t held[NAMES];
  uint32_t found[NAMES];
  match.deadline_us = 5000000;
  match.flags = KVS_FLAG_LEASE;
  CHECK(submit(queue, with_held(&match, set, names, NAMES, held, found), 2, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.op == KVS_OP_MATCH_SET && end.status == KVS_OK && end.block_count == NAMES - 1 && end.lease != 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(held[i] == KVS_HELD_IN_MEMORY && found[i] == kLengths[i]);
  CHECK(held[NAMES - 1] == KVS_HELD_NOWHERE && found[NAMES - 1] == 0);

  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET_SET);
  kvs_set_block landed[NAMES];
  size_t rooms[NAMES];
  get.deadline_us = 5000000;
  get.lease = end.lease;
  for (size_t i = 0; i < NAMES; ++i) rooms[i] = BLOCK_BYTES;
  rooms[1] = 63;
  memset(memory, 0, NAMES * BLOCK_BYTES);
  CHECK(submit(queue, with_set(&get, set, names, NAMES, at, rooms, landed), 3, NULL) == KVS_OK);
  /* Rooms count in full until the end is reaped. */
  get.lease = 0;
  CHECK(submit(queue, with_set(&get, set, names, NAMES, at, rooms, landed), 4, NULL) == KVS_BUSY);
  end = next(queue);
  CHECK(end.op == KVS_OP_GET_SET && end.status == KVS_OK && end.block_count == NAMES - 2 && end.why == KVS_OK);
  CHECK(landed[1].status == KVS_TOO_LARGE && landed[1].block_bytes == 64);
  CHECK(landed[NAMES - 1].status == KVS_NOT_FOUND);
  for (size_t i = 0; i < NAMES - 1; ++i) {
    if (i == 1) continue;
    CHECK(landed[i].status == KVS_OK && landed[i].block_bytes == kLengths[i]);
    CHECK(is_filled(at[i], kLengths[i], (int)(i + 101)));
  }

  /* Not begun, so the lists stay as they are; filled by a call that was late from the start. */
  memset(held, 0xEE, sizeof held);
  CHECK(submit(queue, with_held(&match, chain, names, NAMES, held, NULL), 5, NULL) == KVS_UNSUPPORTED);
  CHECK(submit(queue, with_set(&get, chain, names, 1, at, rooms, landed), 6, NULL) == KVS_UNSUPPORTED);
  for (size_t i = 0; i < NAMES; ++i) CHECK(held[i] == 0xEE);
  match.deadline_us = 0;
  CHECK(submit(queue, with_held(&match, set, names, NAMES, held, NULL), 6, NULL) == KVS_OK);
  CHECK(next(queue).why == KVS_TIMED_OUT);
  for (size_t i = 0; i < NAMES; ++i) CHECK(held[i] == KVS_HELD_NOWHERE);
  get.deadline_us = 0;
  CHECK(submit(queue, with_set(&get, set, names, 2, at, rooms, landed), 7, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.status == KVS_OK && end.why == KVS_TIMED_OUT && end.block_count == 0);
  CHECK(landed[0].status == KVS_TIMED_OUT && landed[1].status == KVS_TIMED_OUT);
  put.deadline_us = 0;
  CHECK(submit(queue, with_set(&put, set, names, 2, at, kLengths, outcomes), 8, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.why == KVS_TIMED_OUT && end.refused == 2 && outcomes[0] == KVS_PUT_REFUSED);

  CHECK(submit(queue, with_set(&get, set + 9, names, 1, at, rooms, landed), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, with_set(&get, set, names, 1, at, NULL, landed), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, with_set(&put, set, names, 1, at, NULL, outcomes), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(NULL, with_held(&match, set, names, 1, held, found), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, of(KVS_OP_DROP, set, NULL, 0, 5000000), 9, NULL) == KVS_OK);
  CHECK(next(queue).block_count == NAMES - 1);
  size_t calls = 1;
  uint64_t bytes = 1;
  CHECK(kvs_queue_in_flight(queue, &calls, &bytes) == KVS_OK && calls == 0 && bytes == 0);
  kvs_queue_close(queue);
}

/* The same operations without blocking. */
static void submitted(kvs_client* client, unsigned char* memory) {
  const char* record = "model=c\nblock_size=16\nblock_bytes=131072\n";
  kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  options.calls_max = 70000;
  CHECK(kvs_queue_open(client, &options, &queue) == KVS_BAD_REQUEST && queue == NULL);
  options.calls_max = 4;
  CHECK(kvs_queue_open(client, &options, &queue) == KVS_OK);
  CHECK(readable(queue, 0) == 0);

  kvs_call call = 0;
  CHECK(submit(queue, open_of(record, 5000000), 1, &call) == KVS_OK && call != 0);
  CHECK(readable(queue, 10000) == 1);
  kvs_completion end = next(queue);
  CHECK(end.call == call && end.tag == 1 && end.op == KVS_OP_OPEN && end.event == KVS_EVENT_END);
  CHECK(end.status == KVS_OK && readable(queue, 0) == 0);
  const kvs_space space = end.space;
  CHECK(submit(queue, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 5000000), 2, NULL) == KVS_OK &&
        next(queue).status == KVS_OK);

  uint32_t tokens[16 * BLOCKS];
  for (size_t i = 0; i < 16 * BLOCKS; ++i) tokens[i] = (uint32_t)i + 5000;
  kvs_hash hashes[BLOCKS];
  size_t count = 0;
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS, &count) == KVS_OK);
  void* to[BLOCKS];
  for (size_t i = 0; i < BLOCKS; ++i) {
    memset(memory + i * BLOCK_BYTES, (int)(i + 33), BLOCK_BYTES);
    to[i] = memory + i * BLOCK_BYTES;
  }
  kvs_request put = KVS_REQUEST_INIT(KVS_OP_PUT);
  put.deadline_us = 5000000;
  CHECK(submit(queue, with(&put, space, hashes, BLOCKS, to), 3, &call) == KVS_OK);
  end = next(queue);
  CHECK(end.op == KVS_OP_PUT && end.status == KVS_OK && end.why == KVS_OK);
  CHECK(end.block_count + end.already_stored == BLOCKS && end.refused == 0);

  kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH);
  match.deadline_us = 5000000;
  match.flags = KVS_FLAG_LEASE;
  CHECK(submit(queue, with(&match, space, hashes, BLOCKS, NULL), 4, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.op == KVS_OP_MATCH && end.block_count == BLOCKS && end.lease != 0);
  CHECK(submit(queue, lease_of(end.lease), 5, NULL) == KVS_OK && next(queue).status == KVS_OK);

  memset(memory, 0, BLOCKS * BLOCK_BYTES);
  const uint64_t ends[2] = {65536, BLOCK_BYTES};
  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET);
  get.deadline_us = 5000000;
  get.segment_ends = ends;
  get.segment_count = 2;
  CHECK(submit(queue, with(&get, space, hashes, BLOCKS, to), 6, &call) == KVS_OK);
  for (size_t segment = 0; segment < 2; ++segment) {
    end = next(queue);
    CHECK(end.event == KVS_EVENT_SEGMENT && end.call == call && end.segment == segment && end.block_count == BLOCKS);
  }
  end = next(queue);
  CHECK(end.event == KVS_EVENT_END && end.block_count == BLOCKS && end.corrupt_count == 0);
  for (size_t i = 0; i < BLOCKS; ++i) {
    for (size_t j = 0; j < BLOCK_BYTES; ++j) CHECK(memory[i * BLOCK_BYTES + j] == i + 33);
  }

  kvs_request load = KVS_REQUEST_INIT(KVS_OP_LOAD);
  load.deadline_us = 5000000;
  load.block_count_min = BLOCKS;
  load.flags = KVS_FLAG_TELL_MATCH;
  CHECK(submit(queue, with(&load, space, hashes, BLOCKS, to), 7, &call) == KVS_OK);
  end = next(queue);
  CHECK(end.event == KVS_EVENT_MATCHED && end.block_count == BLOCKS);
  end = next(queue);
  CHECK(end.event == KVS_EVENT_END && end.block_count == BLOCKS && end.matched_count == BLOCKS);

  /* Of several one, then the others. */
  kvs_call calls[3];
  CHECK(submit(queue, of(KVS_OP_TOUCH, space, hashes, BLOCKS, 5000000), 8, &calls[0]) == KVS_OK);
  CHECK(submit(queue, of(KVS_OP_RETAIN, space, hashes, BLOCKS, 5000000), 9, &calls[1]) == KVS_OK);
  CHECK(submit(queue, of(KVS_OP_UNRETAIN, space, hashes, BLOCKS, 5000000), 10, &calls[2]) == KVS_OK);
  kvs_completion several[3];
  CHECK(kvs_wait(queue, &calls[1], 1, 1, 10000000, several, sizeof *several, &count) == KVS_OK && count == 1);
  CHECK(several[0].tag == 9 && several[0].block_count == BLOCKS);
  CHECK(kvs_wait(queue, calls, 3, 1, 10000000, several, sizeof *several, &count) == KVS_NOT_FOUND && count == 0);
  calls[1] = calls[2];
  CHECK(kvs_wait(queue, calls, 2, 2, 10000000, several, sizeof *several, &count) == KVS_OK && count == 2);
  CHECK(several[0].tag == 8 && several[1].tag == 10);
  CHECK(kvs_cancel(queue, calls[0]) == KVS_NOT_FOUND && kvs_cancel(queue, 0) == KVS_NOT_FOUND);

  /* calls_max counts until the end is reaped. */
  for (int i = 0; i < 4; ++i)
    CHECK(submit(queue, of(KVS_OP_TOUCH, space, hashes, BLOCKS, 5000000), 11, NULL) == KVS_OK);
  CHECK(submit(queue, of(KVS_OP_TOUCH, space, hashes, BLOCKS, 5000000), 11, NULL) == KVS_BUSY);
  CHECK(kvs_queue_in_flight(queue, &count, NULL) == KVS_OK && count == 4);
  for (int i = 0; i < 4; ++i) (void)next(queue);
  uint64_t bytes = 1;
  CHECK(kvs_queue_in_flight(queue, &count, &bytes) == KVS_OK && count == 0 && bytes == 0);

  char json[65536];
  CHECK(submit(queue, answered(of(KVS_OP_STATS, 0, NULL, 0, 5000000), json, sizeof json), 12, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.op == KVS_OP_STATS && end.status == KVS_OK && strlen(json) == end.length);
  CHECK(submit(queue, answered(of(KVS_OP_STATS, 0, NULL, 0, 5000000), json, 5), 12, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.status == KVS_TOO_LARGE && end.length > 5);
  CHECK(submit(queue, memory_of(KVS_OP_LEND, memory, BLOCK_BYTES), 13, NULL) == KVS_OK);
  (void)next(queue); /* as the memory is lendable, or not */
  CHECK(submit(queue, memory_of(KVS_OP_REMOVE_DEVICE_MEMORY, memory, 1), 14, NULL) == KVS_OK);
  CHECK(next(queue).status == KVS_BAD_REQUEST);
  CHECK(submit(queue, of(KVS_OP_DROP, space, hashes, BLOCKS, 5000000), 15, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.status == KVS_OK && end.block_count == 1 && end.until_restart == 0);

  /* Mistakes. */
  CHECK(submit(queue, with(&get, space + 9, hashes, BLOCKS, to), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, with(&get, space, NULL, BLOCKS, to), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, with(&get, space, hashes, BLOCKS, NULL), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(NULL, with(&match, space, hashes, BLOCKS, NULL), 0, &call) == KVS_BAD_REQUEST);
  CHECK(submit(queue, open_of("block_size=0\n", 0), 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_reap(queue, NULL, sizeof end, 1, 0, 0, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_reap(queue, &end, 8, 1, 0, 0, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_queue_fd(NULL) == -1);
  kvs_queue_close(NULL);

  /* A caller that was compiled with a newer header finds zeros where this library knows nothing. */
  struct {
    kvs_completion known;
    uint64_t later;
  } newer[2];
  memset(newer, 0xFF, sizeof newer);
  for (int i = 0; i < 2; ++i) CHECK(submit(queue, of(KVS_OP_TOUCH, space, hashes, 1, 5000000), 16, NULL) == KVS_OK);
  CHECK(kvs_reap(queue, &newer[0].known, sizeof newer[0], 2, 2, 10000000, &count) == KVS_OK && count == 2);
  CHECK(newer[0].known.tag == 16 && newer[0].later == 0 && newer[1].known.tag == 16 && newer[1].later == 0);

  /* Shut down with calls in flight: all end, none is taken, and what ended can be reaped. */
  for (int i = 0; i < 3; ++i) {
    CHECK(submit(queue, with(&get, space, hashes, BLOCKS, to), 17, NULL) == KVS_OK);
  }
  CHECK(kvs_queue_shutdown(queue) == KVS_OK);
  CHECK(submit(queue, of(KVS_OP_TOUCH, space, hashes, 1, 5000000), 18, NULL) == KVS_CANCELLED);
  size_t left = 3;
  while (left > 0) {
    end = next(queue);
    left -= end.event == KVS_EVENT_END;
    CHECK(end.tag == 17 && (end.status == KVS_OK || end.status == KVS_CANCELLED));
  }
  kvs_queue_close(queue);
}

/* A caller that was compiled with a newer and one with an older header. */
static void other_versions(kvs_client* client) {
  kvs_space space;
  CHECK(open_space(client, "block_bytes=131072\nblock_size=16\nmodel=c\n", 5000000, &space) == KVS_OK);
  kvs_hash hash;
  memset(&hash, 7, sizeof hash);
  struct {
    kvs_request known;
    uint64_t later;
  } newer = {of(KVS_OP_MATCH, space, &hash, 1, 5000000), 0};
  newer.known.struct_size = sizeof newer;
  struct {
    kvs_completion known;
    uint64_t later;
  } result = {.later = 7};
  CHECK(kvs_run(client, &newer.known, &result.known, sizeof result) == KVS_OK);
  CHECK(result.known.block_count == 0 && result.later == 0);
  newer.later = 1;
  CHECK(kvs_run(client, &newer.known, &result.known, sizeof result) == KVS_UNSUPPORTED);
  SAYS("struct_size: 328, and byte 320 is set; this version of libkvstore knows 320");

  newer.known.struct_size = offsetof(kvs_request, memory);
  newer.known.memory = &hash; /* an older caller has something else there */
  result.known.lease = 0x5555;
  CHECK(kvs_run(client, &newer.known, &result.known, offsetof(kvs_completion, lease)) == KVS_OK);
  CHECK(result.known.lease == 0x5555);
  newer.known.struct_size = 0;
  CHECK(run(client, newer.known, NULL) == KVS_BAD_REQUEST);
  SAYS("struct_size: 0, allowed are 8 to 65536");
  newer.known.struct_size = sizeof newer.known;
  CHECK(kvs_run(client, &newer.known, &result.known, 8) == KVS_BAD_REQUEST);
  SAYS("completion_size: 8, allowed are 32 to 65536");
  CHECK(kvs_run(client, &newer.known, NULL, sizeof result) == KVS_BAD_REQUEST);
  CHECK(kvs_run(client, NULL, NULL, 0) == KVS_BAD_REQUEST);
}

/* Addresses that this program cannot touch stand in for a GPU's. Over a Unix socket there is no way to them. */
static void device_memory(kvs_client* client) {
  kvs_space space;
  CHECK(open_space(client, "block_bytes=131072\nblock_size=16\nmodel=c\n", 5000000, &space) == KVS_OK);
  void* const address = (void*)(uintptr_t)0x7000000000;
  kvs_device_memory memory = KVS_DEVICE_MEMORY_INIT;
  CHECK(kvs_add_device_memory(client, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_add_device_memory(client, &memory) == KVS_BAD_REQUEST);
  memory.address = address;
  memory.bytes = BLOCK_BYTES;
  CHECK(kvs_add_device_memory(client, &memory) == KVS_OK);
  CHECK(kvs_add_device_memory(client, &memory) == KVS_BAD_REQUEST);
  kvs_completion lent;
  CHECK(run(client, memory_of(KVS_OP_LEND, address, BLOCK_BYTES), &lent) == KVS_OK && lent.block_count == 0);

  kvs_hash hash;
  memset(&hash, 7, sizeof hash);
  uint64_t sums[2] = {0, 0};
  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET);
  kvs_completion got;
  get.deadline_us = 5000000;
  CHECK(run(client, with(&get, space, &hash, 1, &memory.address), &got) == KVS_BAD_REQUEST);
  get.checksums = sums;
  get.checksum_count = 2;
  CHECK(run(client, with(&get, space, &hash, 1, &memory.address), &got) == KVS_OK);
  CHECK(got.block_count == 0 && got.why == KVS_NO_REGION);
  kvs_request put = KVS_REQUEST_INIT(KVS_OP_PUT);
  kvs_completion stored;
  put.deadline_us = 5000000;
  CHECK(run(client, with(&put, space, &hash, 1, &memory.address), &stored) == KVS_BAD_REQUEST);
  put.checksums = sums;
  put.checksum_count = 2;
  CHECK(run(client, with(&put, space, &hash, 1, &memory.address), &stored) == KVS_OK);
  CHECK(stored.block_count == 0 && stored.refused == 1 && stored.why == KVS_NO_REGION);

  CHECK(kvs_free(client, address, BLOCK_BYTES) == KVS_BAD_REQUEST);
  CHECK(run(client, memory_of(KVS_OP_REMOVE_DEVICE_MEMORY, address, 1), NULL) == KVS_BAD_REQUEST);
  CHECK(run(client, memory_of(KVS_OP_REMOVE_DEVICE_MEMORY, address, BLOCK_BYTES), NULL) == KVS_OK);
  CHECK(run(client, memory_of(KVS_OP_REMOVE_DEVICE_MEMORY, address, BLOCK_BYTES), NULL) == KVS_BAD_REQUEST);
}

static void mistakes(kvs_client* client) {
  kvs_client* none = NULL;
  kvs_options options = KVS_OPTIONS_INIT;
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST && none == NULL);
  CHECK(strncmp(kvs_last_error(), "nodes", 5) == 0);
  kvs_node node = {"carrier-pigeon://x", NULL, 0};
  options.nodes = &node;
  options.node_count = 1;
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST);
  options.endpoints = "unix:///nowhere";
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "endpoints: is set, allowed beside nodes is NULL") == 0);
  options.endpoints = NULL;
  node.endpoint = "tcp://192.0.2.1:7400";
  options.token = "a-token-that-is-long-enough-for-a-test";
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST && strstr(kvs_last_error(), "plain text") != NULL);
  CHECK(strstr(kvs_last_error(), "a-token") == NULL);
  options.token_file = "/nowhere";
  node.endpoint = "unix:///nowhere";
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST && strstr(kvs_last_error(), "token_file too") != NULL);
  CHECK(strcmp(kvs_status_text(KVS_PERMISSION_DENIED), "permission denied by the node's policy") == 0);
  options.token = options.token_file = NULL;
  options.numa_nodes = "8191";
  CHECK(kvs_client_open(&options, &none) == KVS_BAD_REQUEST && none == NULL);
  CHECK(strncmp(kvs_last_error(), "numa_nodes: '8191'; node 8191 is not there", 42) == 0);
  options.struct_size = offsetof(kvs_options, numa_nodes); /* an older caller has something else there */
  CHECK(kvs_client_open(&options, &none) == KVS_OK);
  kvs_client_close(none);
  kvs_space space;
  CHECK(open_space(client, "model=c\nblock_size=0\nblock_bytes=5\n", 1000, &space) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "block_size") != NULL);
  CHECK(open_space(client, NULL, 1000, &space) == KVS_BAD_REQUEST);
  CHECK(open_space(NULL, "", 1000, &space) == KVS_BAD_REQUEST);
  kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET);
  kvs_completion got;
  CHECK(run(client, with(&get, 99, NULL, 1, NULL), &got) == KVS_BAD_REQUEST);
  CHECK(kvs_free(client, &space, 4) == KVS_BAD_REQUEST);
  kvs_client_close(NULL);
}

/* A worker starts while the store is away, and finds nothing until the store is there. */
static void away(void) {
  kvs_client* client = NULL;
  kvs_options options = KVS_OPTIONS_INIT;
  options.endpoints = "unix:///nonexistent/kvstore.sock, unix:///nonexistent/another.sock";
  CHECK(kvs_client_open(&options, &client) == KVS_OK);
  kvs_space space = 0;
  CHECK(open_space(client, "model=c\nblock_size=1\nblock_bytes=5\n", 0, &space) == KVS_OK);
  CHECK(open_space(client, "model=c\nblock_size=1\nblock_bytes=5\n", 5000000, &space) == KVS_OK);
  kvs_hash hash = {{1}};
  kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH);
  kvs_completion found;
  match.deadline_us = 5000000;
  CHECK(run(client, with(&match, space, &hash, 1, NULL), &found) == KVS_OK);
  CHECK(found.block_count == 0 && found.why == KVS_UNAVAILABLE);
  CHECK(run(client, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 5000000), NULL) == KVS_UNAVAILABLE);
  CHECK(run(client, of(KVS_OP_WAIT_OPEN, space + 1, NULL, 0, 5000000), NULL) == KVS_BAD_REQUEST);
  /* Calls that never block are answered at once. */
  kvs_queue_options queue_options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  CHECK(kvs_queue_open(client, &queue_options, &queue) == KVS_OK);
  match.deadline_us = 3600000000;
  CHECK(submit(queue, with(&match, space, &hash, 1, NULL), 0, NULL) == KVS_OK);
  const kvs_completion end = next(queue);
  CHECK(end.status == KVS_OK && end.block_count == 0 && end.why == KVS_UNAVAILABLE);
  /* A queue outlives its client. */
  CHECK(submit(queue, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 3600000000), 0, NULL) == KVS_OK);
  kvs_client_close(client);
  (void)next(queue);
  CHECK(submit(queue, with(&match, space, &hash, 1, NULL), 0, NULL) == KVS_CANCELLED);
  kvs_queue_close(queue);
}

/* In a child of fork() the parent's client answers at once; one of the child's own works. */
static void forked(kvs_client* client, const kvs_options* options) {
  const char* const record = "model=c\nblock_size=16\nblock_bytes=131072\n";
  kvs_space space = 0;
  CHECK(open_space(client, record, 5000000, &space) == KVS_OK);
  kvs_queue_options queue_options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  CHECK(kvs_queue_open(client, &queue_options, &queue) == KVS_OK);
  fflush(NULL);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60); /* a call that hangs fails the test */
    kvs_hash hash = {{1}};
    kvs_request match = KVS_REQUEST_INIT(KVS_OP_MATCH);
    kvs_completion found;
    match.deadline_us = 60000000;
    CHECK(run(client, with(&match, space, &hash, 1, NULL), &found) == KVS_FORKED);
    CHECK(strcmp(kvs_status_text(KVS_FORKED), "the client belongs to the parent process") == 0);
    CHECK(strstr(kvs_last_error(), "fork") != NULL);
    void* memory = NULL;
    CHECK(kvs_allocate(client, 4096, &memory) == KVS_FORKED);
    CHECK(run(client, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 60000000), NULL) == KVS_FORKED);
    CHECK(run(client, of(KVS_OP_TOUCH, space, &hash, 1, 60000000), NULL) == KVS_FORKED);
    CHECK(run(client, answered(of(KVS_OP_STATS, 0, NULL, 0, 60000000), NULL, 0), NULL) == KVS_FORKED);
    kvs_completion end;
    size_t count = 0;
    CHECK(submit(queue, of(KVS_OP_TOUCH, space, &hash, 1, 60000000), 0, NULL) == KVS_FORKED);
    CHECK(kvs_reap(queue, &end, sizeof end, 1, 1, 60000000, &count) == KVS_FORKED);
    CHECK(kvs_cancel(queue, 1) == KVS_FORKED && kvs_queue_fd(queue) == -1);
    kvs_queue* none = NULL;
    CHECK(kvs_queue_open(client, &queue_options, &none) == KVS_FORKED && none == NULL);
    kvs_queue_close(queue);
    kvs_client_close(client);
    kvs_client* own = NULL;
    CHECK(kvs_client_open(options, &own) == KVS_OK);
    CHECK(open_space(own, record, 30000000, &space) == KVS_OK);
    CHECK(run(own, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 30000000), NULL) == KVS_OK);
    CHECK(run(own, with(&match, space, &hash, 1, NULL), &found) == KVS_OK && found.why == KVS_OK);
    kvs_client_close(own);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(run(client, of(KVS_OP_TOUCH, space, NULL, 0, 5000000), NULL) == KVS_OK);
  CHECK(run(client, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 5000000), NULL) == KVS_OK); /* the parent goes on */
  CHECK(submit(queue, of(KVS_OP_WAIT_OPEN, space, NULL, 0, 5000000), 0, NULL) == KVS_OK &&
        next(queue).status == KVS_OK);
  kvs_queue_close(queue);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(kvs_abi_version() == KVS_ABI_VERSION);
  kvs_node node = {argv[1], NULL, 0};
  kvs_options options = KVS_OPTIONS_INIT;
  options.nodes = &node;
  options.node_count = 1;
  kvs_client* client = NULL;
  options.extent_blocks = (1u << 20) + 1;
  CHECK(kvs_client_open(&options, &client) == KVS_BAD_REQUEST && client == NULL);
  CHECK(strcmp(kvs_last_error(), "extent_blocks: is 1048577, must be 1..1048576") == 0);
  options.extent_blocks = 256;
  CHECK(kvs_client_open(&options, &client) == KVS_OK);

  unsigned char* memory = malloc(BLOCKS * BLOCK_BYTES);
  CHECK(memory != NULL);
  operations(client, memory);
  submitted(client, memory);
  sets(client, memory);
  submitted_sets(client, memory);
  free(memory);
  void* lent = NULL;
  CHECK(kvs_allocate(client, BLOCKS * BLOCK_BYTES, &lent) == KVS_OK);
  operations(client, lent);
  submitted(client, lent);
  sets(client, lent);
  submitted_sets(client, lent);
  CHECK(kvs_free(client, lent, BLOCKS * BLOCK_BYTES) == KVS_OK);
  device_memory(client);
  other_versions(client);
  mistakes(client);
  away();
  forked(client, &options);
  kvs_client_close(client);
  puts("c_api_test: all well");
  return 0;
}
