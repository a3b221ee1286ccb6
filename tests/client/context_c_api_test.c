/* Named contexts from C: the part of c_api_test.c about them. */
#include <string.h>

#include "client/kvstore.h"
#include "tests/client/c_calls.h"
#include "tests/client/c_check.h"

/* A request's answer is words. */
void contexts(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count) {
  char told[4096];
  kvs_completion done;
  const char* tags[2] = {"team=x", "\"quoted\""};
  kvs_request create = answered(of(KVS_OP_CONTEXT_CREATE, space, hashes, count, 5000000), told, sizeof told);
  create.name = "prompt";
  create.tags = tags;
  create.tag_count = 2;
  create.ttl_us = 60000000;
  create.priority = 7;
  create.flags = KVS_FLAG_SLIDING | KVS_FLAG_PRIORITY;
  CHECK(run(client, create, &done) == KVS_OK && strlen(told) == done.length);
  CHECK(strstr(told, "{\"name\":\"prompt\",\"tags\":[\"team=x\",\"\\\"quoted\\\"\"]") == told);
  CHECK(strstr(told, "\"priority\":7,\"yielded_blocks\":0") != NULL);
  CHECK(strstr(told, "\"sliding\":true") != NULL && strstr(told, "\"ttl_us\":60000000") != NULL);
  const kvs_request list = answered(context_of(KVS_OP_CONTEXT_LIST, NULL), told, sizeof told);
  CHECK(run(client, list, NULL) == KVS_OK);
  CHECK(strncmp(told, "{\"contexts\":[{\"name\":\"prompt\"", 29) == 0 && strstr(told, "\"silent\":[]}") != NULL);
  kvs_request warm = answered(context_of(KVS_OP_CONTEXT_WARM, "prompt"), told, sizeof told);
  CHECK(run(client, warm, NULL) == KVS_OK);
  CHECK(strstr(told, "\"warming\":false,\"memory_blocks\":") != NULL && strstr(told, "\"disk_blocks\":0}") != NULL);
  warm.flags = KVS_FLAG_STOP;
  CHECK(run(client, warm, NULL) == KVS_OK);
  warm.name = "none";
  CHECK(run(client, warm, NULL) == KVS_NOT_FOUND);
  warm.name = NULL;
  CHECK(run(client, warm, NULL) == KVS_BAD_REQUEST);
  SAYS("name: is 0, and context_warm needs it");
  CHECK(run(client, answered(context_of(KVS_OP_CONTEXT_LIST, "other"), told, sizeof told), NULL) == KVS_OK);
  CHECK(strncmp(told, "{\"contexts\":[]", 14) == 0);
  kvs_request extend = answered(context_of(KVS_OP_CONTEXT_EXTEND, "prompt"), told, sizeof told);
  CHECK(run(client, extend, NULL) == KVS_BAD_REQUEST);
  SAYS("ttl_us: 0, allowed without until_us are 1 and more");
  extend.ttl_us = extend.until_us = 1;
  CHECK(run(client, extend, NULL) == KVS_BAD_REQUEST);
  SAYS("until_us: 1, allowed beside ttl_us is 0");
  extend.ttl_us = 0;
  extend.flags = KVS_FLAG_SLIDING;
  CHECK(run(client, extend, NULL) == KVS_BAD_REQUEST);
  extend.ttl_us = 120000000;
  extend.until_us = 0;
  extend.flags = KVS_FLAG_PRIORITY;
  extend.priority = 10;
  CHECK(run(client, extend, NULL) == KVS_BAD_REQUEST);
  SAYS("priority: 10, allowed are 0 to 9");
  extend.flags = 0;
  extend.priority = 0;
  CHECK(run(client, answered(extend, NULL, 0), &done) == KVS_TOO_LARGE && done.length > 0);
  const kvs_request delete = answered(context_of(KVS_OP_CONTEXT_DELETE, "prompt"), told, sizeof told);
  CHECK(run(client, delete, NULL) == KVS_OK && strstr(told, "\"ttl_us\":120000000") != NULL);
  CHECK(run(client, delete, NULL) == KVS_NOT_FOUND);
  create.name = "a b";
  CHECK(run(client, create, NULL) == KVS_BAD_REQUEST);
}
