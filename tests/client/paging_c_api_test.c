/* kvstore_paging.h from C. Exits 0 if everything is as it must be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvstore_gpu.h"
#include "client/kvstore_paging.h"
#include "tests/client/c_check.h"

static kvs_hash hash_of(int number) {
  kvs_hash hash;
  memset(&hash, 0, sizeof hash);
  hash.bytes[0] = (uint8_t)number;
  return hash;
}

static int removed[16], removed_count = 0;
static void on_removed(void* context, const kvs_hash* hash, uint32_t group) {
  CHECK(context == removed && removed_count < 16);
  removed[removed_count++] = hash->bytes[0] + 100 * (int)group;
}

/* --- sequences --- */

static kvs_paged_cache* make_cache(kvs_page_pool* pool, size_t block_tokens, size_t window, uint32_t number) {
  kvs_group group = KVS_GROUP_INIT;
  group.block_tokens = block_tokens;
  group.window_tokens = window;
  group.number = number;
  kvs_paged_cache* cache = NULL;
  CHECK(kvs_paged_cache_create(pool, &group, &cache) == KVS_OK && cache != NULL);
  return cache;
}

/* A prompt is shared, written behind, cut and evicted. */
static void one_group(void) {
  kvs_page_pool* pool = NULL;
  CHECK(kvs_page_pool_create(8, on_removed, removed, &pool) == KVS_OK); /* pages 1 to 7 */
  kvs_paged_cache* cache = make_cache(pool, 4, 0, 3);
  const kvs_hash hashes[3] = {hash_of(1), hash_of(2), hash_of(3)};
  kvs_sequence first = 0, second = 0, fork = 0, none = 0;
  size_t cached = 99, count = 0;
  CHECK(kvs_paged_open(cache, hashes, 2, 10, &first, &cached) == KVS_OK && cached == 0);
  int64_t slots[10];
  int32_t pages[4];
  CHECK(kvs_paged_pages(cache, first, pages, 4, &count) == KVS_OK && count == 3);
  CHECK(pages[0] == 1 && pages[1] == 2 && pages[2] == 3);
  CHECK(kvs_paged_pages(cache, first, pages, 2, &count) == KVS_TOO_LARGE && count == 3);
  CHECK(kvs_paged_slots(cache, first, 3, 10, slots) == KVS_OK && slots[0] == 7 && slots[1] == 8 && slots[6] == 13);
  CHECK(kvs_paged_slots(cache, first, 0, 11, slots) == KVS_BAD_REQUEST);
  SAYS("0 to 11 is not within 10 tokens");
  CHECK(kvs_paged_slots(cache, first, 5, 4, slots) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_find(cache, hashes, 3, 12, &cached) == KVS_OK && cached == 0); /* not computed yet */
  CHECK(kvs_paged_name_blocks(cache, first, hashes, 3) == KVS_OK);               /* the third is not full */
  CHECK(kvs_paged_find(cache, hashes, 3, 12, &cached) == KVS_OK && cached == 8);
  CHECK(kvs_paged_find(cache, hashes, 3, 8, &cached) == KVS_OK && cached == 4); /* the last token is computed */

  /* A second with the same beginning; a fork of it shares the partial page, until one of them writes. */
  CHECK(kvs_paged_open(cache, hashes, 3, 9, &second, &cached) == KVS_OK && cached == 8);
  CHECK(kvs_paged_pages(cache, second, pages, 4, &count) == KVS_OK && pages[0] == 1 && pages[1] == 2 && pages[2] == 4);
  CHECK(kvs_paged_fork(cache, second, &fork) == KVS_OK && fork != second);
  int64_t pairs[1][2] = {{-5, -5}};
  CHECK(kvs_paged_append(cache, fork, 1, NULL, 1, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_append(cache, fork, 1, pairs, 0, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_append(cache, fork, SIZE_MAX, pairs, 1, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_append(cache, fork, 100, pairs, 1, &count) == KVS_OUT_OF_MEMORY);
  CHECK(kvs_paged_append(cache, fork, 1, pairs, 1, &count) == KVS_OK && count == 1);
  CHECK(pairs[0][0] == 4 && pairs[0][1] == 5);
  CHECK(kvs_paged_append(cache, second, 3, pairs, 1, &count) == KVS_OK && count == 0);
  CHECK(kvs_paged_token_count(cache, second, &count) == KVS_OK && count == 12);
  CHECK(kvs_paged_crop(cache, second, 13) == KVS_BAD_REQUEST);
  SAYS("token_count: 13 is not within the sequence");
  CHECK(kvs_paged_crop(cache, second, 6) == KVS_OK);
  CHECK(kvs_page_pool_free_count(pool, &count) == KVS_OK && count == 3);
  CHECK(kvs_page_pool_forget(pool) == KVS_BUSY);

  /* Closed, its blocks are hit until the pages are taken, the ends of prefixes first. */
  CHECK(kvs_paged_close(cache, first) == KVS_OK && kvs_paged_close(cache, first) == KVS_BAD_REQUEST);
  SAYS("sequence: 1 is not open in this cache");
  CHECK(kvs_paged_close(cache, second) == KVS_OK && kvs_paged_close(cache, fork) == KVS_OK);
  CHECK(kvs_paged_find(cache, hashes, 3, 12, &cached) == KVS_OK && cached == 8);
  CHECK(kvs_paged_open(cache, NULL, 0, 29, &none, &cached) == KVS_OUT_OF_MEMORY && removed_count == 0);
  CHECK(kvs_paged_open(cache, NULL, 0, 24, &first, &cached) == KVS_OK && cached == 0);
  CHECK(removed_count == 1 && removed[0] == 302);
  CHECK(kvs_paged_close(cache, first) == KVS_OK && kvs_page_pool_forget(pool) == KVS_OK);
  CHECK(removed_count == 2 && removed[1] == 301);

  CHECK(kvs_paged_open(cache, hashes, 2, SIZE_MAX, &none, &cached) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_open(cache, NULL, 2, 9, &none, &cached) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_open(NULL, hashes, 2, 9, &none, &cached) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_open(cache, hashes, 2, 9, NULL, &cached) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_fork(cache, 77, &fork) == KVS_BAD_REQUEST && kvs_paged_crop(NULL, 1, 0) == KVS_BAD_REQUEST);
  kvs_page_pool_free(pool); /* before its cache */
  CHECK(kvs_paged_open(cache, hashes, 2, 9, &first, &cached) == KVS_OK);
  kvs_paged_cache_free(cache);
}

/* Full attention with blocks of 4, and a window of 5 tokens with blocks of 2: one prefix for both. */
static void two_groups(void) {
  kvs_page_pool *pool = NULL, *other = NULL;
  CHECK(kvs_page_pool_create(13, NULL, NULL, &pool) == KVS_OK);
  CHECK(kvs_page_pool_create(13, NULL, NULL, &other) == KVS_OK);
  kvs_paged_cache* caches[2] = {make_cache(pool, 4, 0, 0), make_cache(pool, 2, 5, 1)};
  kvs_paged_cache* foreign = make_cache(other, 4, 0, 0);
  const kvs_hash full[2] = {hash_of(14), hash_of(18)};
  const kvs_hash window[4] = {hash_of(2), hash_of(4), hash_of(6), hash_of(8)};
  const kvs_hash* hashes[2] = {full, window};
  const size_t counts[2] = {2, 4};
  kvs_sequence sequences[2], again[2];
  size_t cached = 9, count = 0;
  CHECK(kvs_paged_open_groups(caches, 2, hashes, counts, 9, sequences, &cached) == KVS_OK && cached == 0);
  CHECK(kvs_page_pool_free_count(pool, &count) == KVS_OK && count == 12 - 3 - 5);
  for (int g = 0; g < 2; ++g) CHECK(kvs_paged_name_blocks(caches[g], sequences[g], hashes[g], counts[g]) == KVS_OK);
  CHECK(kvs_paged_open_groups(caches, 2, hashes, counts, 9, again, &cached) == KVS_OK && cached == 8);
  int32_t pages[5];
  CHECK(kvs_paged_pages(caches[1], again[1], pages, 5, &count) == KVS_OK && count == 5);
  CHECK(pages[0] == 0 && pages[1] == 0 && pages[2] != 0); /* the ninth token reads from the fifth on */
  int64_t slots[9];
  CHECK(kvs_paged_slots(caches[1], again[1], 0, 9, slots) == KVS_OK && slots[3] == -1 && slots[4] == 2 * pages[2]);

  /* All or none: the second group has no room, so the first one's sequence is not there either. */
  size_t before = 0, after = 0;
  kvs_sequence refused[2] = {55, 55};
  const size_t no_counts[2] = {0, 0};
  CHECK(kvs_page_pool_free_count(pool, &before) == KVS_OK && before == 2);
  CHECK(kvs_paged_open_groups(caches, 2, hashes, no_counts, 4, refused, &cached) == KVS_OUT_OF_MEMORY);
  CHECK(kvs_page_pool_free_count(pool, &after) == KVS_OK && after == before && refused[0] == 55);

  kvs_paged_cache* mixed[2] = {caches[0], foreign};
  CHECK(kvs_paged_open_groups(mixed, 2, hashes, counts, 9, refused, &cached) == KVS_BAD_REQUEST);
  SAYS("the pool of group: 1");
  CHECK(kvs_paged_open_groups(caches, 65, hashes, counts, 9, refused, &cached) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_open_groups(caches, 0, hashes, counts, 9, refused, &cached) == KVS_BAD_REQUEST);
  kvs_paged_cache_free(caches[0]);
  kvs_paged_cache_free(caches[1]);
  kvs_paged_cache_free(foreign);
  kvs_page_pool_free(pool);
  kvs_page_pool_free(other);
}

static void bad_pools(void) {
  kvs_page_pool* pool = (kvs_page_pool*)1;
  CHECK(kvs_page_pool_create(1, NULL, NULL, &pool) == KVS_BAD_REQUEST && pool == NULL);
  SAYS("page_count: 1 is not from 2");
  CHECK(kvs_page_pool_create(SIZE_MAX, NULL, NULL, &pool) == KVS_BAD_REQUEST);
  CHECK(kvs_page_pool_create(4, NULL, NULL, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_page_pool_create(4, NULL, NULL, &pool) == KVS_OK);
  kvs_paged_cache* cache = (kvs_paged_cache*)1;
  kvs_group group = KVS_GROUP_INIT;
  CHECK(kvs_paged_cache_create(pool, &group, &cache) == KVS_BAD_REQUEST && cache == NULL);
  SAYS("group: block_tokens: 0 is not from 1");
  group.block_tokens = SIZE_MAX;
  CHECK(kvs_paged_cache_create(pool, &group, &cache) == KVS_BAD_REQUEST);
  group.block_tokens = 4;
  group.window_tokens = SIZE_MAX;
  CHECK(kvs_paged_cache_create(pool, &group, &cache) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_cache_create(NULL, &group, &cache) == KVS_BAD_REQUEST);
  CHECK(kvs_paged_cache_create(pool, NULL, &cache) == KVS_BAD_REQUEST);
  kvs_page_pool_free(pool);
  kvs_page_pool_free(NULL);
  kvs_paged_cache_free(NULL);
}

/* --- plans --- */

/* FlashInfer's cascade: pages of 2; a root of 4 tokens (pages 1, 2) under all; 3 tokens (3, 4) under the first two, 2
 * (5) under the last two; and tails of 1, 3, 2 and 1 tokens. The batch has them in another order. */
static const int32_t kIndptr[5] = {0, 4, 9, 14, 18};
static const int32_t kPages[18] = {1, 2, 5, 10, 1, 2, 3, 4, 6, 1, 2, 3, 4, 7, 1, 2, 5, 9};

static void plans(void) {
  kvs_hash hashes[18];
  int32_t tokens[18];
  for (int i = 0; i < 18; ++i) {
    const int is_tail = kPages[i] > 5;
    hashes[i] = hash_of(is_tail ? 0 : kPages[i]);
    tokens[i] = kPages[i] == 4 ? 1 : is_tail && kPages[i] != 7 && kPages[i] != 9 ? 1 : 2;
  }
  kvs_batch batch = KVS_BATCH_INIT;
  batch.sequence_count = 4;
  batch.page_indptr = kIndptr;
  batch.pages = kPages;
  batch.hashes = hashes;
  batch.page_tokens = tokens;
  batch.block_tokens = 2;
  kvs_cascade* plan = NULL;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_OK);
  size_t level_count = 0;
  const size_t* order = NULL;
  CHECK(kvs_cascade_describe(plan, &level_count, &order) == KVS_OK && level_count == 3);
  CHECK(order[0] == 0 && order[1] == 3 && order[2] == 1 && order[3] == 2);
  kvs_cascade_level level = KVS_CASCADE_LEVEL_INIT;
  CHECK(kvs_cascade_get_level(plan, 0, &level) == KVS_OK && level.entry_count == 1);
  CHECK(level.query_indptr[1] == 4 && level.page_indptr[1] == 2 && level.page_indices[1] == 2);
  CHECK(level.last_page_tokens[0] == 2);
  CHECK(kvs_cascade_get_level(plan, 1, &level) == KVS_OK && level.entry_count == 2);
  CHECK(level.query_indptr[1] == 2 && level.query_indptr[2] == 4 && level.page_indptr[1] == 1);
  CHECK(level.page_indices[0] == 5 && level.page_indices[1] == 3 && level.page_indices[2] == 4);
  CHECK(level.last_page_tokens[0] == 2 && level.last_page_tokens[1] == 1);
  CHECK(kvs_cascade_get_level(plan, 2, &level) == KVS_OK && level.entry_count == 4);
  CHECK(level.page_indices[0] == 10 && level.page_indices[3] == 7 && level.last_page_tokens[3] == 2);
  CHECK(kvs_cascade_get_level(plan, 3, &level) == KVS_BAD_REQUEST);
  SAYS("index: 3 is not below 3 levels");
  kvs_cascade_free(plan);
  CHECK(kvs_plan_cascade(&batch, 2, &plan) == KVS_UNSUPPORTED && plan == NULL); /* page 4 is partial */

  kvs_chunks* chunks = NULL;
  kvs_chunks_view view = KVS_CHUNKS_VIEW_INIT;
  CHECK(kvs_plan_chunks(&batch, 0, &chunks) == KVS_OK && kvs_chunks_describe(chunks, &view) == KVS_OK);
  CHECK(view.shared_count == 5 && view.chunk_count == 9 && view.partial_row_count == 4 + 4 + 2 + 2 + 2);
  CHECK(view.begins[0] == 0 && view.ends[0] == 4 && view.chunk_count_max == 5 && view.sequence_tokens[3] == 9);
  CHECK(view.sequence_chunks[4] == -1 && view.pages[view.sequence_chunks[3]] == 10 && view.order[1] == 3);
  kvs_chunks_free(chunks);

  const int32_t queries[4] = {1, 2, 1, 1}, too_many[4] = {1, 9, 1, 1}, none[4] = {1, 0, 1, 1};
  batch.query_counts = queries; /* the second sequence's queries begin in a partial page */
  CHECK(kvs_plan_chunks(&batch, 0, &chunks) == KVS_BAD_REQUEST && chunks == NULL);
  batch.query_counts = too_many;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  batch.query_counts = none;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  SAYS("query_counts[1]: 0 is not 1 or more");
  batch.query_counts = NULL;
  int32_t other[18];
  memcpy(other, kPages, sizeof other);
  other[4] = 0;
  batch.pages = other;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  SAYS("pages[4]: 0 is not 1 or more");
  batch.pages = kPages;
  tokens[8] = 3;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  SAYS("page_tokens[8]: 3 is not from 1 to block_tokens");
  tokens[8] = 1;
  const int32_t falling[5] = {0, 4, 3, 14, 18}, beyond[5] = {0, 4, 99, 14, 18};
  batch.page_indptr = falling;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  SAYS("page_indptr[2]: 3");
  batch.page_indptr = beyond;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  batch.page_indptr = kIndptr;
  batch.page_tokens = NULL;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST);
  const int32_t last[4] = {1, 1, 2, 2};
  batch.last_page_tokens = last;
  batch.hashes = NULL; /* nothing is shared: one level */
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_OK);
  CHECK(kvs_cascade_describe(plan, &level_count, NULL) == KVS_OK && level_count == 1);
  kvs_cascade_free(plan);
  batch.block_tokens = 0;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_BAD_REQUEST && kvs_plan_cascade(NULL, 0, &plan) == KVS_BAD_REQUEST);
  batch.block_tokens = 2;
  batch.sequence_count = 0;
  CHECK(kvs_plan_cascade(&batch, 0, &plan) == KVS_OK);
  kvs_cascade_free(plan);
  kvs_cascade_free(NULL);
  kvs_chunks_free(NULL);
}

