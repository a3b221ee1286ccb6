/* kvstore_gpu.h from C, on a CUDA device. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/gpu_c_api.h"

/* A function of the CUDA module, for what only an engine's own CUDA runtime does. */
static void find_in_module(const char* name, void* function) {
  const char* named = getenv("KV_CUDA_MODULE");
  void* library = dlopen(named != NULL && *named != '\0' ? named : "libkvstore_cuda.so", RTLD_NOW);
  void* found = library == NULL ? NULL : dlsym(library, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof found);
}

/* Pages and ids in the memory of the last device, whichever the thread's is. */
static void on_the_last_device(int devices) {
  int (*use_device)(int, int*) = NULL;
  void* (*allocate)(size_t) = NULL;
  int (*copy)(void*, const void*, size_t) = NULL;
  int (*release)(void*) = NULL;
  find_in_module("kv_cuda_use_device", &use_device);
  find_in_module("kv_cuda_allocate", &allocate);
  find_in_module("kv_cuda_copy", &copy);
  find_in_module("kv_cuda_free", &release);
  int before = -1, now = -1;
  void* tensors[LAYERS * 2];
  pages host = make_lockable_pages("nhd", 11), want = make_lockable_pages("nhd", 12),
        got = make_lockable_pages("nhd", 13);
  CHECK(use_device(devices - 1, &before) == 0);
  for (int i = 0; i < LAYERS * 2; ++i) {
    tensors[i] = allocate(TENSOR_BYTES);
    CHECK(tensors[i] != NULL && copy(tensors[i], want.tensors[i], TENSOR_BYTES) == 0);
    CHECK(kvs_lock_pages(host.tensors[i], TENSOR_BYTES) == KVS_OK);
  }
  int64_t(*ids)[2] = allocate(2 * sizeof *ids);
  const int64_t pairs[2][2] = {{3, 1}, {2, 0}};
  CHECK(ids != NULL && copy(ids, pairs, sizeof pairs) == 0);
  CHECK(use_device(before, &now) == 0);
  kvs_cache* cache = NULL;
  CHECK(kvs_cache_bind(want.layout, tensors, NULL, LAYERS * 2, &cache) == KVS_OK);

  kvs_where run = KVS_WHERE_INIT;
  run.device = KVS_CUDA;
  for (int ordinal = 0; ordinal < devices - 1; ++ordinal) {
    run.device_number = KVS_DEVICE_NUMBER(ordinal);
    CHECK(kvs_copy_blocks(cache, pairs, 2, &run) == KVS_BAD_REQUEST);
    CHECK(strstr(kvs_last_error(), "lies on device") != NULL);
  }
  run.device_number = KVS_DEVICE_NUMBER(devices - 1);
  CHECK(kvs_swap_blocks(cache, host.cache, (const int64_t(*)[2])ids, 2, &run) == KVS_OK);
  CHECK(kvs_synchronise(&run) == KVS_OK && use_device(-1, &now) == 0 && now == before);
  const size_t words = TOKENS * HEADS * SIZE;
  for (int i = 0; i < LAYERS * 2; ++i) {
    memcpy(want.tensors[i] + 1 * words, host.tensors[i] + 3 * words, words * 2);
    memcpy(want.tensors[i] + 0 * words, host.tensors[i] + 2 * words, words * 2);
    CHECK(copy(got.tensors[i], tensors[i], TENSOR_BYTES) == 0);
    CHECK(kvs_unlock_pages(host.tensors[i]) == KVS_OK);
  }
  CHECK(same_pages(&got, &want));
  CHECK(kvs_swap_blocks(cache, host.cache, (const int64_t(*)[2])ids, 2, &run) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "lock its pages") != NULL);
  for (int i = 0; i < LAYERS * 2; ++i) CHECK(release(tensors[i]) == 0);
  CHECK(release(ids) == 0);
  kvs_cache_free(cache);
  free_pages(&host);
  free_pages(&want);
  free_pages(&got);
}

