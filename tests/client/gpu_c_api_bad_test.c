/* kvstore_gpu.h from C: what must not be is refused, and changes nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/gpu_c_api.h"

void bad_layouts(void) {
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

void bad_calls(void) {
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
  kvs_where run = KVS_WHERE_INIT;
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
