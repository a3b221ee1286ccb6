/* kvstore_gpu.h from C. Exits 0 if everything is as it must be. Places of elements are computed here from the layouts'
 * definitions, not asked of the library. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvstore_gpu.h"

#define BLOCKS 6
#define TOKENS 4 /* of a block */
#define HEADS 2
#define SIZE 32
#define LAYERS 2
#define SLOTS (BLOCKS * TOKENS)
#define TENSOR_BYTES (SLOTS * HEADS * SIZE * 2)
#define BLOCK_BYTES (LAYERS * 2 * TOKENS * HEADS * SIZE * 2) /* of the store */

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, kvs_last_error()); \
      exit(1);                                                                                          \
    }                                                                                                   \
  } while (0)

/* --- an engine's caches in memory of their own --- */

typedef struct pages {
  uint16_t* tensors[LAYERS * 2]; /* K and V of each layer */
  kvs_layout* layout;
  kvs_cache* cache;
} pages;

static kvs_cache_shape shape_of(int element) {
  kvs_cache_shape shape = KVS_CACHE_SHAPE_INIT;
  shape.block_count = BLOCKS;
  shape.block_tokens = TOKENS;
  shape.heads = HEADS;
  shape.key_size = SIZE;
  shape.layer_count = LAYERS;
  shape.element = element;
  return shape;
}

#define HOST_PAGE 4096
_Static_assert(TENSOR_BYTES <= HOST_PAGE, "a tensor has a page");
static int has_own_pages = 0; /* each tensor: memory can be locked by whole pages only */

static pages make_pages(const char* name, unsigned seed) {
  pages made;
  kvs_cache_shape shape = shape_of(KVS_BF16);
  uint64_t bytes[LAYERS * 2];
  CHECK(kvs_layout_named(name, &shape, &made.layout) == KVS_OK);
  for (size_t i = 0; i < LAYERS * 2; ++i) {
    made.tensors[i] = has_own_pages ? aligned_alloc(HOST_PAGE, HOST_PAGE) : malloc(TENSOR_BYTES);
    CHECK(made.tensors[i] != NULL);
    for (size_t j = 0; j < TENSOR_BYTES / 2; ++j) {
      seed = seed * 1664525u + 1013904223u;
      made.tensors[i][j] = (uint16_t)(seed >> 16);
    }
    CHECK(kvs_layout_allocation_bytes(made.layout, i, &bytes[i]) == KVS_OK && bytes[i] == TENSOR_BYTES);
  }
  CHECK(kvs_cache_bind(made.layout, (void* const*)made.tensors, bytes, LAYERS * 2, &made.cache) == KVS_OK);
  return made;
}
static void free_pages(pages* made) {
  kvs_cache_free(made->cache);
  kvs_layout_free(made->layout);
  for (size_t i = 0; i < LAYERS * 2; ++i) free(made->tensors[i]);
}
static void copy_pages(const pages* from, pages* to) {
  for (size_t i = 0; i < LAYERS * 2; ++i) memcpy(to->tensors[i], from->tensors[i], TENSOR_BYTES);
}
static int same_pages(const pages* a, const pages* b) {
  for (size_t i = 0; i < LAYERS * 2; ++i) {
    if (memcmp(a->tensors[i], b->tensors[i], TENSOR_BYTES) != 0) return 0;
  }
  return 1;
}

static uint16_t* at_nhd(pages* of, int layer, int component, int slot, int head, int feature) {
  return &of->tensors[layer * 2 + component][(slot * HEADS + head) * SIZE + feature];
}
static uint16_t* at_hnd(pages* of, int layer, int component, int slot, int head, int feature) {
  const int block = slot / TOKENS, offset = slot % TOKENS;
  return &of->tensors[layer * 2 + component][((block * HEADS + head) * TOKENS + offset) * SIZE + feature];
}

static kvs_rows slots64(const int64_t* ids, size_t count) {
  kvs_rows rows = KVS_ROWS_INIT;
  rows.kind = KVS_ROWS_SLOTS64;
  rows.ids = ids;
  rows.id_count = count;
  return rows;
}

/* --- what the calls do --- */

static const int64_t kFrom[2 * TOKENS] = {23, 0, 7, 8, 1, 20, 13, 2};
static const int32_t kTo[2 * TOKENS] = {5, 22, -1, 3, 9, 0, 17, 12};

