/* libkvstore from C, against a real node: c_api_test ENDPOINT. Exits 0 if everything is as it must be. */
#define _POSIX_C_SOURCE 200809L /* fork, waitpid, alarm */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvstore.h"
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

static void verbs(kvs_client* client, unsigned char* memory) {
  const char* record = "model=c\nblock_size=16\nblock_bytes=131072\n"; /* any order of lines */
  kvs_space space;
  CHECK(kvs_open(client, record, 5000000, &space) == KVS_OK);
  uint64_t block_bytes = 0;
  CHECK(kvs_block_bytes(client, space, &block_bytes) == KVS_OK && block_bytes == BLOCK_BYTES);
  CHECK(kvs_block_bytes(client, space + 9, &block_bytes) == KVS_BAD_REQUEST);

  uint32_t tokens[16 * BLOCKS];
  for (size_t i = 0; i < 16 * BLOCKS; ++i) tokens[i] = (uint32_t)i;
  kvs_hash hashes[BLOCKS];
  size_t count = 0;
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS - 1, &count) == KVS_TOO_LARGE);
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS, &count) == KVS_OK && count == BLOCKS);

  const void* from[BLOCKS];
  void* to[BLOCKS];
  for (size_t i = 0; i < BLOCKS; ++i) {
    memset(memory + i * BLOCK_BYTES, (int)(i + 1), BLOCK_BYTES);
    from[i] = to[i] = memory + i * BLOCK_BYTES;
  }
  kvs_put_options put = KVS_PUT_OPTIONS_INIT;
  kvs_put_result stored = KVS_PUT_RESULT_INIT;
  put.deadline_us = 5000000;
  put.checksum_count = BLOCKS * 2;
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_BAD_REQUEST);
  put.checksum_count = 0;
  put.reuse = KVS_REUSE_LATER + 1;
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_BAD_REQUEST);
  put.reuse = KVS_REUSE_LATER;
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_OK);
  CHECK(stored.stored + stored.already_stored == BLOCKS && stored.refused == 0 && stored.why == KVS_OK);

  kvs_match_options match = KVS_MATCH_OPTIONS_INIT;
  kvs_match_result matched = KVS_MATCH_RESULT_INIT;
  match.deadline_us = 5000000;
  match.lease = 1;
  match.reuse = KVS_REUSE_LATER + 1;
  CHECK(kvs_match(client, space, hashes, BLOCKS, &match, &matched) == KVS_BAD_REQUEST);
  match.reuse = KVS_REUSE_WITHIN_15_S;
  CHECK(kvs_match(client, space, hashes, BLOCKS, &match, &matched) == KVS_OK);
  CHECK(matched.block_count == BLOCKS && matched.lease != 0);
  CHECK(kvs_release(client, matched.lease) == KVS_OK);

  memset(memory, 0, BLOCKS * BLOCK_BYTES);
  const uint64_t ends[2] = {65536, BLOCK_BYTES};
  kvs_get_options get = KVS_GET_OPTIONS_INIT;
  kvs_get_result got = KVS_GET_RESULT_INIT;
  get.deadline_us = 5000000;
  get.segment_ends = ends;
  get.segment_count = 2;
  get.on_segment = &on_segment;
  get.context = &segments_seen;
  segments_seen = 0;
  CHECK(kvs_get(client, space, hashes, BLOCKS, to, &get, &got) == KVS_OK);
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
  CHECK(kvs_get(client, space, hashes, BLOCKS, to, &get, &got) == KVS_BAD_REQUEST);
  get.checksums = sums;
  get.checksum_count = 1;
  CHECK(kvs_get(client, space, hashes, BLOCKS, to, &get, &got) == KVS_BAD_REQUEST);
  get.checksum_count = BLOCKS * 2;
  CHECK(kvs_get(client, space, hashes, BLOCKS, to, &get, &got) == KVS_OK && got.block_count == BLOCKS);
  memcpy(wrong, sums, sizeof sums);
  wrong[0] ^= 1;
  CHECK(kvs_drop(client, space, hashes, 1, 5000000, NULL, NULL) == KVS_OK);
  put.checksums = wrong;
  put.checksum_count = BLOCKS * 2;
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_OK && stored.why == KVS_CORRUPT_BLOCK);
  put.checksums = sums;
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_OK && stored.stored == BLOCKS);

  uint64_t blocks = 0;
  CHECK(kvs_touch(client, space, hashes, BLOCKS, 5000000, &blocks) == KVS_OK && blocks == BLOCKS);
  CHECK(kvs_pin(client, space, hashes, BLOCKS, 5000000, &blocks) == KVS_OK && blocks == BLOCKS);
  CHECK(kvs_unpin(client, space, hashes, BLOCKS, 5000000, NULL) == KVS_OK);

  size_t length = 0;
  char told[4096];
  const char* tags[2] = {"team=x", "\"quoted\""};
  CHECK(kvs_context_create(client, space, hashes, BLOCKS, "prompt", tags, 2, 60000000, 1, 0, 7, 5000000, told,
                           sizeof told, &length) == KVS_OK);
  CHECK(strlen(told) == length &&
        strstr(told, "{\"name\":\"prompt\",\"tags\":[\"team=x\",\"\\\"quoted\\\"\"]") == told);
  CHECK(strstr(told, "\"priority\":7,\"yielded_blocks\":0") != NULL);
  CHECK(strstr(told, "\"sliding\":true") != NULL && strstr(told, "\"ttl_us\":60000000") != NULL);
  CHECK(kvs_context_list(client, NULL, 5000000, told, sizeof told, &length) == KVS_OK);
  CHECK(strncmp(told, "{\"contexts\":[{\"name\":\"prompt\"", 29) == 0 && strstr(told, "\"silent\":[]}") != NULL);
  CHECK(kvs_context_warm(client, "prompt", 0, 5000000, told, sizeof told, &length) == KVS_OK);
  CHECK(strstr(told, "\"warming\":false,\"memory_blocks\":") != NULL && strstr(told, "\"disk_blocks\":0}") != NULL);
  CHECK(kvs_context_warm(client, "prompt", 1, 5000000, told, sizeof told, &length) == KVS_OK);
  CHECK(kvs_context_warm(client, "none", 0, 5000000, told, sizeof told, &length) == KVS_NOT_FOUND);
  CHECK(kvs_context_warm(client, NULL, 0, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_list(client, "other", 5000000, told, sizeof told, &length) == KVS_OK);
  CHECK(strncmp(told, "{\"contexts\":[]", 14) == 0);
  CHECK(kvs_context_extend(client, "prompt", 0, 0, 1, -1, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_extend(client, "prompt", 1, 0, 1, -1, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_extend(client, "prompt", 0, 1, 0, -1, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_extend(client, "prompt", 1, 0, 0, 10, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_extend(client, NULL, 1, 0, 0, -1, 5000000, told, sizeof told, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_context_extend(client, "prompt", 120000000, 0, 0, -1, 5000000, NULL, 0, &length) == KVS_TOO_LARGE);
  CHECK(kvs_context_delete(client, "prompt", 5000000, told, sizeof told, &length) == KVS_OK);
  CHECK(strstr(told, "\"ttl_us\":120000000") != NULL);
  CHECK(kvs_context_delete(client, "prompt", 5000000, told, sizeof told, &length) == KVS_NOT_FOUND);
  CHECK(kvs_context_create(client, space, hashes, BLOCKS, "a b", NULL, 0, 1000000, 0, 0, -1, 5000000, told, sizeof told,
                           &length) == KVS_BAD_REQUEST);
  CHECK(kvs_stats(client, 5000000, NULL, 0, &length) == KVS_TOO_LARGE && length > 0);
  char* json = malloc(length + 4096);
  CHECK(json != NULL);
  CHECK(kvs_stats(client, 5000000, json, length + 4096, &length) == KVS_OK && strlen(json) == length);
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
  int until_restart = 7;
  CHECK(kvs_drop(client, space, hashes, BLOCKS, 5000000, &blocks, &until_restart) == KVS_OK && blocks == 1);
  CHECK(until_restart == 0);

  char why[4096];
  CHECK(kvs_why(client, space, hashes, BLOCKS, 5000000, NULL, 0, &length) == KVS_TOO_LARGE && length > 0);
  CHECK(kvs_why(client, space, hashes, BLOCKS, 5000000, why, sizeof why, &length) == KVS_OK && strlen(why) == length);
  CHECK(strstr(why, "\"reason\":\"dropped\"") != NULL && strstr(why, "\"whole\":false") != NULL);
  CHECK(kvs_why(client, space, NULL, 1, 5000000, why, sizeof why, &length) == KVS_BAD_REQUEST);
  CHECK(kvs_why(client, space, hashes, 0, 5000000, why, sizeof why, &length) == KVS_BAD_REQUEST);

  CHECK(kvs_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") == KVS_OK);
  kvs_match_options traced = KVS_MATCH_OPTIONS_INIT;
  kvs_match_result of_trace = KVS_MATCH_RESULT_INIT;
  traced.deadline_us = 5000000;
  CHECK(kvs_match(client, space, hashes, BLOCKS, &traced, &of_trace) == KVS_OK && of_trace.why == KVS_OK);
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
  kvs_space set;
  uint64_t bytes_max = 0;
  CHECK(kvs_open(client, record, 5000000, &set) == KVS_OK);
  CHECK(kvs_block_bytes(client, set, &bytes_max) == KVS_OK && bytes_max == BLOCK_BYTES);
  kvs_hash names[NAMES];
  void* at[NAMES];
  make_set(memory, names, at);
  const void* from[NAMES];
  for (size_t i = 0; i < NAMES; ++i) from[i] = at[i];

  kvs_put_set_options put = KVS_PUT_SET_OPTIONS_INIT;
  kvs_put_set_result stored = KVS_PUT_SET_RESULT_INIT;
  uint8_t outcomes[NAMES];
  put.deadline_us = 5000000;
  size_t wrong[NAMES];
  memcpy(wrong, kLengths, sizeof wrong);
  wrong[3] = 0;
  CHECK(kvs_put_set(client, set, names, NAMES, from, wrong, &put, outcomes, &stored) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "lengths[3]: 0, not 1..131072, the set's block_bytes_max") == 0);
  wrong[3] = BLOCK_BYTES + 1;
  CHECK(kvs_put_set(client, set, names, NAMES, from, wrong, &put, outcomes, &stored) == KVS_BAD_REQUEST);
  /* All but the last; then a name keeps what it has. */
  CHECK(kvs_put_set(client, set, names, NAMES - 1, from, kLengths, &put, outcomes, &stored) == KVS_OK);
  CHECK(stored.stored == NAMES - 1 && stored.refused == 0 && stored.conflicts == 0 && stored.why == KVS_OK);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(outcomes[i] == KVS_PUT_STORED);
  CHECK(kvs_put_set(client, set, names, 2, from, kLengths + 1, &put, outcomes, &stored) == KVS_OK);
  CHECK(stored.already_stored == 2 && outcomes[0] == KVS_PUT_ALREADY_STORED);
  CHECK(kvs_put_set(client, set, names, NAMES - 1, from, kLengths, &put, NULL, &stored) == KVS_OK);
  CHECK(stored.already_stored == NAMES - 1);

  kvs_match_set_options match = KVS_MATCH_SET_OPTIONS_INIT;
  kvs_match_set_result matched = KVS_MATCH_SET_RESULT_INIT;
  uint8_t held[NAMES];
  uint32_t found[NAMES];
  match.deadline_us = 5000000;
  match.lease = 1;
  CHECK(kvs_match_set(client, set, names, NAMES, &match, held, found, &matched) == KVS_OK);
  CHECK(matched.held_count == NAMES - 1 && matched.disk_count == 0 && matched.why == KVS_OK && matched.lease != 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(held[i] == KVS_HELD_IN_MEMORY && found[i] == kLengths[i]);
  CHECK(held[NAMES - 1] == KVS_HELD_NOWHERE && found[NAMES - 1] == 0);

  /* Any of them in any order: here the last first, one with too little room, and one that is not there. */
  kvs_get_set_options get = KVS_GET_SET_OPTIONS_INIT;
  kvs_get_set_result got = KVS_GET_SET_RESULT_INIT;
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
  CHECK(kvs_get_set(client, set, asked, NAMES, at, rooms, &get, landed, &got) == KVS_OK);
  CHECK(got.landed_count == NAMES - 2 && got.corrupt_count == 0 && got.why == KVS_OK);
  CHECK(landed[0].status == KVS_NOT_FOUND && landed[0].block_bytes == 0);
  CHECK(landed[1].status == KVS_TOO_LARGE && landed[1].block_bytes == 65537);
  for (size_t i = 2; i < NAMES; ++i) {
    const size_t length = kLengths[NAMES - 1 - i];
    CHECK(landed[i].status == KVS_OK && landed[i].block_bytes == length);
    CHECK(is_filled(at[i], length, (int)(NAMES - 1 - i + 101)));
    CHECK(is_filled((unsigned char*)at[i] + length, BLOCK_BYTES - length, 0xEE));
  }
  CHECK(kvs_release(client, matched.lease) == KVS_OK); /* the get has ended it, and that is no error */

  uint64_t blocks = 0;
  CHECK(kvs_touch(client, set, names, NAMES, 5000000, &blocks) == KVS_OK && blocks == NAMES - 1);
  CHECK(kvs_pin(client, set, names, NAMES, 5000000, &blocks) == KVS_OK && blocks == NAMES - 1);
  CHECK(kvs_unpin(client, set, names + 1, NAMES - 1, 5000000, &blocks) == KVS_OK && blocks == NAMES - 2);
  CHECK(kvs_drop(client, set, names + 1, 2, 5000000, &blocks, NULL) == KVS_OK && blocks == 2);
  CHECK(kvs_match_set(client, set, names, NAMES, &match, held, NULL, &matched) == KVS_OK);
  CHECK(matched.held_count == NAMES - 3 && held[0] == KVS_HELD_IN_MEMORY && held[1] == KVS_HELD_NOWHERE);
  CHECK(kvs_release(client, matched.lease) == KVS_OK);
  CHECK(kvs_match_set(client, set, NULL, 0, &match, NULL, NULL, &matched) == KVS_OK && matched.held_count == 0);

  /* Names in groups: 0, 1 and 2 of which two were dropped, then the rest without the last. */
  const uint32_t groups[] = {3, NAMES - 4};
  match.group_counts = get.group_counts = put.group_counts = groups;
  match.group_count = get.group_count = put.group_count = 2;
  CHECK(kvs_match_set(client, set, names, NAMES - 1, &match, held, NULL, &matched) == KVS_OK);
  CHECK(matched.held_count == NAMES - 4 && held[0] == KVS_HELD_NOWHERE && held[3] == KVS_HELD_IN_MEMORY);
  get.lease = matched.lease;
  CHECK(kvs_get_set(client, set, names, NAMES - 1, at, rooms, &get, landed, &got) == KVS_OK);
  CHECK(got.landed_count == NAMES - 4);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(landed[i].status == (i < 3 ? KVS_NOT_FOUND : KVS_OK));
  CHECK(kvs_put_set(client, set, names, NAMES - 1, from, kLengths, &put, outcomes, &stored) == KVS_OK);
  CHECK(stored.stored == 2 && stored.already_stored == NAMES - 3);
  CHECK(kvs_match_set(client, set, names, NAMES - 1, &match, held, NULL, &matched) == KVS_OK);
  CHECK(matched.held_count == NAMES - 1 && kvs_release(client, matched.lease) == KVS_OK);
  match.group_count = 1;
  CHECK(kvs_match_set(client, set, names, NAMES, &match, held, NULL, &matched) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "group_counts: 3 names in all, 6 are given") == 0);
  match.group_counts = NULL;
  CHECK(kvs_match_set(client, set, names, NAMES, &match, held, NULL, &matched) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "group_counts is NULL") == 0);
  match.group_count = get.group_count = put.group_count = 0;
  CHECK(kvs_drop(client, set, names + 1, 2, 5000000, &blocks, NULL) == KVS_OK && blocks == 2);

  /* Mistakes. */
  kvs_space chain;
  CHECK(kvs_open(client, "model=c\nblock_size=16\nblock_bytes=131072\n", 5000000, &chain) == KVS_OK);
  kvs_match_options of_chain = KVS_MATCH_OPTIONS_INIT;
  kvs_match_result prefix = KVS_MATCH_RESULT_INIT;
  of_chain.deadline_us = 5000000;
  CHECK(kvs_match(client, set, names, 1, &of_chain, &prefix) == KVS_UNSUPPORTED);
  CHECK(kvs_match_set(client, chain, names, 1, &match, held, found, &matched) == KVS_UNSUPPORTED);
  CHECK(kvs_get_set(client, chain, names, 1, at, rooms, &get, landed, &got) == KVS_UNSUPPORTED);
  CHECK(kvs_put_set(client, chain, names, 1, from, kLengths, &put, outcomes, &stored) == KVS_UNSUPPORTED);
  CHECK(kvs_get_set(client, set + 9, names, 1, at, rooms, &get, landed, &got) == KVS_BAD_REQUEST);
  CHECK(kvs_get_set(client, set, names, 1, at, NULL, &get, landed, &got) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "rooms is NULL") == 0);
  CHECK(kvs_put_set(client, set, names, 1, from, NULL, &put, outcomes, &stored) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "lengths is NULL") == 0);
  CHECK(kvs_match_set(client, set, NULL, 1, &match, held, found, &matched) == KVS_BAD_REQUEST);
  CHECK(kvs_match_set(client, set, names, 1, NULL, held, found, &matched) == KVS_BAD_REQUEST);
  CHECK(kvs_match_set(client, set, names, 1, &match, held, found, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_match_set(NULL, set, names, 1, &match, held, found, &matched) == KVS_BAD_REQUEST);
  CHECK(kvs_drop(client, set, NULL, 0, 5000000, &blocks, NULL) == KVS_OK && blocks == NAMES - 3);
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
  CHECK(kvs_open(client, "kind=set\nmodel=c\nblock_bytes_max=131072\n", 5000000, &set) == KVS_OK);
  CHECK(kvs_open(client, "model=c\nblock_size=16\nblock_bytes=131072\n", 5000000, &chain) == KVS_OK);
  kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  options.bytes_max = NAMES * (BLOCK_BYTES + 256);
  CHECK(kvs_queue_open(client, &options, &queue) == KVS_OK);
  kvs_hash names[NAMES];
  void* at[NAMES];
  make_set(memory, names, at);
  const void* from[NAMES];
  for (size_t i = 0; i < NAMES; ++i) from[i] = at[i];

  kvs_put_set_options put = KVS_PUT_SET_OPTIONS_INIT;
  uint8_t outcomes[NAMES];
  memset(outcomes, 0xEE, sizeof outcomes);
  put.deadline_us = 5000000;
  kvs_call call = 0;
  CHECK(kvs_submit_put_set(queue, set, names, NAMES - 1, from, kLengths, &put, outcomes, 1, &call) == KVS_OK);
  kvs_completion end = next(queue);
  CHECK(end.call == call && end.tag == 1 && end.verb == KVS_VERB_PUT_SET && end.event == KVS_EVENT_END);
  CHECK(end.status == KVS_OK && end.why == KVS_OK && end.block_count == NAMES - 1 && end.refused == 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(outcomes[i] == KVS_PUT_STORED);
  CHECK(outcomes[NAMES - 1] == 0xEE);

  kvs_match_set_options match = KVS_MATCH_SET_OPTIONS_INIT;
  uint8_t held[NAMES];
  uint32_t found[NAMES];
  match.deadline_us = 5000000;
  match.lease = 1;
  CHECK(kvs_submit_match_set(queue, set, names, NAMES, &match, held, found, 2, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.verb == KVS_VERB_MATCH_SET && end.status == KVS_OK && end.block_count == NAMES - 1 && end.lease != 0);
  for (size_t i = 0; i < NAMES - 1; ++i) CHECK(held[i] == KVS_HELD_IN_MEMORY && found[i] == kLengths[i]);
  CHECK(held[NAMES - 1] == KVS_HELD_NOWHERE && found[NAMES - 1] == 0);

  kvs_get_set_options get = KVS_GET_SET_OPTIONS_INIT;
  kvs_set_block landed[NAMES];
  size_t rooms[NAMES];
  get.deadline_us = 5000000;
  get.lease = end.lease;
  for (size_t i = 0; i < NAMES; ++i) rooms[i] = BLOCK_BYTES;
  rooms[1] = 63;
  memset(memory, 0, NAMES * BLOCK_BYTES);
  CHECK(kvs_submit_get_set(queue, set, names, NAMES, at, rooms, &get, landed, 3, NULL) == KVS_OK);
  /* Rooms count in full until the end is reaped. */
  get.lease = 0;
  CHECK(kvs_submit_get_set(queue, set, names, NAMES, at, rooms, &get, landed, 4, NULL) == KVS_BUSY);
  end = next(queue);
  CHECK(end.verb == KVS_VERB_GET_SET && end.status == KVS_OK && end.block_count == NAMES - 2 && end.why == KVS_OK);
  CHECK(landed[1].status == KVS_TOO_LARGE && landed[1].block_bytes == 64);
  CHECK(landed[NAMES - 1].status == KVS_NOT_FOUND);
  for (size_t i = 0; i < NAMES - 1; ++i) {
    if (i == 1) continue;
    CHECK(landed[i].status == KVS_OK && landed[i].block_bytes == kLengths[i]);
    CHECK(is_filled(at[i], kLengths[i], (int)(i + 101)));
  }

  /* Lists are filled whatever the end is: of a call that is refused, and of one that was late from the start. */
  memset(held, 0xEE, sizeof held);
  CHECK(kvs_submit_match_set(queue, chain, names, NAMES, &match, held, NULL, 5, NULL) == KVS_OK);
  CHECK(next(queue).status == KVS_UNSUPPORTED);
  for (size_t i = 0; i < NAMES; ++i) CHECK(held[i] == KVS_HELD_NOWHERE);
  CHECK(kvs_submit_get_set(queue, chain, names, 1, at, rooms, &get, landed, 6, NULL) == KVS_OK);
  CHECK(next(queue).status == KVS_UNSUPPORTED && landed[0].status == KVS_UNSUPPORTED && landed[0].block_bytes == 0);
  get.deadline_us = 0;
  CHECK(kvs_submit_get_set(queue, set, names, 2, at, rooms, &get, landed, 7, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.status == KVS_OK && end.why == KVS_TIMED_OUT && end.block_count == 0);
  CHECK(landed[0].status == KVS_TIMED_OUT && landed[1].status == KVS_TIMED_OUT);
  put.deadline_us = 0;
  CHECK(kvs_submit_put_set(queue, set, names, 2, from, kLengths, &put, outcomes, 8, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.why == KVS_TIMED_OUT && end.refused == 2 && outcomes[0] == KVS_PUT_REFUSED);

  CHECK(kvs_submit_get_set(queue, set + 9, names, 1, at, rooms, &get, landed, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_get_set(queue, set, names, 1, at, NULL, &get, landed, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_put_set(queue, set, names, 1, from, NULL, &put, outcomes, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_match_set(NULL, set, names, 1, &match, held, found, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_drop(queue, set, NULL, 0, 5000000, 9, NULL) == KVS_OK);
  CHECK(next(queue).block_count == NAMES - 1);
  size_t calls = 1;
  uint64_t bytes = 1;
  CHECK(kvs_queue_in_flight(queue, &calls, &bytes) == KVS_OK && calls == 0 && bytes == 0);
  kvs_queue_close(queue);
}

/* The same verbs without blocking. */
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
  CHECK(kvs_submit_open(queue, record, 5000000, 1, &call) == KVS_OK && call != 0);
  CHECK(readable(queue, 10000) == 1);
  kvs_completion end = next(queue);
  CHECK(end.call == call && end.tag == 1 && end.verb == KVS_VERB_OPEN && end.event == KVS_EVENT_END);
  CHECK(end.status == KVS_OK && readable(queue, 0) == 0);
  const kvs_space space = end.space;
  CHECK(kvs_submit_wait_open(queue, space, 5000000, 2, NULL) == KVS_OK && next(queue).status == KVS_OK);

  uint32_t tokens[16 * BLOCKS];
  for (size_t i = 0; i < 16 * BLOCKS; ++i) tokens[i] = (uint32_t)i + 5000;
  kvs_hash hashes[BLOCKS];
  size_t count = 0;
  CHECK(kvs_hash_chain(record, tokens, 16 * BLOCKS, hashes, BLOCKS, &count) == KVS_OK);
  const void* from[BLOCKS];
  void* to[BLOCKS];
  for (size_t i = 0; i < BLOCKS; ++i) {
    memset(memory + i * BLOCK_BYTES, (int)(i + 33), BLOCK_BYTES);
    from[i] = to[i] = memory + i * BLOCK_BYTES;
  }
  kvs_put_options put = KVS_PUT_OPTIONS_INIT;
  put.deadline_us = 5000000;
  CHECK(kvs_submit_put(queue, space, hashes, BLOCKS, from, &put, 3, &call) == KVS_OK);
  end = next(queue);
  CHECK(end.verb == KVS_VERB_PUT && end.status == KVS_OK && end.why == KVS_OK);
  CHECK(end.block_count + end.already_stored == BLOCKS && end.refused == 0);

  kvs_match_options match = KVS_MATCH_OPTIONS_INIT;
  match.deadline_us = 5000000;
  match.lease = 1;
  CHECK(kvs_submit_match(queue, space, hashes, BLOCKS, &match, 4, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.verb == KVS_VERB_MATCH && end.block_count == BLOCKS && end.lease != 0);
  CHECK(kvs_submit_release(queue, end.lease, 5, NULL) == KVS_OK && next(queue).status == KVS_OK);

  memset(memory, 0, BLOCKS * BLOCK_BYTES);
  const uint64_t ends[2] = {65536, BLOCK_BYTES};
  kvs_get_options get = KVS_GET_OPTIONS_INIT;
  get.deadline_us = 5000000;
  get.segment_ends = ends;
  get.segment_count = 2;
  CHECK(kvs_submit_get(queue, space, hashes, BLOCKS, to, &get, 6, &call) == KVS_OK);
  for (size_t segment = 0; segment < 2; ++segment) {
    end = next(queue);
    CHECK(end.event == KVS_EVENT_SEGMENT && end.call == call && end.segment == segment && end.block_count == BLOCKS);
  }
  end = next(queue);
  CHECK(end.event == KVS_EVENT_END && end.block_count == BLOCKS && end.corrupt_count == 0);
  for (size_t i = 0; i < BLOCKS; ++i) {
    for (size_t j = 0; j < BLOCK_BYTES; ++j) CHECK(memory[i * BLOCK_BYTES + j] == i + 33);
  }

  kvs_load_options load = KVS_LOAD_OPTIONS_INIT;
  load.deadline_us = 5000000;
  load.block_count_min = BLOCKS;
  load.tell_match = 1;
  CHECK(kvs_submit_load(queue, space, hashes, BLOCKS, to, &load, 7, &call) == KVS_OK);
  end = next(queue);
  CHECK(end.event == KVS_EVENT_MATCHED && end.block_count == BLOCKS);
  end = next(queue);
  CHECK(end.event == KVS_EVENT_END && end.block_count == BLOCKS && end.matched_count == BLOCKS);

  /* Of several one, then the others. */
  kvs_call calls[3];
  CHECK(kvs_submit_touch(queue, space, hashes, BLOCKS, 5000000, 8, &calls[0]) == KVS_OK);
  CHECK(kvs_submit_pin(queue, space, hashes, BLOCKS, 5000000, 9, &calls[1]) == KVS_OK);
  CHECK(kvs_submit_unpin(queue, space, hashes, BLOCKS, 5000000, 10, &calls[2]) == KVS_OK);
  kvs_completion several[3];
  CHECK(kvs_wait(queue, &calls[1], 1, 1, 10000000, several, sizeof *several, &count) == KVS_OK && count == 1);
  CHECK(several[0].tag == 9 && several[0].block_count == BLOCKS);
  CHECK(kvs_wait(queue, calls, 3, 1, 10000000, several, sizeof *several, &count) == KVS_NOT_FOUND && count == 0);
  calls[1] = calls[2];
  CHECK(kvs_wait(queue, calls, 2, 2, 10000000, several, sizeof *several, &count) == KVS_OK && count == 2);
  CHECK(several[0].tag == 8 && several[1].tag == 10);
  CHECK(kvs_cancel(queue, calls[0]) == KVS_NOT_FOUND && kvs_cancel(queue, 0) == KVS_NOT_FOUND);

  /* calls_max counts until the end is reaped. */
  for (int i = 0; i < 4; ++i) CHECK(kvs_submit_touch(queue, space, hashes, BLOCKS, 5000000, 11, NULL) == KVS_OK);
  CHECK(kvs_submit_touch(queue, space, hashes, BLOCKS, 5000000, 11, NULL) == KVS_BUSY);
  CHECK(kvs_queue_in_flight(queue, &count, NULL) == KVS_OK && count == 4);
  for (int i = 0; i < 4; ++i) (void)next(queue);
  uint64_t bytes = 1;
  CHECK(kvs_queue_in_flight(queue, &count, &bytes) == KVS_OK && count == 0 && bytes == 0);

  char json[65536];
  size_t length = 0;
  CHECK(kvs_submit_stats(queue, 5000000, json, sizeof json, &length, 12, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.verb == KVS_VERB_STATS && end.status == KVS_OK && strlen(json) == length);
  CHECK(kvs_submit_stats(queue, 5000000, json, 5, &length, 12, NULL) == KVS_OK);
  CHECK(next(queue).status == KVS_TOO_LARGE && length > 5);
  CHECK(kvs_submit_lend(queue, memory, BLOCK_BYTES, 5000000, 13, NULL) == KVS_OK);
  (void)next(queue); /* as the memory is lendable, or not */
  CHECK(kvs_submit_remove_device_memory(queue, memory, 1, 5000000, 14, NULL) == KVS_OK);
  CHECK(next(queue).status == KVS_BAD_REQUEST);
  CHECK(kvs_submit_drop(queue, space, hashes, BLOCKS, 5000000, 15, NULL) == KVS_OK);
  end = next(queue);
  CHECK(end.status == KVS_OK && end.block_count == 1 && end.until_restart == 0);

  /* Mistakes. */
  CHECK(kvs_submit_get(queue, space + 9, hashes, BLOCKS, to, &get, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_get(queue, space, NULL, BLOCKS, to, &get, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_get(queue, space, hashes, BLOCKS, NULL, &get, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_match(NULL, space, hashes, BLOCKS, &match, 0, &call) == KVS_BAD_REQUEST);
  CHECK(kvs_submit_open(queue, "block_size=0\n", 0, 0, &call) == KVS_BAD_REQUEST);
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
  for (int i = 0; i < 2; ++i) CHECK(kvs_submit_touch(queue, space, hashes, 1, 5000000, 16, NULL) == KVS_OK);
  CHECK(kvs_reap(queue, &newer[0].known, sizeof newer[0], 2, 2, 10000000, &count) == KVS_OK && count == 2);
  CHECK(newer[0].known.tag == 16 && newer[0].later == 0 && newer[1].known.tag == 16 && newer[1].later == 0);

  /* Shut down with calls in flight: all end, none is taken, and what ended can be reaped. */
  for (int i = 0; i < 3; ++i) {
    CHECK(kvs_submit_get(queue, space, hashes, BLOCKS, to, &get, 17, NULL) == KVS_OK);
  }
  CHECK(kvs_queue_shutdown(queue) == KVS_OK);
  CHECK(kvs_submit_touch(queue, space, hashes, 1, 5000000, 18, NULL) == KVS_CANCELLED);
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
  CHECK(kvs_open(client, "block_bytes=131072\nblock_size=16\nmodel=c\n", 5000000, &space) == KVS_OK);
  struct {
    kvs_match_options known;
    uint64_t later;
  } newer = {KVS_MATCH_OPTIONS_INIT, 0};
  newer.known.struct_size = sizeof newer;
  newer.known.deadline_us = 5000000;
  kvs_hash hash;
  memset(&hash, 7, sizeof hash);
  kvs_match_result result = KVS_MATCH_RESULT_INIT;
  CHECK(kvs_match(client, space, &hash, 1, &newer.known, &result) == KVS_OK && result.block_count == 0);
  newer.later = 1;
  CHECK(kvs_match(client, space, &hash, 1, &newer.known, &result) == KVS_UNSUPPORTED);

  newer.known.struct_size = offsetof(kvs_match_options, lease);
  newer.known.lease = 1; /* an older caller has something else there */
  result.struct_size = offsetof(kvs_match_result, lease);
  result.lease = 0x5555;
  CHECK(kvs_match(client, space, &hash, 1, &newer.known, &result) == KVS_OK && result.lease == 0x5555);
  newer.known.struct_size = 0;
  CHECK(kvs_match(client, space, &hash, 1, &newer.known, &result) == KVS_BAD_REQUEST);
}

/* Addresses that this program cannot touch stand in for a GPU's. Over a Unix socket there is no way to them. */
static void device_memory(kvs_client* client) {
  kvs_space space;
  CHECK(kvs_open(client, "block_bytes=131072\nblock_size=16\nmodel=c\n", 5000000, &space) == KVS_OK);
  void* const address = (void*)(uintptr_t)0x7000000000;
  kvs_device_memory memory = KVS_DEVICE_MEMORY_INIT;
  CHECK(kvs_add_device_memory(client, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_add_device_memory(client, &memory) == KVS_BAD_REQUEST);
  memory.address = address;
  memory.bytes = BLOCK_BYTES;
  CHECK(kvs_add_device_memory(client, &memory) == KVS_OK);
  CHECK(kvs_add_device_memory(client, &memory) == KVS_BAD_REQUEST);
  size_t connections = 1;
  CHECK(kvs_lend(client, address, BLOCK_BYTES, 5000000, &connections) == KVS_OK && connections == 0);

  kvs_hash hash;
  memset(&hash, 7, sizeof hash);
  uint64_t sums[2] = {0, 0};
  kvs_get_options get = KVS_GET_OPTIONS_INIT;
  kvs_get_result got = KVS_GET_RESULT_INIT;
  get.deadline_us = 5000000;
  CHECK(kvs_get(client, space, &hash, 1, &memory.address, &get, &got) == KVS_BAD_REQUEST);
  get.checksums = sums;
  get.checksum_count = 2;
  CHECK(kvs_get(client, space, &hash, 1, &memory.address, &get, &got) == KVS_OK);
  CHECK(got.block_count == 0 && got.why == KVS_NO_REGION);
  kvs_put_options put = KVS_PUT_OPTIONS_INIT;
  kvs_put_result stored = KVS_PUT_RESULT_INIT;
  const void* from = address;
  put.deadline_us = 5000000;
  CHECK(kvs_put(client, space, &hash, 1, &from, &put, &stored) == KVS_BAD_REQUEST);
  put.checksums = sums;
  put.checksum_count = 2;
  CHECK(kvs_put(client, space, &hash, 1, &from, &put, &stored) == KVS_OK);
  CHECK(stored.stored == 0 && stored.refused == 1 && stored.why == KVS_NO_REGION);

  CHECK(kvs_free(client, address, BLOCK_BYTES) == KVS_BAD_REQUEST);
  CHECK(kvs_remove_device_memory(client, address, 1, 5000000) == KVS_BAD_REQUEST);
  CHECK(kvs_remove_device_memory(client, address, BLOCK_BYTES, 5000000) == KVS_OK);
  CHECK(kvs_remove_device_memory(client, address, BLOCK_BYTES, 5000000) == KVS_BAD_REQUEST);
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
  CHECK(kvs_open(client, "model=c\nblock_size=0\nblock_bytes=5\n", 1000, &space) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "block_size") != NULL);
  CHECK(kvs_open(client, NULL, 1000, &space) == KVS_BAD_REQUEST);
  CHECK(kvs_open(NULL, "", 1000, &space) == KVS_BAD_REQUEST);
  kvs_get_options get = KVS_GET_OPTIONS_INIT;
  kvs_get_result got = KVS_GET_RESULT_INIT;
  CHECK(kvs_get(client, 99, NULL, 1, NULL, &get, &got) == KVS_BAD_REQUEST);
  CHECK(kvs_free(client, &space, 4) == KVS_BAD_REQUEST);
  kvs_client_close(NULL);
}

/* A worker starts while the store is away, and finds nothing until the store is there. */
static void away(void) {
  kvs_client* client = NULL;
  kvs_options options = KVS_OPTIONS_INIT;
  kvs_node node = {"unix:///nonexistent/kvstore.sock", NULL, 0};
  options.nodes = &node;
  options.node_count = 1;
  CHECK(kvs_client_open(&options, &client) == KVS_OK);
  kvs_space space = 0;
  CHECK(kvs_open(client, "model=c\nblock_size=1\nblock_bytes=5\n", 0, &space) == KVS_OK);
  CHECK(kvs_open(client, "model=c\nblock_size=1\nblock_bytes=5\n", 5000000, &space) == KVS_OK);
  kvs_hash hash = {{1}};
  kvs_match_options match = KVS_MATCH_OPTIONS_INIT;
  kvs_match_result found = KVS_MATCH_RESULT_INIT;
  match.deadline_us = 5000000;
  CHECK(kvs_match(client, space, &hash, 1, &match, &found) == KVS_OK);
  CHECK(found.block_count == 0 && found.why == KVS_UNAVAILABLE);
  CHECK(kvs_wait_open(client, space, 5000000) == KVS_UNAVAILABLE);
  CHECK(kvs_wait_open(client, space + 1, 5000000) == KVS_BAD_REQUEST);
  /* Calls that never block are answered at once. */
  kvs_queue_options queue_options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  CHECK(kvs_queue_open(client, &queue_options, &queue) == KVS_OK);
  match.deadline_us = 3600000000;
  CHECK(kvs_submit_match(queue, space, &hash, 1, &match, 0, NULL) == KVS_OK);
  const kvs_completion end = next(queue);
  CHECK(end.status == KVS_OK && end.block_count == 0 && end.why == KVS_UNAVAILABLE);
  /* A queue outlives its client. */
  CHECK(kvs_submit_wait_open(queue, space, 3600000000, 0, NULL) == KVS_OK);
  kvs_client_close(client);
  (void)next(queue);
  CHECK(kvs_submit_match(queue, space, &hash, 1, &match, 0, NULL) == KVS_CANCELLED);
  kvs_queue_close(queue);
}

/* In a child of fork() the parent's client answers at once; one of the child's own works. */
static void forked(kvs_client* client, const kvs_options* options) {
  const char* const record = "model=c\nblock_size=16\nblock_bytes=131072\n";
  kvs_space space = 0;
  CHECK(kvs_open(client, record, 5000000, &space) == KVS_OK);
  kvs_queue_options queue_options = KVS_QUEUE_OPTIONS_INIT;
  kvs_queue* queue = NULL;
  CHECK(kvs_queue_open(client, &queue_options, &queue) == KVS_OK);
  fflush(NULL);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60); /* a call that hangs fails the test */
    kvs_hash hash = {{1}};
    kvs_match_options match = KVS_MATCH_OPTIONS_INIT;
    kvs_match_result found = KVS_MATCH_RESULT_INIT;
    match.deadline_us = 60000000;
    CHECK(kvs_match(client, space, &hash, 1, &match, &found) == KVS_FORKED);
    CHECK(strcmp(kvs_status_text(KVS_FORKED), "the client belongs to the parent process") == 0);
    CHECK(strstr(kvs_last_error(), "fork") != NULL);
    void* memory = NULL;
    CHECK(kvs_allocate(client, 4096, &memory) == KVS_FORKED);
    CHECK(kvs_wait_open(client, space, 60000000) == KVS_FORKED);
    CHECK(kvs_touch(client, space, &hash, 1, 60000000, NULL) == KVS_FORKED);
    CHECK(kvs_stats(client, 60000000, NULL, 0, NULL) == KVS_FORKED);
    kvs_completion end;
    size_t count = 0;
    CHECK(kvs_submit_touch(queue, space, &hash, 1, 60000000, 0, NULL) == KVS_FORKED);
    CHECK(kvs_reap(queue, &end, sizeof end, 1, 1, 60000000, &count) == KVS_FORKED);
    CHECK(kvs_cancel(queue, 1) == KVS_FORKED && kvs_queue_fd(queue) == -1);
    kvs_queue* none = NULL;
    CHECK(kvs_queue_open(client, &queue_options, &none) == KVS_FORKED && none == NULL);
    kvs_queue_close(queue);
    kvs_client_close(client);
    kvs_client* own = NULL;
    CHECK(kvs_client_open(options, &own) == KVS_OK);
    CHECK(kvs_open(own, record, 30000000, &space) == KVS_OK);
    CHECK(kvs_wait_open(own, space, 30000000) == KVS_OK);
    CHECK(kvs_match(own, space, &hash, 1, &match, &found) == KVS_OK && found.why == KVS_OK);
    kvs_client_close(own);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(kvs_touch(client, space, NULL, 0, 5000000, NULL) == KVS_OK);
  CHECK(kvs_wait_open(client, space, 5000000) == KVS_OK); /* the parent goes on */
  CHECK(kvs_submit_wait_open(queue, space, 5000000, 0, NULL) == KVS_OK && next(queue).status == KVS_OK);
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
  verbs(client, memory);
  submitted(client, memory);
  sets(client, memory);
  submitted_sets(client, memory);
  free(memory);
  void* lent = NULL;
  CHECK(kvs_allocate(client, BLOCKS * BLOCK_BYTES, &lent) == KVS_OK);
  verbs(client, lent);
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
