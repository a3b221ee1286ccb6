/* client/kvstore_paging.h: the C interface of the host side of a paged KV cache: the pages of a sequence, sharing,
 * eviction, and the order in which a batch is attended to. It only decides; kvstore_gpu.h moves the bytes. Part of
 * libkvstore (-lkvstore); statuses and errors are those of kvstore.h.
 *
 *   kvs_page_pool *pool;
 *   kvs_paged_cache *cache;
 *   kvs_group group = KVS_GROUP_INIT;
 *   group.block_tokens = 16;
 *   kvs_page_pool_create(page_count, NULL, NULL, &pool);
 *   kvs_paged_cache_create(pool, &group, &cache);
 *   kvs_hash_chain(record, tokens, token_count, hashes, capacity, &hash_count);
 *   kvs_paged_open(cache, hashes, hash_count, token_count, &sequence, &cached);   KVS_OUT_OF_MEMORY: let it wait
 *   kvs_paged_slots(cache, sequence, cached, token_count, slots);                 compute these tokens into these slots
 *   kvs_paged_name_blocks(cache, sequence, hashes, hash_count);                   now others can hit them
 *   kvs_paged_append(cache, sequence, 1, pairs, 1, &pair_count);                  kvs_copy_blocks(pairs) before writing
 *
 * Also: plans for shared prefixes of a batch, packed masks, and caches that a model on the host calls layer by layer.
 *
 * docs/paged-cache.md explains the rules. A pool and its caches are used by one thread at a time. Calls that fail leave
 * every sequence unchanged. Numbers of tokens are at most 2^40. */
#ifndef KVSTORE_PAGING_H
#define KVSTORE_PAGING_H

#include "client/kvstore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- pages --- */

typedef struct kvs_page_pool kvs_page_pool;
typedef struct kvs_paged_cache kvs_paged_cache;
typedef uint64_t kvs_sequence; /* of one cache; never reused */

/* The last page with this block is gone: an engine's event "block removed". Must not call functions of this header. */
typedef void (*kvs_on_block_removed)(void* context, const kvs_hash* hash, uint32_t group);

/* The pages of one device, from 1 to page_count - 1. Page 0 is reserved: page tables show it for pages left behind by a
 * sliding window. page_count: from 2 to 2^31 - 2. `on_removed` NULL: without events. */
KVS_API int kvs_page_pool_create(size_t page_count, kvs_on_block_removed on_removed, void* context,
                                 kvs_page_pool** pool);
/* Its caches remain valid. NULL is allowed. */
KVS_API void kvs_page_pool_free(kvs_page_pool* pool);
/* Pages without a sequence. They keep their blocks, which can be hit, until they are needed. */
KVS_API int kvs_page_pool_free_count(const kvs_page_pool* pool, size_t* count);
/* Forgets all blocks (the weights changed). KVS_BUSY while any sequence is open: then all blocks stay. */
KVS_API int kvs_page_pool_forget(kvs_page_pool* pool);

/* --- sequences --- */

typedef struct kvs_group { /* layers with blocks of their own for the same tokens */
  size_t struct_size;
  size_t block_tokens;  /* from 1 to 2^31 */
  size_t window_tokens; /* a token reads itself and the window_tokens - 1 before it; 0: all before it */
  int drops_last_block; /* not 0: a draft head, which computes the last cached block again */
  uint32_t number;      /* distinguishes blocks with the same hash in different groups */
} kvs_group;
#define KVS_GROUP_INIT \
  { sizeof(kvs_group), 0, 0, 0, 0 }

KVS_API int kvs_paged_cache_create(kvs_page_pool* pool, const kvs_group* group, kvs_paged_cache** cache);
/* Closes its sequences. NULL is allowed. */
KVS_API void kvs_paged_cache_free(kvs_paged_cache* cache);

/* How many leading tokens of a sequence of token_count are cached: always fewer than token_count, since the last
 * token's logits choose the next. `hashes`: of its full blocks, in order, as far as known. */
KVS_API int kvs_paged_find(const kvs_paged_cache* cache, const kvs_hash* hashes, size_t hash_count, size_t token_count,
                           size_t* cached);