static void gather_and_scatter(void) {
  pages nhd = make_pages("nhd", 1), hnd = make_pages("hnd", 2), want = make_pages("hnd", 2);
  kvs_layout* block = NULL;
  CHECK(kvs_layout_store_block(nhd.layout, 1, 2, 0, &block) == KVS_OK);
  kvs_layout_info info = KVS_LAYOUT_INFO_INIT;
  CHECK(kvs_layout_describe(block, &info) == KVS_OK && info.block_bytes == BLOCK_BYTES);
  CHECK(info.block_count == 2 && info.block_tokens == TOKENS && info.layer_count == LAYERS);
  CHECK(info.allocation_count == 1);
  void* buffer = malloc(2 * BLOCK_BYTES);
  const uint64_t bytes = 2 * BLOCK_BYTES;
  kvs_cache* blocks = NULL;
  CHECK(buffer != NULL && kvs_cache_bind(block, &buffer, &bytes, 1, &blocks) == KVS_OK);
  CHECK(kvs_layout_check(hnd.layout, block, NULL) == KVS_OK);

  const kvs_rows from = slots64(kFrom, 2 * TOKENS);
  kvs_rows to = KVS_ROWS_INIT;
  to.kind = KVS_ROWS_SLOTS32;
  to.ids = kTo;
  to.id_count = 2 * TOKENS;
  CHECK(kvs_gather(blocks, nhd.cache, &from, 2 * TOKENS, NULL, NULL) == KVS_OK);
  CHECK(kvs_scatter(hnd.cache, &to, blocks, 2 * TOKENS, NULL, NULL) == KVS_OK);
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int component = 0; component < 2; ++component) {
      for (int row = 0; row < 2 * TOKENS; ++row) {
        for (int head = 0; head < HEADS && kTo[row] >= 0; ++head) {
          for (int f = 0; f < SIZE; ++f) {
            *at_hnd(&want, layer, component, kTo[row], head, f) =
                *at_nhd(&nhd, layer, component, (int)kFrom[row], head, f);
          }
        }
      }
    }
  }
  CHECK(same_pages(&hnd, &want));

  /* The same without blocks between; and by heads and layers. */
  pages direct = make_pages("hnd", 2), parts = make_pages("hnd", 2);
  CHECK(kvs_permute(direct.cache, &to, nhd.cache, &from, 2 * TOKENS, NULL, NULL) == KVS_OK);
  CHECK(same_pages(&direct, &want));
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int head = 0; head < HEADS; ++head) {
      kvs_cache *to_layer, *to_part, *from_layer, *from_part;
      CHECK(kvs_cache_slice_layers(parts.cache, layer, 1, &to_layer) == KVS_OK);
      CHECK(kvs_cache_slice_layers(nhd.cache, layer, 1, &from_layer) == KVS_OK);
      CHECK(kvs_cache_slice_heads(to_layer, head, 1, &to_part) == KVS_OK);
      CHECK(kvs_cache_slice_heads(from_layer, head, 1, &from_part) == KVS_OK);
      CHECK(kvs_permute(to_part, &to, from_part, &from, 2 * TOKENS, NULL, NULL) == KVS_OK);
      kvs_cache_free(to_layer);
      kvs_cache_free(from_layer);
      kvs_cache_free(to_part);
      kvs_cache_free(from_part);
    }
  }
  CHECK(same_pages(&parts, &want));

  /* With checksums: the second block is damaged, so only the first lands. */
  const char* record = "model=c\nblock_size=4\nblock_bytes=2048\n";
  uint64_t seeds[2], sums[2];
  kvs_hash hash;
  for (int i = 0; i < 2; ++i) {
    memset(&hash, 0, sizeof hash); /* an engine's 64 bits, before zeros */
    hash.bytes[0] = (uint8_t)(i + 1);
    CHECK(kvs_checksum_seed(record, &hash, &seeds[i]) == KVS_OK);
  }
  CHECK(seeds[0] != seeds[1]);
  CHECK(kvs_gather_with_checksums(blocks, nhd.cache, &from, seeds, 2, sums, 2, NULL, NULL) == KVS_OK);
  pages verified = make_pages("hnd", 2);
  size_t count = 99;
  CHECK(kvs_scatter_verified(verified.cache, &to, blocks, seeds, 2, sums, 2, NULL, NULL, &count) == KVS_OK);
  CHECK(count == 2 && same_pages(&verified, &want));
  pages damaged = make_pages("hnd", 2), half = make_pages("hnd", 2);
  CHECK(kvs_scatter(half.cache, &to, blocks, TOKENS, NULL, NULL) == KVS_OK);
  ((unsigned char*)buffer)[BLOCK_BYTES + 77] ^= 1;
  CHECK(kvs_scatter_verified(damaged.cache, &to, blocks, seeds, 2, sums, 2, NULL, NULL, &count) == KVS_OK);
  CHECK(count == 1 && same_pages(&damaged, &half));
  free_pages(&damaged);
  free_pages(&half);
  free_pages(&verified);
  free_pages(&direct);
  free_pages(&parts);
  kvs_cache_free(blocks);
  kvs_layout_free(block);
  free(buffer);
  free_pages(&nhd);
  free_pages(&hnd);
  free_pages(&want);
}

static void whole_blocks(void) {
  pages cache = make_pages("nhd", 3), other = make_pages("nhd", 4), want = make_pages("nhd", 3);
  const size_t words = TOKENS * HEADS * SIZE; /* of a block */
  const int64_t pairs[3][2] = {{0, 4}, {0, 1}, {5, -1}};
  const int64_t sources[2] = {2, 3}, ends[2] = {2, 3}, targets[3] = {0, 5, 1};
  CHECK(kvs_copy_blocks(cache.cache, pairs, 3, NULL) == KVS_OK);
  for (int i = 0; i < LAYERS * 2; ++i) {
    memcpy(want.tensors[i] + 4 * words, want.tensors[i], words * 2);
    memcpy(want.tensors[i] + 1 * words, want.tensors[i], words * 2);
  }
  CHECK(same_pages(&cache, &want));
  CHECK(kvs_fan_out_blocks(cache.cache, sources, ends, 2, targets, 3, NULL) == KVS_OK);
  for (int i = 0; i < LAYERS * 2; ++i) {
    memcpy(want.tensors[i] + 0 * words, want.tensors[i] + 2 * words, words * 2);
    memcpy(want.tensors[i] + 5 * words, want.tensors[i] + 2 * words, words * 2);
    memcpy(want.tensors[i] + 1 * words, want.tensors[i] + 3 * words, words * 2);
  }
  CHECK(same_pages(&cache, &want));
  const int64_t swaps[2][2] = {{5, 0}, {1, 3}};
  CHECK(kvs_swap_blocks(cache.cache, other.cache, swaps, 2, NULL) == KVS_OK);
  for (int i = 0; i < LAYERS * 2; ++i) {
    memcpy(want.tensors[i] + 0 * words, other.tensors[i] + 5 * words, words * 2);
    memcpy(want.tensors[i] + 3 * words, other.tensors[i] + 1 * words, words * 2);
  }
  CHECK(same_pages(&cache, &want));
  const int64_t to[2] = {2, 4}, from[2] = {3, 0};
  CHECK(kvs_relayout(cache.cache, to, other.cache, from, 2, NULL, NULL) == KVS_OK);
  for (int i = 0; i < LAYERS * 2; ++i) {
    memcpy(want.tensors[i] + 2 * words, other.tensors[i] + 3 * words, words * 2);
    memcpy(want.tensors[i] + 4 * words, other.tensors[i] + 0 * words, words * 2);
  }
  CHECK(same_pages(&cache, &want));
  free_pages(&cache);
  free_pages(&other);
  free_pages(&want);
}

/* Rows of a component of its own: [count, size], from a tensor description. */
static kvs_cache* make_rows(void* memory, int element, const int* roles, int64_t count, int64_t size,
                            const int64_t* strides) {
  const int64_t extents[2] = {count, size};
  kvs_tensor tensor = {"tf", extents, strides, element, roles, 1, 0, 0};
  kvs_layout* layout = NULL;
  kvs_cache* cache = NULL;
  CHECK(kvs_layout_from_tensors("rows", &tensor, 1, 1, &layout) == KVS_OK);
  CHECK(kvs_cache_bind(layout, &memory, NULL, 1, &cache) == KVS_OK);
  kvs_layout_free(layout);
  return cache;
}