/* --- masks --- */

static void masks(void) {
  const int32_t queries[2] = {2, 1}, keys[2] = {3, 5}, negative[2] = {2, -1}, huge[2] = {INT32_MAX, INT32_MAX};
  uint8_t packed[3] = {9, 9, 9};
  int32_t bits[3], bytes[3];
  size_t count = 0;
  CHECK(kvs_pack_masks(queries, keys, 2, NULL, packed, 2, &count, bits, bytes) == KVS_OK && count == 2);
  CHECK(packed[0] == 0x3B && packed[1] == 0x1F && packed[2] == 9);
  CHECK(bits[0] == 0 && bits[1] == 6 && bits[2] == 11 && bytes[0] == 0 && bytes[1] == 1 && bytes[2] == 2);
  const uint8_t mask[11] = {1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1};
  CHECK(kvs_pack_masks(queries, keys, 2, mask, packed, 3, &count, NULL, NULL) == KVS_OK && count == 2);
  CHECK(packed[0] == 0x11 && packed[1] == 0x10);
  CHECK(kvs_pack_masks(queries, keys, 2, NULL, packed, 1, &count, NULL, NULL) == KVS_TOO_LARGE && count == 2);
  CHECK(packed[0] == 0x11);
  CHECK(kvs_pack_masks(negative, keys, 2, NULL, packed, 3, &count, NULL, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_pack_masks(huge, huge, 2, NULL, packed, 3, &count, NULL, NULL) == KVS_TOO_LARGE);
  SAYS("2^31 bits");
  CHECK(kvs_pack_masks(NULL, keys, 2, NULL, packed, 3, &count, NULL, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_pack_masks(NULL, NULL, 0, NULL, NULL, 0, &count, bits, bytes) == KVS_OK && count == 0 && bits[0] == 0);
}

/* --- caches by layer --- */

#define BATCH 2
#define KEY 4
#define VALUE 8

static kvs_layer_options layer_of(int kind, int64_t token_capacity) {
  kvs_layer_options options = KVS_LAYER_OPTIONS_INIT;
  options.kind = kind;
  options.element = KVS_FP32;
  options.batch_count = BATCH;
  options.heads = 1;
  options.key_size = KEY;
  options.value_size = VALUE;
  options.token_capacity = token_capacity;
  return options;
}
/* Token `token` of sequence b: keys 100 b + token, values the negative of that. */
static int add_tokens(kvs_layer* layer, int first, int count, kvs_layer_view* view) {
  float keys[BATCH * 64 * KEY], values[BATCH * 64 * VALUE];
  CHECK(count <= 64);
  for (int b = 0; b < BATCH; ++b) {
    for (int t = 0; t < count; ++t) {
      const float number = (float)(100 * b + first + t);
      for (int f = 0; f < KEY; ++f) keys[(b * count + t) * KEY + f] = number;
      for (int f = 0; f < VALUE; ++f) values[(b * count + t) * VALUE + f] = -number;
    }
  }
  return kvs_layer_update(layer, keys, values, count, view);
}
static float key_at(const kvs_layer_view* view, int b, int64_t token, int feature) {
  return ((const float*)view->keys)[(b * view->token_capacity + token) * KEY + feature];
}
static float value_at(const kvs_layer_view* view, int b, int64_t token) {
  return ((const float*)view->values)[(b * view->token_capacity + token) * VALUE + VALUE - 1];
}

static void layers(void) {
  kvs_layer* layer = NULL;
  kvs_layer_view view = KVS_LAYER_VIEW_INIT;
  int64_t count = 0, position = 0;
  const int64_t swapped[2] = {1, 0}, three[3] = {1, 1, 0}, foreign[2] = {0, 2};

  kvs_layer_options options = layer_of(KVS_LAYER_GROWING, 0);
  CHECK(kvs_layer_create(&options, &layer) == KVS_OK);
  CHECK(add_tokens(layer, 0, 3, &view) == KVS_OK && view.end - view.begin == 3);
  CHECK(add_tokens(layer, 3, 2, &view) == KVS_OK && view.end - view.begin == 5);
  CHECK(key_at(&view, 1, 4, 0) == 104 && value_at(&view, 0, 3) == -3);
  CHECK(kvs_layer_crop(layer, -2) == KVS_OK && kvs_layer_crop(layer, 4) == KVS_BAD_REQUEST);
  SAYS("token_count: 4 is not within 3 tokens");
  CHECK(kvs_layer_crop(layer, INT64_MIN) == KVS_BAD_REQUEST);
  CHECK(kvs_layer_select(layer, foreign, 2) == KVS_BAD_REQUEST);
  SAYS("sequences: 2 is not from 0 to below 2");
  CHECK(kvs_layer_select(layer, three, 3) == KVS_OK && kvs_layer_select(layer, swapped, 2) == KVS_OK);
  CHECK(kvs_layer_select(layer, swapped, 0) == KVS_BAD_REQUEST);
  CHECK(add_tokens(layer, 9, 1, &view) == KVS_OK && key_at(&view, 0, 2, 0) == 102 && key_at(&view, 1, 3, 0) == 109);
  CHECK(kvs_layer_token_count(layer, &count) == KVS_OK && count == 4);
  CHECK(kvs_layer_next_position(layer, 1, &position) == KVS_OK && position == 4);
  CHECK(add_tokens(layer, 0, 0, &view) == KVS_BAD_REQUEST);
  kvs_layer_view old = KVS_LAYER_VIEW_INIT;
  old.struct_size = 0;
  CHECK(add_tokens(layer, 0, 1, &old) == KVS_BAD_REQUEST && kvs_layer_token_count(layer, &count) == KVS_OK &&
        count == 4);
  kvs_layer_free(layer);

  options = layer_of(KVS_LAYER_STATIC, 4);
  CHECK(kvs_layer_create(&options, &layer) == KVS_OK);
  CHECK(add_tokens(layer, 0, 3, &view) == KVS_OK && view.token_capacity == 4);
  const void* place = view.keys;
  CHECK(add_tokens(layer, 3, 2, &view) == KVS_TOO_LARGE && add_tokens(layer, 3, 1, &view) == KVS_OK);
  CHECK(view.keys == place && kvs_layer_select(layer, swapped, 2) == KVS_OK);
  CHECK(kvs_layer_select(layer, three, 3) == KVS_BAD_REQUEST);
  SAYS("count: 3 is not the batch's 2");
  kvs_layer_free(layer);

  options = layer_of(KVS_LAYER_SLIDING, 4);
  CHECK(kvs_layer_create(&options, &layer) == KVS_OK);
  CHECK(add_tokens(layer, 0, 3, &view) == KVS_OK && add_tokens(layer, 3, 3, &view) == KVS_OK);
  CHECK(view.end - view.begin == 6 && key_at(&view, 0, view.begin, 0) == 0 && key_at(&view, 0, view.end - 1, 0) == 5);
  CHECK(add_tokens(layer, 6, 1, &view) == KVS_OK && view.end - view.begin == 4);
  CHECK(key_at(&view, 1, view.begin, 0) == 103 && kvs_layer_crop(layer, 5) == KVS_UNSUPPORTED);
  kvs_layer_free(layer);

  /* Sinks: two of eight stay, the others move down by one, and their keys turn by one position. */
  const double frequencies[2] = {1.0, 0.01};
  options = layer_of(KVS_LAYER_SINK, 8);
  options.sink_tokens = 2;
  options.rope_style = KVS_NEOX;
  options.rotary_size = 4;
  options.frequencies = frequencies;
  options.frequency_count = 2;
  CHECK(kvs_layer_create(&options, &layer) == KVS_OK);
  CHECK(kvs_layer_next_position(layer, 5, &position) == KVS_OK && position == 0);
  CHECK(add_tokens(layer, 0, 5, &view) == KVS_OK && add_tokens(layer, 5, 3, &view) == KVS_OK);
  CHECK(kvs_layer_next_position(layer, 1, &position) == KVS_OK && position == 7);
  CHECK(add_tokens(layer, 8, 1, &view) == KVS_OK && view.end - view.begin == 8);
  CHECK(key_at(&view, 0, view.begin + 1, 0) == 1 && value_at(&view, 0, view.begin + 2) == -3);
  CHECK(fabs(key_at(&view, 0, view.begin + 2, 0) - 3 * (cos(-1.0) - sin(-1.0))) < 1e-5);
  CHECK(kvs_layer_next_position(layer, 0, &position) == KVS_BAD_REQUEST);
  kvs_layer_free(layer);
  options.rotary_size = 6;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST && layer == NULL);
  SAYS("rotary_size: 6 is not even");
  options.rotary_size = 4;
  options.sink_tokens = 8;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);

  options = layer_of(KVS_LAYER_QUANTISED, 0);
  options.bits = 8;
  options.group_size = 8;
  options.residual_tokens = -1;
  CHECK(kvs_layer_create(&options, &layer) == KVS_OK);
  CHECK(add_tokens(layer, 0, 20, &view) == KVS_OK && key_at(&view, 0, 7, 0) == 7); /* as they came */
  CHECK(add_tokens(layer, 20, 1, &view) == KVS_OK && view.end - view.begin == 21);
  CHECK(fabs(key_at(&view, 0, 5, 0) - 5) < 0.1 && key_at(&view, 1, 17, 0) == 117);
  CHECK(kvs_layer_crop(layer, 13) == KVS_UNSUPPORTED && kvs_layer_crop(layer, 8) == KVS_OK);
  kvs_layer_free(layer);

  options.bits = 3;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  SAYS("bits: 3 is not 2, 4 or 8");
  options.bits = 4;
  options.group_size = 12;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  options.group_size = 8;
  options.element = KVS_INT8;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  options = layer_of(0, 4);
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  SAYS("kind: 0 is not one of");
  options = layer_of(KVS_LAYER_STATIC, 0);
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  options.token_capacity = INT64_MAX;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST);
  options = layer_of(KVS_LAYER_GROWING, 0);
  options.batch_count = -1;
  CHECK(kvs_layer_create(&options, &layer) == KVS_BAD_REQUEST && kvs_layer_create(NULL, &layer) == KVS_BAD_REQUEST);
  CHECK(kvs_layer_update(NULL, &options, &options, 1, &view) == KVS_BAD_REQUEST);
  kvs_layer_free(NULL);
}

int main(void) {
  one_group();
  two_groups();
  bad_pools();
  plans();
  masks();
  layers();
  puts("paging_c_api_test: all well");
  return 0;
}