/* A new sequence that begins with the cached tokens. *cached: as kvs_paged_find; compute the tokens from there on.
 * KVS_OUT_OF_MEMORY: too few free pages. */
KVS_API int kvs_paged_open(kvs_paged_cache* cache, const kvs_hash* hashes, size_t hash_count, size_t token_count,
                           kvs_sequence* sequence, size_t* cached);
/* The same for several groups of one pool at once: a sequence in each, with one prefix, the longest cached in all; or
 * an error and none opened. hashes[g], hash_counts[g]: of group g's blocks, of any size. At most 64 groups. */
KVS_API int kvs_paged_open_groups(kvs_paged_cache* const* caches, size_t group_count, const kvs_hash* const* hashes,
                                  const size_t* hash_counts, size_t token_count, kvs_sequence* sequences,
                                  size_t* cached);
/* Room for token_count more tokens. pairs[i]: page pairs[i][0] must be copied to pairs[i][1] in every layer, by
 * kvs_copy_blocks for instance, before either is written: the last page, if another sequence shares it. At most one
 * pair; `pairs` NULL or capacity 0: KVS_BAD_REQUEST. KVS_OUT_OF_MEMORY: too few free pages. */
KVS_API int kvs_paged_append(kvs_paged_cache* cache, kvs_sequence sequence, size_t token_count, int64_t (*pairs)[2],
                             size_t capacity, size_t* pair_count);
/* A second sequence with the same tokens in the same pages: beams, parallel samples. */
KVS_API int kvs_paged_fork(kvs_paged_cache* cache, kvs_sequence sequence, kvs_sequence* fork);
/* Keeps only the first token_count tokens, after a rejected draft. KVS_BAD_REQUEST: the sequence is shorter, or its
 * window has left tokens behind that the next one would read. */
KVS_API int kvs_paged_crop(kvs_paged_cache* cache, kvs_sequence sequence, size_t token_count);
/* Its last page is the first to be reused. */
KVS_API int kvs_paged_close(kvs_paged_cache* cache, kvs_sequence sequence);
/* Its full blocks are computed: from now on block i is found as hashes[i]. Repeating this has no effect. */
KVS_API int kvs_paged_name_blocks(kvs_paged_cache* cache, kvs_sequence sequence, const kvs_hash* hashes,
                                  size_t hash_count);
KVS_API int kvs_paged_token_count(const kvs_paged_cache* cache, kvs_sequence sequence, size_t* token_count);
/* Block i of the sequence is in pages[i]; 0: left behind by the window. KVS_TOO_LARGE if there are more than
 * `capacity`; *count is their number. */
KVS_API int kvs_paged_pages(const kvs_paged_cache* cache, kvs_sequence sequence, int32_t* pages, size_t capacity,
                            size_t* count);
/* Slots of tokens [begin, end), for KVS_ROWS_SLOTS64: end - begin of them. -1: left behind by the window. */
KVS_API int kvs_paged_slots(const kvs_paged_cache* cache, kvs_sequence sequence, size_t begin, size_t end,
                            int64_t* slots);

/* --- plans for shared prefixes of a batch --- */

typedef struct kvs_batch {
  size_t struct_size;
  size_t sequence_count;
  const int32_t* page_indptr; /* sequence_count + 1; pages of sequence s: pages[page_indptr[s]] to page_indptr[s + 1] */
  const int32_t* pages;       /* from 1 on */
  const kvs_hash* hashes; /* of each page's block: equal hash, equal prefix. All zero: unshared. NULL: all unshared */
  const int32_t* last_page_tokens; /* of each sequence, if its other pages are full; NULL: see page_tokens */
  const int32_t* page_tokens;      /* of each page, if others than the last may be partial; NULL: see above */
  const int32_t* query_counts;     /* of each sequence: number of its last tokens that are queries; NULL: 1 each */
  size_t block_tokens;             /* from 1 to 2^31 - 1 */
  size_t sequence_count_min;       /* pages shared by fewer sequences are not read together; 0: 2 */
} kvs_batch;
#define KVS_BATCH_INIT \
  { sizeof(kvs_batch), 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0 }

