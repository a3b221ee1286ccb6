/* Looks a prompt up and stores missing blocks, in C: first_hit_c [ENDPOINT] (the packaged service's). */
#include <kvstore/client/kvstore.h>
#include <stdio.h>

static int fail(void) { return fprintf(stderr, "%s\n", kvs_last_error()), 1; }

int main(int argc, char** argv) {
  kvs_node node = {argc > 1 ? argv[1] : "unix:///run/kvstore/kvstore.sock", NULL, 0};
  kvs_options options = {.struct_size = sizeof options, .nodes = &node, .node_count = 1};
  kvs_client* client;
  if (kvs_client_open(&options, &client) != KVS_OK) return fail();
  /* Everything that shapes a block's bytes besides its tokens. Only equal records share blocks. */
  kvs_request request = KVS_REQUEST_INIT(KVS_VERB_OPEN);
  request.record = "block_bytes=65536\nblock_size=16\nmodel=example-c\n", request.deadline_us = 1000000;
  kvs_completion done;
  if (kvs_run(client, &request, &done, sizeof done) != KVS_OK) return fail();

  uint32_t prompt[4 * 16] = {0};
  kvs_hash hashes[4];
  static char memory[4][65536]; /* of prefill, which would compute the blocks that are not cached */
  void* blocks[4] = {memory[0], memory[1], memory[2], memory[3]};
  kvs_request get = {sizeof get, KVS_VERB_GET, .space = done.space, .deadline_us = 1000000, .blocks = blocks};
  if (kvs_hash_chain(request.record, prompt, 4 * 16, hashes, 4, &get.count) != KVS_OK) return fail();
  get.hashes = hashes;
  if (kvs_run(client, &get, &done, sizeof done) != KVS_OK) return fail();
  printf("%zu of %zu blocks were cached", done.block_count, get.count);
  if (done.why != KVS_OK) printf(" (%s)", kvs_status_text(done.why)); /* not asked, or not in time: compute all */
  get.verb = KVS_VERB_PUT;
  if (kvs_run(client, &get, &done, sizeof done) != KVS_OK) return fail();
  printf(", %zu stored\n", done.block_count);
  kvs_client_close(client);
}