/* 2 blocks of rows in odd places of pages, out and in again, by buffers that hold a layer each. */
static void staged(int devices) {
  kvs_staging* staging = (kvs_staging*)1;
  kvs_staging_options options = KVS_STAGING_OPTIONS_INIT;
  options.buffer_count = 1;
  CHECK(kvs_staging_create(&options, &staging) == KVS_BAD_REQUEST && staging == NULL);
  CHECK(strcmp(kvs_last_error(), "options: buffer_count: 1 is not 0, or from 2 to 64") == 0);
  options.buffer_count = 2;
  if (devices == 0) {
    CHECK(kvs_staging_create(&options, &staging) == KVS_UNAVAILABLE);
    return;
  }
  options.device_number = devices + 1;
  CHECK(kvs_staging_create(&options, &staging) == KVS_BAD_REQUEST);
  options.device_number = 1;
  options.numa_nodes = "8191";
  CHECK(kvs_staging_create(&options, &staging) == KVS_BAD_REQUEST && staging == NULL);
  CHECK(strncmp(kvs_last_error(), "options: numa_nodes: '8191'; node 8191 is not there", 51) == 0);
  options.struct_size = offsetof(kvs_staging_options, numa_nodes); /* an older caller has something else there */
  options.buffer_bytes = BLOCK_BYTES;                              /* one layer of two blocks */
  options.direct_bytes_max = 1;
  CHECK(kvs_staging_create(&options, &staging) == KVS_OK);

  pages from = make_lockable_pages("nhd", 21), to = make_lockable_pages("hnd", 22),
        want = make_lockable_pages("hnd", 22);
  int64_t* ids = aligned_alloc(HOST_PAGE, HOST_PAGE);
  CHECK(ids != NULL && kvs_lock_pages(ids, HOST_PAGE) == KVS_OK);
  memcpy(ids, kFrom, sizeof kFrom);
  int64_t* to_ids = ids + 2 * TOKENS;
  for (int i = 0; i < 2 * TOKENS; ++i) to_ids[i] = kTo[i];
  for (int i = 0; i < LAYERS * 2; ++i) {
    CHECK(kvs_lock_pages(from.tensors[i], TENSOR_BYTES) == KVS_OK);
    CHECK(kvs_lock_pages(to.tensors[i], TENSOR_BYTES) == KVS_OK);
  }
  kvs_layout* block = NULL;
  kvs_cache* blocks = NULL;
  void* buffer = malloc(2 * BLOCK_BYTES); /* not page-locked */
  CHECK(kvs_layout_store_block(from.layout, 1, 2, 0, &block) == KVS_OK);
  CHECK(buffer != NULL && kvs_cache_bind(block, &buffer, NULL, 1, &blocks) == KVS_OK);

  kvs_rows from_rows = slots64(ids, 2 * TOKENS), to_rows = slots64(to_ids, 2 * TOKENS);
  kvs_staged_blocks call = KVS_STAGED_BLOCKS_INIT;
  call.pages = from.cache;
  call.rows = &from_rows;
  call.blocks = blocks;
  call.block_count = 2;
  call.is_after_stream = 1;
  kvs_staged_layers layers[LAYERS];
  size_t count = 9;
  CHECK(kvs_staging_store(staging, &call, layers, LAYERS, &count) == KVS_OK && count == LAYERS);
  call.pages = to.cache;
  call.rows = &to_rows;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_OK && count == LAYERS);
  CHECK(layers[0].layer_end == 1 && layers[1].layer_end == 2);
  CHECK(kvs_staging_wait_on_stream(staging, NULL, layers[0].mark) == KVS_OK);
  CHECK(kvs_staging_wait(staging, layers[1].mark, 0) == KVS_OK);
  copy_rows(&from, &want);
  CHECK(same_pages(&to, &want));

  /* What must not be: nothing is enqueued. */
  CHECK(kvs_staging_load(staging, &call, layers, 1, &count) == KVS_BAD_REQUEST && count == 0);
  CHECK(strstr(kvs_last_error(), "capacity: 1 is not at least 2") != NULL);
  call.block_count = 3;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_BAD_REQUEST);
  call.block_count = 2;
  call.first_layer = LAYERS + 1;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_BAD_REQUEST);
  call.first_layer = 1;
  call.layer_count = LAYERS;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_BAD_REQUEST);
  call.first_layer = call.layer_count = 0;
  call.blocks = from.cache;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_MISMATCH);
  call.blocks = NULL;
  CHECK(kvs_staging_load(staging, &call, layers, LAYERS, &count) == KVS_BAD_REQUEST);
  const kvs_mark nowhere = {1, 2};
  CHECK(kvs_staging_wait(staging, nowhere, 0) == KVS_BAD_REQUEST && kvs_staging_wait(NULL, nowhere, 0) != KVS_OK);
  CHECK(kvs_staging_drain(staging, 0) == KVS_OK);
  kvs_staging_free(staging);
  kvs_staging_free(NULL);
  CHECK(same_pages(&to, &want));

  CHECK(kvs_unlock_pages(ids) == KVS_OK);
  for (int i = 0; i < LAYERS * 2; ++i) {
    CHECK(kvs_unlock_pages(from.tensors[i]) == KVS_OK && kvs_unlock_pages(to.tensors[i]) == KVS_OK);
  }
  free(ids);
  free(buffer);
  kvs_cache_free(blocks);
  kvs_layout_free(block);
  free_pages(&from);
  free_pages(&to);
  free_pages(&want);
}

