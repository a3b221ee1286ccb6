/* libkvstore from C, against a real node: c_api_test ENDPOINT. Exits 0 if everything is as it must be. */
#define _POSIX_C_SOURCE 200809L /* fork, waitpid, alarm */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvstore.h"

#define BLOCKS 8
#define BLOCK_BYTES 131072

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, kvs_last_error()); \
      exit(1);                                                                                          \
    }                                                                                                   \
  } while (0)

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
  CHECK(kvs_put(client, space, hashes, BLOCKS, from, &put, &stored) == KVS_OK);
  CHECK(stored.stored + stored.already_stored == BLOCKS && stored.refused == 0 && stored.why == KVS_OK);

  kvs_match_options match = KVS_MATCH_OPTIONS_INIT;
  kvs_match_result matched = KVS_MATCH_RESULT_INIT;
  match.deadline_us = 5000000;
  match.lease = 1;
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
  CHECK(kvs_stats(client, 5000000, NULL, 0, &length) == KVS_TOO_LARGE && length > 0);
  char* json = malloc(length + 4096);
  CHECK(json != NULL);
  CHECK(kvs_stats(client, 5000000, json, length + 4096, &length) == KVS_OK && strlen(json) == length);
  CHECK(strncmp(json, "{\"nodes\":[{\"name\":", 18) == 0 && strstr(json, "\"capacity_bytes\":") != NULL);
  free(json);
  int until_restart = 7;
  CHECK(kvs_drop(client, space, hashes, BLOCKS, 5000000, &blocks, &until_restart) == KVS_OK && blocks == 1);
  CHECK(until_restart == 0);
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
  kvs_client_close(client);
}

/* In a child of fork() the parent's client answers at once; one of the child's own works. */
static void forked(kvs_client* client, const kvs_options* options) {
  const char* const record = "model=c\nblock_size=16\nblock_bytes=131072\n";
  kvs_space space = 0;
  CHECK(kvs_open(client, record, 5000000, &space) == KVS_OK);
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
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(kvs_abi_version() == KVS_ABI_VERSION);
  kvs_node node = {argv[1], NULL, 0};
  kvs_options options = KVS_OPTIONS_INIT;
  options.nodes = &node;
  options.node_count = 1;
  kvs_client* client = NULL;
  CHECK(kvs_client_open(&options, &client) == KVS_OK);

  unsigned char* memory = malloc(BLOCKS * BLOCK_BYTES);
  CHECK(memory != NULL);
  verbs(client, memory);
  free(memory);
  void* lent = NULL;
  CHECK(kvs_allocate(client, BLOCKS * BLOCK_BYTES, &lent) == KVS_OK);
  verbs(client, lent);
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
