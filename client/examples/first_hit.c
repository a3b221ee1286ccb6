/* Looks a prompt up and stores missing blocks, in C: first_hit_c [ENDPOINT] (the packaged service's). */
#include <kvstore/client/kvstore.h>
#include <stdio.h>

static int fail(void) { return fprintf(stderr, "%s\n", kvs_last_error()), 1; }

int main(int argc, char** argv) {
  kvs_options options = {sizeof options, .endpoints = argc > 1 ? argv[1] : "unix:///run/kvstore/kvstore.sock"};
  kvs_client* client;
  if (kvs_client_open(&options, &client) != KVS_OK) return fail();
  const char* record = "block_bytes=65536\nblock_size=16\nmodel=example-c\n"; /* only equal ones share blocks */
  kvs_request open = {sizeof open, KVS_OP_OPEN, .deadline_us = 1000000, .record = record};
  kvs_completion done;
  if (kvs_run(client, &open, &done, sizeof done) != KVS_OK) return fail();
  uint32_t prompt[4 * 16] = {0};
  kvs_hash hashes[4];
  static char memory[4][65536]; /* of prefill, which would compute the blocks that are not cached */
  void* to[4] = {memory[0], memory[1], memory[2], memory[3]};
  kvs_request get = {sizeof get, KVS_OP_GET, .space = done.space, .hashes = hashes, .blocks = to};
  get.deadline_us = 1000000; /* a dead or slow node costs so much at most */
  if (kvs_hash_chain(record, prompt, 4 * 16, hashes, 4, &get.count) != KVS_OK) return fail();
  if (kvs_run(client, &get, &done, sizeof done) != KVS_OK) return fail();
  printf("%zu of %zu blocks were cached", done.block_count, get.count);
  if (done.why != KVS_OK) printf(" (%s)", kvs_status_text(done.why)); /* not asked, or not in time: compute all */
  get.op = KVS_OP_PUT;
  if (kvs_run(client, &get, &done, sizeof done) != KVS_OK) return fail();
  printf(", %zu stored\n", done.block_count);
  kvs_client_close(client);
}