static void operations(void) {
  const int key = KVS_KEY;
  float values[4] = {3.3F, 500.0F, 1.0625F, -0.0F};
  unsigned char codes[4] = {9, 9, 9, 9};
  kvs_cache* floats = make_rows(values, KVS_FP32, &key, 1, 4, NULL);
  kvs_cache* bytes = make_rows(codes, KVS_E4M3, &key, 1, 4, NULL);
  kvs_rows rows = KVS_ROWS_INIT;
  kvs_operation cast = KVS_OPERATION_INIT;
  cast.kind = KVS_CAST;
  float scales[KVS_ROLE_COUNT];
  for (int i = 0; i < KVS_ROLE_COUNT; ++i) scales[i] = 1.0F;
  scales[KVS_KEY] = 0.5F;
  cast.to_scale = scales;
  CHECK(kvs_scatter(bytes, &rows, floats, 1, NULL, NULL) == KVS_MISMATCH);
  CHECK(strstr(kvs_last_error(), "a cast is needed") != NULL);
  CHECK(kvs_scatter(bytes, &rows, floats, 1, &cast, NULL) == KVS_OK);
  CHECK(codes[0] == 0x4D && codes[1] == 0x7E && codes[2] == 0x40 && codes[3] == 0x80); /* 3.25, 448, 2, -0 */
  kvs_cache_free(bytes);
  kvs_cache_free(floats);

  float keys[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}}, turned[2][4];
  const double frequencies[1] = {0.25};
  const int64_t deltas[2] = {0, 3};
  kvs_cache* from = make_rows(keys, KVS_FP32, &key, 2, 4, NULL);
  kvs_cache* to = make_rows(turned, KVS_FP32, &key, 2, 4, NULL);
  kvs_operation turn = KVS_OPERATION_INIT;
  turn.kind = KVS_ROTATE;
  turn.rotary_size = 2;
  turn.frequencies = frequencies;
  turn.frequency_count = 1;
  turn.deltas = deltas;
  turn.delta_count = 2;
  CHECK(kvs_scatter(to, &rows, from, 2, &turn, NULL) == KVS_BAD_REQUEST); /* which pairs turn has no default */
  CHECK(strstr(kvs_last_error(), "KVS_NEOX or KVS_GPTJ") != NULL);
  turn.rope_style = KVS_GPTJ;
  CHECK(kvs_scatter(to, &rows, from, 2, &turn, NULL) == KVS_OK);
  CHECK(memcmp(turned[0], keys[0], sizeof keys[0]) == 0);
  CHECK(fabs(turned[1][0] - (cos(0.75) - 2 * sin(0.75))) < 1e-6);
  CHECK(fabs(turned[1][1] - (2 * cos(0.75) + sin(0.75))) < 1e-6);
  CHECK(turned[1][2] == 3 && turned[1][3] == 4);
  kvs_cache_free(from);
  kvs_cache_free(to);
}