/* Cascade attention (FlashInfer's): page tables level by level. The plan has its own order of sequences, in which those
 * that share pages are neighbours. KVS_BAD_REQUEST: kvs_last_error() names the fault in the batch. KVS_UNSUPPORTED:
 * level_count_max (0: unlimited) would put a partial page in the middle of an entry. */
typedef struct kvs_cascade kvs_cascade;
typedef struct kvs_cascade_level { /* arrays live until the plan is freed */
  size_t struct_size;
  size_t entry_count;
  /* Entry i: queries query_indptr[i] to query_indptr[i + 1] of the batch in its order, against pages
   * page_indices[page_indptr[i]] to page_indptr[i + 1], the last with last_page_tokens[i] tokens; 0: empty. */
  const int32_t* query_indptr;
  const int32_t* page_indptr;
  const int32_t* page_indices;
  const int32_t* last_page_tokens;
} kvs_cascade_level;
#define KVS_CASCADE_LEVEL_INIT \
  { sizeof(kvs_cascade_level), 0, NULL, NULL, NULL, NULL }
KVS_API int kvs_plan_cascade(const kvs_batch* batch, size_t level_count_max, kvs_cascade** plan);
/* order[i]: the batch's sequence at place i; sequence_count elements, until the plan is freed. Only the last level is
 * causal. Either result may be NULL. */
KVS_API int kvs_cascade_describe(const kvs_cascade* plan, size_t* level_count, const size_t** order);
KVS_API int kvs_cascade_get_level(const kvs_cascade* plan, size_t index, kvs_cascade_level* level);
KVS_API void kvs_cascade_free(kvs_cascade* plan); /* NULL is allowed */

/* ChunkAttention: every shared page against all sequences that contain it, then each sequence against its own pages. */
typedef struct kvs_chunks kvs_chunks;
typedef struct kvs_chunks_view { /* arrays live until the plan is freed */
  size_t struct_size;
  size_t chunk_count;  /* a chunk is a page */
  size_t shared_count; /* the first shared_count chunks are shared */
  const int32_t* pages;
  const int32_t* token_counts; /* of each chunk */
  /* Shared chunk c is in sequences begins[c] to ends[c] of the order; the partial result of sequence s lies in row
   * offsets[c] + s - begins[c] of partial_row_count. */
  const int32_t* begins;
  const int32_t* ends;
  const int32_t* offsets;
  int32_t partial_row_count;
  size_t chunk_count_max;         /* of a sequence */
  const int32_t* sequence_chunks; /* [sequence][chunk_count_max] in token order, then -1 */
  const int32_t* sequence_tokens;
  const size_t* order; /* as kvs_cascade_describe */
} kvs_chunks_view;
#define KVS_CHUNKS_VIEW_INIT \
  { sizeof(kvs_chunks_view), 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL }
/* A chunk is shared if more than sharing_threshold (0: 1) sequences contain it. KVS_UNSUPPORTED: several queries. */
KVS_API int kvs_plan_chunks(const kvs_batch* batch, size_t sharing_threshold, kvs_chunks** plan);
KVS_API int kvs_chunks_describe(const kvs_chunks* plan, kvs_chunks_view* view);
KVS_API void kvs_chunks_free(kvs_chunks* plan); /* NULL is allowed */

/* --- masks --- */

/* FlashInfer's packed custom masks. Request r has query_counts[r] rows of kv_counts[r] bits, row after row; a set bit:
 * this query reads this key. Bit i of request r is bit i % 8 of byte byte_indptr[r] + i / 8. `mask`: a byte for each
 * bit, 0 or not, requests end to end; NULL: causal, the queries being the last tokens. bit_indptr, byte_indptr:
 * request_count + 1 each, or NULL. *bytes: how many; KVS_TOO_LARGE, unwritten, over `capacity`, or at 2^31 bits. */
KVS_API int kvs_pack_masks(const int32_t* query_counts, const int32_t* kv_counts, size_t request_count,
                           const uint8_t* mask, uint8_t* packed, size_t capacity, size_t* bytes, int32_t* bit_indptr,
                           int32_t* byte_indptr);

