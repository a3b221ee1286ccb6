/* tests/client/gpu_c_api.h: an engine's caches in memory of their own, for the program gpu_c_api_test. Places of
 * elements are computed here from the layouts' definitions, not asked of the library. */
#ifndef KV_TESTS_CLIENT_GPU_C_API_H
#define KV_TESTS_CLIENT_GPU_C_API_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvstore_gpu.h"
#include "tests/client/c_check.h"

#define BLOCKS 6
#define TOKENS 4 /* of a block */
#define HEADS 2
#define SIZE 32
#define LAYERS 2
#define SLOTS (BLOCKS * TOKENS)
#define TENSOR_BYTES (SLOTS * HEADS * SIZE * 2)
#define BLOCK_BYTES (LAYERS * 2 * TOKENS * HEADS * SIZE * 2) /* of the store */

typedef struct pages {
  uint16_t* tensors[LAYERS * 2]; /* K and V of each layer */
  kvs_layout* layout;
  kvs_cache* cache;
} pages;

static inline kvs_cache_shape shape_of(int element) {
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

/* `is_lockable`: each tensor has whole pages of its own, since memory can be locked by those only. */
static inline pages make_pages_of(const char* name, unsigned seed, int is_lockable) {
  pages made;
  kvs_cache_shape shape = shape_of(KVS_BF16);
  uint64_t bytes[LAYERS * 2];
  CHECK(kvs_layout_named(name, &shape, &made.layout) == KVS_OK);
  for (size_t i = 0; i < LAYERS * 2; ++i) {
    made.tensors[i] = is_lockable ? aligned_alloc(HOST_PAGE, HOST_PAGE) : malloc(TENSOR_BYTES);
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
static inline pages make_pages(const char* name, unsigned seed) { return make_pages_of(name, seed, 0); }
static inline pages make_lockable_pages(const char* name, unsigned seed) { return make_pages_of(name, seed, 1); }
static inline void free_pages(pages* made) {
  kvs_cache_free(made->cache);
  kvs_layout_free(made->layout);
  for (size_t i = 0; i < LAYERS * 2; ++i) free(made->tensors[i]);
}
static inline void copy_pages(const pages* from, pages* to) {
  for (size_t i = 0; i < LAYERS * 2; ++i) memcpy(to->tensors[i], from->tensors[i], TENSOR_BYTES);
}
static inline int same_pages(const pages* a, const pages* b) {
  for (size_t i = 0; i < LAYERS * 2; ++i) {
    if (memcmp(a->tensors[i], b->tensors[i], TENSOR_BYTES) != 0) return 0;
  }
  return 1;
}

static inline uint16_t* at_nhd(pages* of, int layer, int component, int slot, int head, int feature) {
  return &of->tensors[layer * 2 + component][(slot * HEADS + head) * SIZE + feature];
}
static inline uint16_t* at_hnd(pages* of, int layer, int component, int slot, int head, int feature) {
  const int block = slot / TOKENS, offset = slot % TOKENS;
  return &of->tensors[layer * 2 + component][((block * HEADS + head) * TOKENS + offset) * SIZE + feature];
}

static inline kvs_rows slots64(const int64_t* ids, size_t count) {
  kvs_rows rows = KVS_ROWS_INIT;
  rows.kind = KVS_ROWS_SLOTS64;
  rows.ids = ids;
  rows.id_count = count;
  return rows;
}

static const int64_t kFrom[2 * TOKENS] = {23, 0, 7, 8, 1, 20, 13, 2};
static const int32_t kTo[2 * TOKENS] = {5, 22, -1, 3, 9, 0, 17, 12};

/* What a gather and a scatter of kFrom and kTo must do, element by element. */
static inline void copy_rows(pages* nhd, pages* hnd) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int component = 0; component < 2; ++component) {
      for (int row = 0; row < 2 * TOKENS; ++row) {
        for (int head = 0; head < HEADS && kTo[row] >= 0; ++head) {
          for (int f = 0; f < SIZE; ++f) {
            *at_hnd(hnd, layer, component, kTo[row], head, f) =
                *at_nhd(nhd, layer, component, (int)kFrom[row], head, f);
          }
        }
      }
    }
  }
}

/* Rows of a component of its own: [count, size], from a tensor description. */
static inline kvs_cache* make_rows(void* memory, int element, const int* roles, int64_t count, int64_t size,
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

/* The program's other parts. */
void bad_layouts(void); /* what must not be */
void bad_calls(void);
void on_a_device(void); /* if there is one */

#endif