/* On a CUDA device, which reaches the caller's own memory while that is locked. */
void on_a_device(void) {
  int devices = -1;
  CHECK(kvs_device_count(NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_device_count(&devices) == KVS_OK && devices >= 0);
  CHECK(kvs_synchronise(NULL) == KVS_OK && kvs_warm_up(NULL) == KVS_OK);
  staged(devices);
  kvs_where run = KVS_WHERE_INIT;
  run.device_number = 1;
  CHECK(kvs_synchronise(&run) == KVS_BAD_REQUEST && strstr(kvs_last_error(), "device_number: 1") != NULL);
  run.device = KVS_CUDA;
  CHECK((kvs_device_check(KVS_CUDA) == KVS_OK) == (devices > 0));
  if (devices == 0) {
    CHECK(kvs_synchronise(&run) == KVS_UNAVAILABLE && kvs_warm_up(&run) == KVS_UNAVAILABLE);
    return;
  }
  run.device_number = devices + 1;
  CHECK(kvs_synchronise(&run) == KVS_BAD_REQUEST && strstr(kvs_last_error(), "device_number") != NULL);
  run.device_number = -1;
  CHECK(kvs_synchronise(&run) == KVS_BAD_REQUEST);

  const size_t words = TOKENS * HEADS * SIZE; /* of a block */
  const int64_t pairs[3][2] = {{0, 4}, {0, 1}, {5, -1}};
  on_the_last_device(devices);
  for (run.device_number = 0; run.device_number <= devices; ++run.device_number) {
    CHECK(kvs_warm_up(&run) == KVS_OK);
    for (int is_locked = 0; is_locked < 2; ++is_locked) {
      pages cache = make_lockable_pages("nhd", 3), other = make_lockable_pages("nhd", 4),
            want = make_lockable_pages("nhd", 3);
      for (int i = 0; i < LAYERS * 2; ++i) {
        CHECK(kvs_lock_pages(cache.tensors[i], TENSOR_BYTES) == KVS_OK);
        CHECK(kvs_lock_pages(other.tensors[i], TENSOR_BYTES) == KVS_OK);
      }
      int64_t(*ids)[2] = aligned_alloc(HOST_PAGE, HOST_PAGE);
      CHECK(ids != NULL);
      memcpy(ids, pairs, sizeof pairs);
      if (is_locked) CHECK(kvs_lock_pages(ids, sizeof pairs) == KVS_OK);
      CHECK(kvs_copy_blocks(cache.cache, (const int64_t(*)[2])ids, 3, &run) == KVS_OK);
      if (!is_locked) memset(ids, 0x7F, sizeof pairs); /* it was read */
      CHECK(kvs_synchronise(&run) == KVS_OK);
      if (!is_locked) memcpy(ids, pairs, sizeof pairs);
      for (int i = 0; i < LAYERS * 2; ++i) {
        memcpy(want.tensors[i] + 4 * words, want.tensors[i], words * 2);
        memcpy(want.tensors[i] + 1 * words, want.tensors[i], words * 2);
      }
      CHECK(same_pages(&cache, &want));
      CHECK(kvs_swap_blocks(cache.cache, other.cache, (const int64_t(*)[2])ids, 3, &run) == KVS_OK);
      memset(ids, 0x7F, sizeof pairs);
      CHECK(kvs_synchronise(&run) == KVS_OK);
      for (int i = 0; i < LAYERS * 2; ++i) {
        memcpy(want.tensors[i] + 4 * words, other.tensors[i], words * 2);
        memcpy(want.tensors[i] + 1 * words, other.tensors[i], words * 2);
      }
      CHECK(same_pages(&cache, &want));
      if (!is_locked) { /* checked where it is read */
        const int64_t twice[2][2] = {{0, 1}, {2, 1}}, beyond[2][2] = {{0, 1}, {2, BLOCKS}};
        CHECK(kvs_copy_blocks(cache.cache, twice, 2, &run) == KVS_BAD_REQUEST);
        CHECK(kvs_copy_blocks(cache.cache, beyond, 2, &run) == KVS_BAD_REQUEST);
        CHECK(same_pages(&cache, &want));
      }
      if (is_locked) CHECK(kvs_unlock_pages(ids) == KVS_OK);
      for (int i = 0; i < LAYERS * 2; ++i) {
        CHECK(kvs_unlock_pages(cache.tensors[i]) == KVS_OK && kvs_unlock_pages(other.tensors[i]) == KVS_OK);
      }
      free(ids);
      free_pages(&cache);
      free_pages(&other);
      free_pages(&want);
    }
  }
}