/* --- caches by layer, in host memory --- */

enum {                        /* 0 is an error: the kind has to be given */
       KVS_LAYER_GROWING = 1, /* keeps everything */
       KVS_LAYER_STATIC = 2,  /* up to token_capacity, in memory that never moves */
       KVS_LAYER_SLIDING = 3, /* the last token_capacity tokens */
       KVS_LAYER_SINK =
           4, /* the first sink_tokens and the last ones, token_capacity in all; keys turn to their place */
       KVS_LAYER_QUANTISED = 5 /* old tokens in few bits, recent ones unquantised */
};
typedef struct kvs_layer_options {
  size_t struct_size;
  int kind;
  int element; /* KVS_FP16, KVS_BF16 or KVS_FP32 of kvstore_gpu.h; KVS_LAYER_GROWING, STATIC and SLIDING: any */
  int64_t batch_count;
  int64_t heads;
  int64_t key_size;
  int64_t value_size;        /* 0: key_size */
  int64_t token_capacity;    /* KVS_LAYER_STATIC, SLIDING, SINK */
  int64_t sink_tokens;       /* KVS_LAYER_SINK: below token_capacity */
  int rope_style;            /* KVS_LAYER_SINK: KVS_NEOX or KVS_GPTJ, the rotation of the keys: */
  int64_t rotary_size;       /* number of rotated features, even, from 2 to 1024 and key_size */
  const double* frequencies; /* [rotary_size / 2] radians per position; copied */
  size_t frequency_count;
  int bits;                /* KVS_LAYER_QUANTISED: 2, 4 or 8; 0: 4 */
  int64_t group_size;      /* values that share a scale, a multiple of 8; 0: 64 */
  int64_t residual_tokens; /* number of recent unquantised tokens; 0: 128; -1: quantise all */
} kvs_layer_options;
#define KVS_LAYER_OPTIONS_INIT \
  { sizeof(kvs_layer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0 }

/* Tokens [begin, end) of each sequence: the key of sequence b, head h, token t begins at element ((b * heads + h) *
 * token_capacity + t) * key_size of `keys`; values likewise. Valid until the cache's next call. */
typedef struct kvs_layer_view {
  size_t struct_size;
  const void* keys;
  const void* values;
  int64_t token_capacity;
  int64_t begin;
  int64_t end;
} kvs_layer_view;
#define KVS_LAYER_VIEW_INIT \
  { sizeof(kvs_layer_view), NULL, NULL, 0, 0, 0 }

/* Keys and values of one layer, for a batch whose sequences grow in step. One thread at a time. */
typedef struct kvs_layer kvs_layer;
KVS_API int kvs_layer_create(const kvs_layer_options* options, kvs_layer** layer);
KVS_API void kvs_layer_free(kvs_layer* layer); /* NULL is allowed */
/* Adds token_count tokens, [batch, heads, token_count, size] each, and returns the tokens that their attention reads,
 * the added ones last. KVS_TOO_LARGE: a static cache is too small; it is unchanged. */
KVS_API int kvs_layer_update(kvs_layer* layer, const void* keys, const void* values, int64_t token_count,
                             kvs_layer_view* view);
/* The position at which the first of the next added_count tokens is computed. Bounded for a sink cache. */
KVS_API int kvs_layer_next_position(const kvs_layer* layer, int64_t added_count, int64_t* position);
/* Tokens added and not cropped, including those evicted since. */
KVS_API int kvs_layer_token_count(const kvs_layer* layer, int64_t* token_count);
/* Keeps only the first token_count tokens; a negative number removes that many. KVS_UNSUPPORTED: evicted too much. */
KVS_API int kvs_layer_crop(kvs_layer* layer, int64_t token_count);
/* Selects sequences of the batch, in this order: beams, forks. Static and sliding caches keep their batch's size. */
KVS_API int kvs_layer_select(kvs_layer* layer, const int64_t* sequences, size_t count);

#ifdef __cplusplus
}
#endif
#endif /* KVSTORE_PAGING_H */
