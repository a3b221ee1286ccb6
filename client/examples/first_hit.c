/* Looks a prompt up and stores missing blocks, in C.
 *   first_hit_c [ENDPOINT]      default: the socket of the packaged service */
#include <kvstore/client/kvstore.h>
#include <stdio.h>
#include <string.h>

enum { kBlocks = 4, kTokens = 16, kBytes = 65536, kSecond = 1000000 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kvs_last_error());
  return 1;
}

int main(int argc, char** argv) {
  kvs_node node = {argc > 1 ? argv[1] : "unix:///run/kvstore/kvstore.sock", NULL, 0};
  kvs_options options = KVS_OPTIONS_INIT;
  options.nodes = &node;
  options.node_count = 1;

  /* Everything that shapes a block's bytes besides its tokens. Only equal records share blocks. */
  const char* record = "block_bytes=65536\nblock_size=16\nmodel=example-c\n";
  kvs_client* client;
  kvs_space space;
  void* memory; /* lent: a node on this host copies straight into it */
  if (kvs_client_open(&options, &client) != KVS_OK) return fail("kvs_client_open");
  if (kvs_open(client, record, kSecond, &space) != KVS_OK) return fail("kvs_open");
  if (kvs_allocate(client, kBlocks * kBytes, &memory) != KVS_OK) return fail("kvs_allocate");

  uint32_t prompt[kBlocks * kTokens] = {0};
  kvs_hash hashes[kBlocks];
  size_t count = 0;
  if (kvs_hash_chain(record, prompt, kBlocks * kTokens, hashes, kBlocks, &count) != KVS_OK)
    return fail("kvs_hash_chain");
  void* blocks[kBlocks];
  for (size_t i = 0; i < count; ++i) blocks[i] = (char*)memory + i * kBytes;

  kvs_get_options get = KVS_GET_OPTIONS_INIT;
  kvs_get_result got = KVS_GET_RESULT_INIT;
  get.deadline_us = kSecond;
  if (kvs_get(client, space, hashes, count, blocks, &get, &got) != KVS_OK) return fail("kvs_get");
  printf("%zu of %zu blocks were cached", got.block_count, count);
  if (got.why != KVS_OK) printf(" (%s)", kvs_status_text(got.why)); /* not asked, or not in time: compute all blocks */

  for (size_t i = got.block_count; i < count; ++i) memset(blocks[i], 'k', kBytes); /* in place of prefill */
  kvs_put_options put = KVS_PUT_OPTIONS_INIT;
  kvs_put_result stored = KVS_PUT_RESULT_INIT;
  put.deadline_us = kSecond;
  if (kvs_put(client, space, hashes, count, (const void* const*)blocks, &put, &stored) != KVS_OK)
    return fail("kvs_put");
  printf(", %zu stored\n", stored.stored);
  kvs_client_close(client);
  return 0;
}