/* Pages of 4: requests of pages {7, 2} and {5}, appending at positions 3 and 4, and 2 (FlashInfer's example). */
static void slots(void) {
  const int32_t indptr[3] = {0, 2, 3}, indices[3] = {7, 2, 5};
  const int32_t batch[4] = {0, 0, 1, -1}, positions[4] = {3, 4, 2, 9};
  int64_t found[4] = {0};
  CHECK(kvs_slots_of_csr(indptr, 3, indices, 3, 4, batch, positions, 4, found) == KVS_OK);
  CHECK(found[0] == 31 && found[1] == 8 && found[2] == 22 && found[3] == -1);
  const int32_t past[1] = {8}, first[1] = {0};
  CHECK(kvs_slots_of_csr(indptr, 3, indices, 3, 4, first, past, 1, found) == KVS_BAD_REQUEST);
  CHECK(kvs_slots_of_csr(indptr, 3, indices, 3, 0, first, past, 1, found) == KVS_BAD_REQUEST);
  CHECK(kvs_slots_of_csr(NULL, 3, indices, 3, 4, first, past, 1, found) == KVS_BAD_REQUEST);

  const int32_t table[4] = {7, -1, 5, 1};
  const int64_t starts[2] = {3, 0}, lengths[2] = {2, 2};
  size_t count = 0;
  CHECK(kvs_slots_of_table(table, 2, 2, 4, starts, lengths, 0, found, 4, &count) == KVS_OK && count == 4);
  CHECK(found[0] == 31 && found[1] == -1 && found[2] == 20 && found[3] == 21);
  CHECK(kvs_slots_of_table(table, 2, 2, 4, starts, lengths, 1, found, 4, &count) == KVS_OK && count == 3);
  CHECK(found[0] == 31 && found[1] == 20 && found[2] == 21);
  CHECK(kvs_slots_of_table(table, 2, 2, 4, starts, lengths, 0, found, 3, &count) == KVS_TOO_LARGE);
  CHECK(kvs_slots_of_table(table, 2, 2, 0, starts, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_slots_of_table(table, 2, INT64_MAX, 4, starts, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_slots_of_table(table, 2, -2, 4, starts, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
  const int64_t long_ago[2] = {INT64_MAX, 0}, for_ever[2] = {INT64_MAX, 2};
  CHECK(kvs_slots_of_table(table, 2, 2, 4, long_ago, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_slots_of_table(table, 2, 2, 4, starts, for_ever, 0, found, 4, &count) == KVS_BAD_REQUEST);
}

/* The same in 32 bits, and positions of appended rows: pages of 4, lengths 5 and 3, two rows and one. */
static void slots32(void) {
  const int32_t indptr[3] = {0, 2, 3}, indices[3] = {7, 2, 5}, append[3] = {0, 2, 3}, lens[2] = {5, 3};
  int32_t batch[4] = {9, 9, 9, 9}, positions[4] = {9, 9, 9, 9}, found[4] = {0};
  CHECK(kvs_append_positions(append, 2, lens, batch, positions, 4) == KVS_OK);
  CHECK(batch[0] == 0 && batch[1] == 0 && batch[2] == 1 && batch[3] == -1);
  CHECK(positions[0] == 3 && positions[1] == 4 && positions[2] == 2 && positions[3] == 0);
  CHECK(kvs_slots32_of_csr(indptr, 3, indices, 3, 4, batch, positions, 4, found) == KVS_OK);
  CHECK(found[0] == 31 && found[1] == 8 && found[2] == 22 && found[3] == -1);
  CHECK(kvs_append_positions(append, 2, lens, batch, positions, 2) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "append_indptr") != NULL);
  CHECK(kvs_append_positions(NULL, 2, lens, batch, positions, 4) == KVS_BAD_REQUEST);
  const int32_t past[1] = {8}, first[1] = {0}, far_page[1] = {INT32_MAX}, one_page[2] = {0, 1}, zero[1] = {0};
  CHECK(kvs_slots32_of_csr(indptr, 3, indices, 3, 4, first, past, 1, found) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "positions") != NULL);
  CHECK(kvs_slots32_of_csr(indptr, 3, indices, 3, 0, first, past, 1, found) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "page_tokens: 0 is not from 1 to 2^31") == 0);
  CHECK(kvs_slots32_of_csr(one_page, 2, far_page, 1, 4, first, zero, 1, found) == KVS_TOO_LARGE);

  const int32_t table[4] = {7, -1, 5, 1}, starts[2] = {3, 0}, lengths[2] = {2, 2}, negative[2] = {2, -2};
  size_t count = 0;
  CHECK(kvs_slots32_of_table(table, 2, 2, 4, starts, lengths, 0, found, 4, &count) == KVS_OK && count == 4);
  CHECK(found[0] == 31 && found[1] == -1 && found[2] == 20 && found[3] == 21);
  CHECK(kvs_slots32_of_table(table, 2, 2, 4, NULL, lengths, 1, found, 4, &count) == KVS_OK && count == 4);
  CHECK(found[0] == 28 && found[1] == 29 && found[2] == 20 && found[3] == 21);
  CHECK(kvs_slots32_of_table(table, 2, 2, 4, starts, lengths, 1, found, 4, &count) == KVS_OK && count == 3);
  CHECK(kvs_slots32_of_table(table, 2, 2, 4, starts, lengths, 0, found, 3, &count) == KVS_TOO_LARGE);
  CHECK(kvs_slots32_of_table(table, 2, 2, 4, starts, negative, 0, found, 4, &count) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "starts, lengths") != NULL);
  CHECK(kvs_slots32_of_table(table, 2, 2, -1, starts, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_slots32_of_table(far_page, 1, 1, 4, zero, lengths, 0, found, 4, &count) == KVS_TOO_LARGE);
  CHECK(kvs_slots32_of_table(table, SIZE_MAX, 2, 4, starts, lengths, 0, found, 4, &count) == KVS_BAD_REQUEST);
}

static void element_names(void) {
  int element = -1;
  for (int i = KVS_BYTE; i <= KVS_FP32; ++i) {
    CHECK(kvs_element_name(i) != NULL && kvs_element_named(kvs_element_name(i), &element) == KVS_OK && element == i);
  }
  CHECK(kvs_element_name(-1) == NULL && kvs_element_name(KVS_FP32 + 1) == NULL);
  CHECK(kvs_element_named("torch.bfloat16", &element) == KVS_OK && element == KVS_BF16);
  CHECK(kvs_element_named("fp8_e5m2", &element) == KVS_OK && element == KVS_E5M2);
  CHECK(kvs_element_named("float64", &element) == KVS_NOT_FOUND && element == KVS_E5M2);
  CHECK(strcmp(kvs_last_error(), "name: no element is called float64") == 0);
  CHECK(kvs_element_named("", &element) == KVS_NOT_FOUND && kvs_element_named("torch.", &element) == KVS_NOT_FOUND);
  CHECK(kvs_element_named(NULL, &element) == KVS_BAD_REQUEST && kvs_element_named("half", NULL) == KVS_BAD_REQUEST);
}

/* A rule that is not given is the target's own. */
static void scale_rules(void) {
  kvs_cache_shape shape = shape_of(KVS_E2M1X2);
  kvs_layout *plain, *codes, *indexer, *scaled;
  CHECK(kvs_layout_named("nvfp4", &shape, &codes) == KVS_OK);
  shape.element = KVS_BF16;
  CHECK(kvs_layout_named("nhd", &shape, &plain) == KVS_OK);
  kvs_operation quantise = KVS_OPERATION_INIT;
  quantise.kind = KVS_QUANTISE;
  CHECK(kvs_layout_check(codes, plain, &quantise) == KVS_OK);
  quantise.scale_rule = KVS_SCALE_NVFP4;
  CHECK(kvs_layout_check(codes, plain, &quantise) == KVS_OK);
  quantise.scale_rule = KVS_SCALE_TOKEN_HEAD;
  CHECK(kvs_layout_check(codes, plain, &quantise) == KVS_MISMATCH);
  CHECK(strstr(kvs_last_error(), "rule of NVFP4") != NULL);
  quantise.scale_rule = KVS_SCALE_TOKEN_HEAD + 1;
  CHECK(kvs_layout_check(codes, plain, &quantise) == KVS_BAD_REQUEST);

  /* Bytes: the rule that follows is the rule by name. */
  const int key = KVS_KEY, key_scale = KVS_KEY_SCALE;
  const int64_t extents[2] = {2, 4}, one_scale[2] = {2, 1};
  const kvs_tensor two[2] = {{"tf", extents, NULL, KVS_INT8, &key, 1, 0, 0},
                             {"tf", one_scale, NULL, KVS_FP32, &key_scale, 1, 0, 0}};
  CHECK(kvs_layout_from_tensors("codes", two, 2, 1, &scaled) == KVS_OK);
  float values[2][4] = {{1, -2, 0, 0.5F}, {0, 0, 0, 0}}, scales[2] = {9, 9};
  int8_t made[2][4];
  void* memory[2] = {made, scales};
  kvs_cache *from = make_rows(values, KVS_FP32, &key, 2, 4, NULL), *to = NULL;
  CHECK(kvs_cache_bind(scaled, memory, NULL, 2, &to) == KVS_OK);
  kvs_rows range = KVS_ROWS_INIT;
  quantise.scale_rule = KVS_SCALE_OF_TARGET;
  CHECK(kvs_scatter(to, &range, from, 2, &quantise, NULL) == KVS_OK);
  CHECK(scales[0] == 2.0F / 127 && made[0][1] == -127 && scales[1] == 1e-6F);
  quantise.scale_rule = KVS_SCALE_TILE;
  CHECK(kvs_scatter(to, &range, from, 2, &quantise, NULL) == KVS_OK);
  CHECK(scales[1] < 1e-37F && scales[1] > 0);
  kvs_cache_free(to);
  kvs_cache_free(from);
  kvs_layout_free(scaled);

  /* Two components with rules of their own need a call each. */
  const int roles[4] = {KVS_KEY, KVS_KEY_SCALE, KVS_INDEX_KEY, KVS_INDEX_SCALE};
  const kvs_tensor four[4] = {{"tf", extents, NULL, KVS_E4M3, &roles[0], 1, 0, 0},
                              {"tf", one_scale, NULL, KVS_FP32, &roles[1], 1, 0, 0},
                              {"tf", extents, NULL, KVS_E4M3, &roles[2], 1, 0, 0},
                              {"tf", one_scale, NULL, KVS_FP32, &roles[3], 1, 0, 0}};
  const kvs_tensor sources[2] = {{"tf", extents, NULL, KVS_FP32, &roles[0], 1, 0, 0},
                                 {"tf", extents, NULL, KVS_FP32, &roles[2], 1, 0, 0}};
  kvs_layout* floats;
  CHECK(kvs_layout_from_tensors("both", four, 4, 1, &indexer) == KVS_OK);
  CHECK(kvs_layout_from_tensors("floats", sources, 2, 1, &floats) == KVS_OK);
  quantise.scale_rule = KVS_SCALE_OF_TARGET;
  CHECK(kvs_layout_check(indexer, floats, &quantise) == KVS_MISMATCH);
  CHECK(strstr(kvs_last_error(), "different rules") != NULL);
  quantise.roles = 1u << KVS_INDEX_KEY | 1u << KVS_INDEX_SCALE;
  CHECK(kvs_layout_check(indexer, floats, &quantise) == KVS_OK);
  kvs_layout_free(floats);
  kvs_layout_free(indexer);
  kvs_layout_free(codes);
  kvs_layout_free(plain);
}

/* Two heads, sequences of 5 and 3 tokens, key = 10 * token + head (Ascend's KVHEAD_ROPE). */
static void keeping_less(void) {
  const int32_t lens[2] = {5, 3}, windows[4] = {3, 0, 2, 1}, offsets[4] = {1, 1, 0, -1};
  const int64_t first_slots[4] = {0, 4, 10, 12};
  float source[8][2], folded[16], log_counts[16];
  for (int t = 0; t < 8; ++t) {
    for (int h = 0; h < 2; ++h) source[t][h] = (float)(10 * t + h);
  }
  const int key = KVS_KEY, log_count = KVS_LOG_COUNT;
  const int64_t source_shape[3] = {8, 2, 1}, folded_shape[2] = {16, 1};
  const kvs_tensor from = {"thf", source_shape, NULL, KVS_FP32, &key, 1, 0, 0};
  const kvs_tensor to[2] = {{"tf", folded_shape, NULL, KVS_FP32, &key, 1, 0, 0},
                            {"tf", folded_shape, NULL, KVS_FP32, &log_count, 1, 0, 0}};
  kvs_layout *from_layout, *to_layout;
  kvs_cache *from_cache, *to_cache;
  void *from_memory = source, *to_memory[2] = {folded, log_counts};
  CHECK(kvs_layout_from_tensors("packed", &from, 1, 1, &from_layout) == KVS_OK);
  CHECK(kvs_layout_from_tensors("folded", to, 2, 1, &to_layout) == KVS_OK);
  CHECK(kvs_cache_bind(from_layout, &from_memory, NULL, 1, &from_cache) == KVS_OK);
  CHECK(kvs_cache_bind(to_layout, to_memory, NULL, 2, &to_cache) == KVS_OK);
  kvs_keep_row rows[20];
  size_t count = 0;
  CHECK(kvs_plan_keep_rows(KVS_KEEP_MEAN, 2, lens, 2, windows, offsets, first_slots, rows, 3, &count) == KVS_TOO_LARGE);
  CHECK(count == 13);
  CHECK(kvs_plan_keep_rows(KVS_KEEP_MEAN, 2, lens, 2, windows, offsets, first_slots, rows, 20, &count) == KVS_OK);
  const int32_t first_slots32[4] = {0, 4, 10, 12};
  kvs_keep_row same[20];
  CHECK(kvs_plan_keep_rows32(KVS_KEEP_MEAN, 2, lens, 2, windows, offsets, first_slots32, same, 20, &count) == KVS_OK);
  CHECK(count == 13 && memcmp(same, rows, count * sizeof *rows) == 0);
  CHECK(kvs_plan_keep_rows32(KVS_KEEP_MEAN, 2, lens, 2, windows, offsets, NULL, same, 20, &count) == KVS_BAD_REQUEST);
  for (int i = 0; i < 16; ++i) folded[i] = log_counts[i] = -1;
  CHECK(count == 13 && kvs_scatter_kept(to_cache, rows, count, from_cache, NULL) == KVS_OK);
  const float want[16] = {0, 20, 40, -1, 1, 11, 21, 31, 41, -1, 55, 70, 51, 61, 71, -1};
  CHECK(memcmp(folded, want, sizeof want) == 0);
  CHECK(log_counts[1] == (float)log(3) && log_counts[0] == 0 && log_counts[10] == (float)log(2) && log_counts[3] == -1);

  rows[count - 1].slot = 16; /* beyond the cache: nothing at all is written */
  for (int i = 0; i < 16; ++i) folded[i] = log_counts[i] = -1;
  CHECK(kvs_scatter_kept(to_cache, rows, count, from_cache, NULL) == KVS_BAD_REQUEST);
  rows[count - 1].slot = 15;
  rows[count - 1].token = INT64_MAX;
  CHECK(kvs_scatter_kept(to_cache, rows, count, from_cache, NULL) == KVS_BAD_REQUEST);
  rows[count - 1].token = 7;
  rows[count - 1].head = 2;
  CHECK(kvs_scatter_kept(to_cache, rows, count, from_cache, NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_scatter_kept(from_cache, rows, count, to_cache, NULL) == KVS_MISMATCH);
  for (int i = 0; i < 16; ++i) CHECK(folded[i] == -1 && log_counts[i] == -1);
  const int32_t long_windows[4] = {6, 0, 2, 1}, negative[2] = {5, -3}, huge[2] = {INT32_MAX, INT32_MAX};
  CHECK(kvs_plan_keep_rows(KVS_KEEP_DROP, 2, lens, 2, long_windows, offsets, first_slots, rows, 20, &count) ==
        KVS_BAD_REQUEST);
  CHECK(kvs_plan_keep_rows(KVS_KEEP_DROP, 2, negative, 2, windows, offsets, first_slots, rows, 20, &count) ==
        KVS_BAD_REQUEST);
  CHECK(kvs_plan_keep_rows(KVS_KEEP_DROP, 2, huge, 2, windows, offsets, first_slots, rows, 20, &count) ==
        KVS_TOO_LARGE);
  CHECK(kvs_plan_keep_rows(3, 2, lens, 2, windows, offsets, first_slots, rows, 20, &count) == KVS_BAD_REQUEST);
  CHECK(kvs_plan_keep_rows(KVS_KEEP_DROP, 0, lens, 2, windows, offsets, first_slots, rows, 20, &count) ==
        KVS_BAD_REQUEST);
  kvs_cache_free(from_cache);
  kvs_cache_free(to_cache);
  kvs_layout_free(from_layout);
  kvs_layout_free(to_layout);
}

/* --- what must not be --- */

static void bad_layouts(void) {
  kvs_layout *layout = (kvs_layout*)1, *made;
  kvs_cache_shape shape = shape_of(KVS_BF16);
  CHECK(kvs_layout_named("no such", &shape, &layout) == KVS_NOT_FOUND && layout == NULL);
  CHECK(kvs_layout_named(NULL, &shape, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_named("nhd", NULL, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_named("nhd", &shape, NULL) == KVS_BAD_REQUEST);
  shape.element = 8;
  CHECK(kvs_layout_named("nhd", &shape, &layout) == KVS_BAD_REQUEST && strstr(kvs_last_error(), "element: 8"));
  const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 40};
  const char* names[] = {"nhd",        "hnd",     "joint_nhd",         "joint_hnd", "kv_first_nhd", "kv_first_hnd",
                         "packed_nhd", "mla",     "inline_scales_nhd", "nvfp4",     "x_packed",     "cross_layer",
                         "packed_hnd", "indexer", "nvfp4_swizzled",    "mla_split", "ds_mla"};
  for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n) {
    for (size_t i = 0; i < 4; ++i) {
      shape = shape_of(KVS_INT8);
      shape.block_count = wrong[i];
      shape.block_tokens = (int64_t)1 << 30;
      CHECK(kvs_layout_named(names[n], &shape, &layout) == KVS_BAD_REQUEST && layout == NULL);
      CHECK(strlen(kvs_last_error()) > 10);
      shape = shape_of(KVS_INT8);
      shape.layer_count = wrong[i];
      CHECK(kvs_layout_named(names[n], &shape, &layout) == KVS_BAD_REQUEST);
    }
  }
  const int key = KVS_KEY, roles[2] = {KVS_KEY, 10};
  const int64_t extents[2] = {4, 8}, strides[2] = {4, 1}, huge[2] = {INT64_MAX, INT64_MAX};
  kvs_tensor tensor = {"tf", extents, strides, KVS_BF16, &key, 1, 0, 0};
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  CHECK(strcmp(kvs_last_error(), "mine: K: token axis: stride of 8 bytes steps into the 16 bytes within it") == 0);
  tensor.strides = huge;
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.strides = NULL;
  tensor.shape = huge;
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.shape = extents;
  tensor.offset_bytes = INT64_MAX;
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.offset_bytes = -2;
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.offset_bytes = 0;
  tensor.shares = 1; /* there is none before it */
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.shares = 0;
  tensor.roles = &roles[1];
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.roles = NULL;
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  tensor.roles = &key;
  tensor.axes = "tfhbclTHFtf";
  CHECK(kvs_layout_from_tensors("mine", &tensor, 1, 1, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_from_tensors("mine", NULL, 1, 1, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_from_tensors("mine", &tensor, 65, 1, &layout) == KVS_TOO_LARGE);

  shape = shape_of(KVS_BF16);
  CHECK(kvs_layout_named("nhd", &shape, &made) == KVS_OK);
  CHECK(kvs_layout_store_block(made, 3, 1, 0, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_store_block(made, 1, INT64_MAX, 0, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_store_block(made, 1, 1, -1, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_store_block(made, INT64_MIN, 1, 0, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_store_block(NULL, 1, 1, 0, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_slice_heads(made, 1, INT64_MAX, &layout) == KVS_BAD_REQUEST);
  CHECK(kvs_layout_slice_heads(made, -1, 1, &layout) == KVS_BAD_REQUEST);
  uint64_t bytes[LAYERS * 2] = {TENSOR_BYTES, TENSOR_BYTES, TENSOR_BYTES, TENSOR_BYTES - 1};
  CHECK(kvs_layout_allocation_bytes(made, LAYERS * 2, &bytes[0]) == KVS_BAD_REQUEST);
  static unsigned char memory[TENSOR_BYTES + 1];
  void* pointers[LAYERS * 2] = {memory, memory, memory, memory};
  kvs_cache* cache = (kvs_cache*)1;
  CHECK(kvs_cache_bind(made, pointers, NULL, LAYERS, &cache) == KVS_BAD_REQUEST && cache == NULL);
  CHECK(kvs_cache_bind(made, pointers, bytes, LAYERS * 2, &cache) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "allocation 3 has 3071 bytes") != NULL);
  pointers[1] = NULL;
  CHECK(kvs_cache_bind(made, pointers, NULL, LAYERS * 2, &cache) == KVS_BAD_REQUEST);
  pointers[1] = memory + 1;
  CHECK(kvs_cache_bind(made, pointers, NULL, LAYERS * 2, &cache) == KVS_BAD_REQUEST);
  CHECK(strstr(kvs_last_error(), "is not aligned") != NULL);
  CHECK(kvs_cache_bind(NULL, pointers, NULL, LAYERS * 2, &cache) == KVS_BAD_REQUEST);
  char text[4];
  size_t length = 0;
  CHECK(kvs_layout_text(made, text, sizeof text, &length) == KVS_TOO_LARGE && length > 20);
  kvs_layout_free(made);
  kvs_layout_free(NULL);
  kvs_cache_free(NULL);
}

static void bad_calls(void) {
  pages to = make_pages("hnd", 5), from = make_pages("nhd", 6), before = make_pages("hnd", 5);
  int64_t ids[8] = {0, 1, 2, SLOTS, 4, 5, 6, 7}; /* of which four count */
  kvs_rows rows = slots64(ids, 4), range = KVS_ROWS_INIT;
#define REFUSED(call, status)            \
  do {                                   \
    CHECK((call) == (status));           \
    CHECK(strlen(kvs_last_error()) > 5); \
    CHECK(same_pages(&to, &before));     \
  } while (0)
#define BAD(call) REFUSED(call, KVS_BAD_REQUEST)
  BAD(kvs_scatter(to.cache, &rows, from.cache, 4, NULL, NULL)); /* the last slot is one too far */
  ids[3] = INT64_MAX;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 4, NULL, NULL));
  ids[3] = 3;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 5, NULL, NULL)); /* more rows than ids */
  BAD(kvs_scatter(to.cache, &rows, from.cache, -1, NULL, NULL));
  BAD(kvs_scatter(to.cache, &rows, from.cache, INT64_MAX, NULL, NULL));
  BAD(kvs_scatter(to.cache, &range, from.cache, SLOTS + 1, NULL, NULL));
  BAD(kvs_scatter(NULL, &rows, from.cache, 4, NULL, NULL));
  BAD(kvs_scatter(to.cache, NULL, from.cache, 4, NULL, NULL));
  BAD(kvs_scatter(to.cache, &rows, NULL, 4, NULL, NULL));
  range.first = -1;
  BAD(kvs_gather(to.cache, from.cache, &range, 4, NULL, NULL));
  range.first = INT64_MAX;
  BAD(kvs_gather(to.cache, from.cache, &range, 4, NULL, NULL));
  rows.ids = NULL;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 4, NULL, NULL));
  rows.ids = (const char*)ids + 4;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 3, NULL, NULL));
  rows.ids = ids;
  rows.kind = 5;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 4, NULL, NULL));
  rows.kind = KVS_ROWS_BLOCKS64;
  ids[1] = BLOCKS;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 2 * TOKENS, NULL, NULL));
  ids[1] = INT64_MAX / 2;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 2 * TOKENS, NULL, NULL));
  rows.block_tokens = INT64_MAX;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 2 * TOKENS, NULL, NULL));
  rows.block_tokens = -4;
  BAD(kvs_scatter(to.cache, &rows, from.cache, 2 * TOKENS, NULL, NULL));
  ids[1] = 1;

  range.first = 0;
  kvs_operation operation = KVS_OPERATION_INIT;
  operation.kind = 9;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));
  operation.kind = KVS_CAST;
  operation.roles = 1u << KVS_ROLE_COUNT;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));
  operation.roles = 0;
  const float scales[KVS_ROLE_COUNT] = {1, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  operation.from_scale = scales;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));
  operation.from_scale = NULL;
  operation.kind = KVS_ROTATE;
  const double frequencies[2] = {1, 1};
  const int64_t deltas[1] = {1};
  operation.rotary_size = 4;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL)); /* no frequencies */
  operation.frequencies = frequencies;
  operation.frequency_count = 1;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));
  operation.frequency_count = 2;
  operation.deltas = deltas;
  operation.delta_count = 1;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL)); /* a delta for four rows */
  operation.rotary_size = INT64_MAX;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));
  operation.struct_size = 1;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, &operation, NULL));

  const int64_t both[2][2] = {{0, 1}, {1, 2}}, twice[2][2] = {{0, 1}, {2, 1}}, beyond[2][2] = {{0, 1}, {2, BLOCKS}};
  BAD(kvs_copy_blocks(to.cache, both, 2, NULL));
  BAD(kvs_copy_blocks(to.cache, twice, 2, NULL));
  BAD(kvs_copy_blocks(to.cache, beyond, 2, NULL));
  BAD(kvs_copy_blocks(to.cache, NULL, 2, NULL));
  BAD(kvs_swap_blocks(to.cache, to.cache, beyond, 2, NULL));
  REFUSED(kvs_relayout(to.cache, ids, from.cache, ids, SIZE_MAX, NULL, NULL), KVS_TOO_LARGE);
  BAD(kvs_relayout(to.cache, NULL, from.cache, ids, 1, NULL, NULL));
  const int64_t sources[2] = {2, 3}, ends[2] = {1, 3}, falling[2] = {2, 1}, targets[3] = {0, 5, BLOCKS};
  BAD(kvs_fan_out_blocks(to.cache, sources, ends, 2, targets, 3, NULL)); /* the last target, after a good one */
  BAD(kvs_fan_out_blocks(to.cache, sources, ends, 2, targets, 2, NULL));
  BAD(kvs_fan_out_blocks(to.cache, sources, falling, 2, targets, 2, NULL));

  uint64_t seeds[8] = {0}, sums[8] = {0};
  size_t count = 0;
  REFUSED(kvs_scatter_verified(to.cache, &range, from.cache, seeds, 1, sums, 1, NULL, NULL, &count), KVS_MISMATCH);
  kvs_layout *block, *other;
  kvs_cache* blocks;
  CHECK(kvs_layout_store_block(from.layout, 1, 2, 0, &block) == KVS_OK);
  void* buffer = calloc(2, BLOCK_BYTES);
  CHECK(buffer != NULL && kvs_cache_bind(block, &buffer, NULL, 1, &blocks) == KVS_OK);
  BAD(kvs_scatter_verified(to.cache, &range, blocks, seeds, 2, sums, 3, NULL, NULL, &count));
  BAD(kvs_scatter_verified(to.cache, &range, blocks, seeds, 3, sums, 3, NULL, NULL, &count));
  BAD(kvs_scatter_verified(to.cache, &range, blocks, NULL, 2, sums, 2, NULL, NULL, &count));
  BAD(kvs_scatter_verified(to.cache, &range, blocks, seeds, 2, sums, 2, NULL, NULL, NULL));
  uint32_t verdicts[2] = {7, 7};
  REFUSED(kvs_enqueue_scatter_verified(to.cache, &range, blocks, seeds, 2, sums, 2, verdicts, NULL, NULL),
          KVS_UNSUPPORTED);
  BAD(kvs_enqueue_scatter_verified(to.cache, &range, blocks, seeds, 2, sums, 2, NULL, NULL, NULL));
  CHECK(verdicts[0] == 7 && verdicts[1] == 7);
  kvs_rows cut = KVS_ROWS_INIT; /* a store block would begin within a block of ids */
  cut.kind = KVS_ROWS_BLOCKS64;
  cut.ids = ids;
  cut.id_count = 2;
  cut.block_tokens = 2 * TOKENS;
  BAD(kvs_scatter_verified(to.cache, &cut, blocks, seeds, 2, sums, 2, NULL, NULL, &count));
  kvs_hash hash;
  memset(&hash, 1, sizeof hash);
  CHECK(kvs_checksum_seed("nonsense", &hash, seeds) == KVS_BAD_REQUEST);

  /* Layouts that do not meet. */
  kvs_cache_shape shape = shape_of(KVS_BF16);
  shape.heads = HEADS + 1;
  CHECK(kvs_layout_named("nhd", &shape, &other) == KVS_OK);
  CHECK(kvs_layout_check(other, from.layout, NULL) == KVS_MISMATCH);
  CHECK(strcmp(kvs_last_error(), "NHD to NHD: K: head axis: 2 go to 3") == 0);
  CHECK(kvs_layout_check(NULL, from.layout, NULL) == KVS_BAD_REQUEST);

  /* Somewhere else. */
  kvs_run run = KVS_RUN_INIT;
  run.device = 7;
  BAD(kvs_scatter(to.cache, &range, from.cache, 4, NULL, &run));
  CHECK(kvs_device_check(7) == KVS_BAD_REQUEST);
  CHECK(kvs_device_check(KVS_HOST) == KVS_OK);
  CHECK(kvs_lock_pages(NULL, 4096) == KVS_BAD_REQUEST && kvs_lock_pages(buffer, 0) == KVS_BAD_REQUEST);
  CHECK(kvs_unlock_pages(NULL) == KVS_BAD_REQUEST);
  kvs_device_memory exported = KVS_DEVICE_MEMORY_INIT;
  BAD(kvs_export_device_memory(NULL, 4096, &exported));
  BAD(kvs_export_device_memory(buffer, 0, &exported));
  BAD(kvs_export_device_memory(buffer, 4096, NULL));
  exported.struct_size = 8;
  BAD(kvs_export_device_memory(buffer, 4096, &exported));
  exported.struct_size = sizeof exported;
  if (kvs_device_check(KVS_CUDA) != KVS_OK) {
    printf("gpu_c_api_test: no device: %s\n", kvs_last_error());
    run.device = KVS_CUDA;
    REFUSED(kvs_scatter(to.cache, &range, from.cache, 4, NULL, &run), KVS_UNAVAILABLE);
    REFUSED(kvs_copy_blocks(to.cache, both, 1, &run), KVS_UNAVAILABLE);
    REFUSED(kvs_lock_pages(buffer, 2 * BLOCK_BYTES), KVS_UNAVAILABLE);
    REFUSED(kvs_export_device_memory(buffer, 2 * BLOCK_BYTES, &exported), KVS_UNAVAILABLE);
    REFUSED(kvs_swap_blocks(to.cache, from.cache, both, 1, &run), KVS_UNAVAILABLE);
    REFUSED(kvs_enqueue_scatter_verified(to.cache, &range, blocks, seeds, 2, sums, 2, verdicts, NULL, &run),
            KVS_UNAVAILABLE);
  }
  free(buffer);
  kvs_cache_free(blocks);
  kvs_layout_free(block);
  kvs_layout_free(other);
  free_pages(&to);
  free_pages(&from);
  free_pages(&before);
}

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
  pages host = make_pages("nhd", 11), want = make_pages("nhd", 12), got = make_pages("nhd", 13);
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

  kvs_run run = KVS_RUN_INIT;
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
  options.slot_count = 1;
  CHECK(kvs_staging_create(&options, &staging) == KVS_BAD_REQUEST && staging == NULL);
  CHECK(strcmp(kvs_last_error(), "options: slot_count: 1 is not 0, or from 2 to 64") == 0);
  options.slot_count = 2;
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
  options.slot_bytes = BLOCK_BYTES;                                /* one layer of two blocks */
  options.direct_bytes_max = 1;
  CHECK(kvs_staging_create(&options, &staging) == KVS_OK);

  has_own_pages = 1;
  pages from = make_pages("nhd", 21), to = make_pages("hnd", 22), want = make_pages("hnd", 22);
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
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int component = 0; component < 2; ++component) {
      for (int row = 0; row < 2 * TOKENS; ++row) {
        for (int head = 0; head < HEADS && kTo[row] >= 0; ++head) {
          for (int f = 0; f < SIZE; ++f) {
            *at_hnd(&want, layer, component, kTo[row], head, f) =
                *at_nhd(&from, layer, component, (int)kFrom[row], head, f);
          }
        }
      }
    }
  }
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
static void on_a_device(void) {
  int devices = -1;
  CHECK(kvs_device_count(NULL) == KVS_BAD_REQUEST);
  CHECK(kvs_device_count(&devices) == KVS_OK && devices >= 0);
  CHECK(kvs_synchronise(NULL) == KVS_OK && kvs_warm_up(NULL) == KVS_OK);
  staged(devices);
  kvs_run run = KVS_RUN_INIT;
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
  has_own_pages = 1;
  on_the_last_device(devices);
  for (run.device_number = 0; run.device_number <= devices; ++run.device_number) {
    CHECK(kvs_warm_up(&run) == KVS_OK);
    for (int is_locked = 0; is_locked < 2; ++is_locked) {
      pages cache = make_pages("nhd", 3), other = make_pages("nhd", 4), want = make_pages("nhd", 3);
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

/* A caller that was compiled with a newer and one with an older header. */
static void other_versions(void) {
  pages to = make_pages("nhd", 7), from = make_pages("nhd", 8), want = make_pages("nhd", 8);
  kvs_rows range = KVS_ROWS_INIT;
  struct {
    kvs_operation known;
    uint64_t later;
  } newer = {KVS_OPERATION_INIT, 0};
  newer.known.struct_size = sizeof newer;
  CHECK(kvs_scatter(to.cache, &range, from.cache, SLOTS, &newer.known, NULL) == KVS_OK && same_pages(&to, &want));
  newer.later = 1;
  CHECK(kvs_scatter(to.cache, &range, from.cache, SLOTS, &newer.known, NULL) == KVS_UNSUPPORTED);
  newer.known.struct_size = offsetof(kvs_operation, scale_rule);
  newer.known.scale_rule = 77; /* an older caller has something else there */
  CHECK(kvs_scatter(to.cache, &range, from.cache, SLOTS, &newer.known, NULL) == KVS_OK);
  kvs_run older = KVS_RUN_INIT;
  older.struct_size = offsetof(kvs_run, device_number);
  older.device_number = 77;
  CHECK(kvs_scatter(to.cache, &range, from.cache, SLOTS, NULL, &older) == KVS_OK);
  kvs_layout_info info = KVS_LAYOUT_INFO_INIT;
  info.struct_size = offsetof(kvs_layout_info, block_bytes);
  info.block_bytes = 0x5555;
  CHECK(kvs_layout_describe(to.layout, &info) == KVS_OK && info.allocation_count == 4 && info.block_bytes == 0x5555);
  info.struct_size = 0;
  CHECK(kvs_layout_describe(to.layout, &info) == KVS_BAD_REQUEST);
  copy_pages(&from, &to);
  free_pages(&to);
  free_pages(&from);
  free_pages(&want);
}

int main(void) {
  gather_and_scatter();
  whole_blocks();
  operations();
  slots();
  slots32();
  element_names();
  scale_rules();
  keeping_less();
  bad_layouts();
  bad_calls();
  on_a_device();
  other_versions();
  puts("gpu_c_api_test: all well");
  return 0;
}
