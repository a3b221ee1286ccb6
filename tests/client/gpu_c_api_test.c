/* kvstore_gpu.h from C. Exits 0 if everything is as it must be. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/gpu_c_api.h"

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
  copy_rows(&nhd, &want);
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
  kvs_where older = KVS_WHERE_INIT;
  older.struct_size = offsetof(kvs_where, device_number);
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
