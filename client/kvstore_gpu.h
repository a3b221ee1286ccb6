/* client/kvstore_gpu.h: the C interface that moves KV between an engine's pages and the store's blocks, or between any
 * two layouts, from raw pointers. Part of libkvstore (-lkvstore); statuses and errors are those of kvstore.h.
 *
 *   kvs_cache_shape shape = KVS_CACHE_SHAPE_INIT;       the engine's pages: K and V [NB, BS, H, D], a pair a layer
 *   shape.block_count = 1000, shape.block_tokens = 16, shape.heads = 8, shape.key_size = 128, shape.layer_count = 32;
 *   shape.element = KVS_BF16;
 *   kvs_layout *paged, *block;
 *   kvs_layout_named("nhd", &shape, &paged);
 *   kvs_layout_store_block(paged, 1, 64, 0, &block);    64 blocks as puts and gets move them
 *   kvs_cache *pages, *blocks;
 *   kvs_cache_bind(paged, pointers, NULL, 64, &pages);  32 layers of K and V
 *   kvs_cache_bind(block, &buffer, &buffer_bytes, 1, &blocks);
 *   kvs_rows rows = KVS_ROWS_INIT;
 *   rows.kind = KVS_ROWS_SLOTS64, rows.ids = slot_mapping, rows.id_count = 1024;
 *   kvs_gather(blocks, pages, &rows, 1024, NULL, NULL); then a put; and a get, then kvs_scatter
 *
 * docs/kernels.md draws the layouts and explains the operations. A call checks all its arguments before it writes;
 * unless stated otherwise, any status but KVS_OK means that memory is unchanged. Layouts and caches are immutable and
 * may be used by several threads at a time. They do not own the memory that they describe.
 *
 * A call runs on the host, at once, if its kvs_where is NULL or has KVS_HOST. With KVS_CUDA it is enqueued on a stream:
 * the memory of caches, and every array of ids, deltas and frequencies, is then device or page-locked memory and stays
 * until the stream has passed; ids beyond a cache are skipped, since only the device sees them. */
#ifndef KVSTORE_GPU_H
#define KVSTORE_GPU_H

#include "client/kvstore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements. 8-bit floats are e4m3fn and e5m2; KVS_E2M1X2 is two 4-bit floats in a byte, addressed as one. */
enum { KVS_BYTE, KVS_INT8, KVS_E4M3, KVS_E5M2, KVS_E2M1X2, KVS_FP16, KVS_BF16, KVS_FP32 };
/* The element with a library's name: "bfloat16", "torch.bfloat16", "bf16", "float8_e4m3fn", ..., or KVS_NOT_FOUND. */
KVS_API int kvs_element_named(const char* name, int* element);
/* "byte", "int8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "float16", "bfloat16", "float32": the names in
 * PyTorch and NumPy, accepted by kvs_element_named. NULL: unknown element. */
KVS_API const char* kvs_element_name(int element);

/* The role of a cache component. Two caches exchange the components whose roles they share. */
enum {
  KVS_KEY,
  KVS_VALUE,
  KVS_LATENT, /* MLA's compressed K and V; next the rotated part of its key: */
  KVS_ROPE,
  KVS_INDEX_KEY, /* the sparse indexer's */
  KVS_KEY_SCALE,
  KVS_VALUE_SCALE,
  KVS_LATENT_SCALE,
  KVS_INDEX_SCALE,
  KVS_LOG_COUNT, /* ln(tokens averaged into a slot), of head-folded caches */
  KVS_ROLE_COUNT
};

/* --- layouts --- */

typedef struct kvs_layout kvs_layout;
typedef struct kvs_cache kvs_cache; /* a layout with memory */

typedef struct kvs_cache_shape {
  size_t struct_size;
  int64_t block_count;
  int64_t block_tokens;
  int64_t heads;       /* 0: 1 */
  int64_t key_size;    /* elements of a head; MLA: of the latent */
  int64_t value_size;  /* 0: key_size; MLA: of the rope part */
  int64_t layer_count; /* 0: 1 */
  int element;
  int value_element; /* 0 (KVS_BYTE): as element */
} kvs_cache_shape;
#define KVS_CACHE_SHAPE_INIT \
  { sizeof(kvs_cache_shape), 0, 0, 0, 0, 0, 0, 0, 0 }

/* `name`: nhd hnd joint_nhd joint_hnd kv_first_nhd kv_first_hnd packed_hnd packed_nhd x_packed fractal_nz cross_layer
 * head_folded mla mla_split ds_mla indexer nvfp4 nvfp4_swizzled inline_scales_nhd slot_pool batched ragged chunk.
 * KVS_NOT_FOUND: unknown name. KVS_BAD_REQUEST: the layout cannot hold the shape; kvs_last_error() names the axis. */
KVS_API int kvs_layout_named(const char* name, const kvs_cache_shape* shape, kvs_layout** layout);

/* A tensor as libraries describe it. `axes` has a letter for each axis, in order: b block, l layer, c component, t T
 * token, h H head, f F feature; upper case is an axis' high digit, for tiles. */
typedef struct kvs_tensor { /* does not grow */
  const char* axes;
  const int64_t* shape;   /* strlen(axes) elements */
  const int64_t* strides; /* in elements; NULL: contiguous, the last axis fastest */
  int element;
  const int* roles; /* one, or one for each index of axis c */
  size_t role_count;
  int64_t shares;       /* 0: an allocation of its own; n: the n-th allocation, from 1, of the tensors before it */
  int64_t offset_bytes; /* of its first element from the allocation's start */
} kvs_tensor;
/* Tensors of one layer, replicated for each layer; or with an axis l, of all layers. At most 64. */
KVS_API int kvs_layout_from_tensors(const char* name, const kvs_tensor* tensors, size_t count, int64_t layer_count,
                                    kvs_layout** layout);
/* `cache` with scales per token and head, fp32, in two more allocations per layer. */
KVS_API int kvs_layout_with_scales(const kvs_layout* cache, kvs_layout** layout);
/* The layout of a namespace's store blocks for the content of `cache`. block_tokens 0: the cache's. */
KVS_API int kvs_layout_store_block(const kvs_layout* cache, int64_t head_groups, int64_t block_count,
                                   int64_t block_tokens, kvs_layout** layout);
/* Heads [first, first + count), renumbered from 0, for a tensor-parallel rank. */
KVS_API int kvs_layout_slice_heads(const kvs_layout* layout, int64_t first, int64_t count, kvs_layout** slice);
KVS_API void kvs_layout_free(kvs_layout* layout); /* NULL is allowed */

typedef struct kvs_layout_info {
  size_t struct_size;
  int64_t block_count, block_tokens, layer_count;
  size_t allocation_count; /* pointers for kvs_cache_bind */
  uint64_t block_bytes;    /* the namespace's block_bytes, if this is a store block; else 0 */
} kvs_layout_info;
#define KVS_LAYOUT_INFO_INIT \
  { sizeof(kvs_layout_info), 0, 0, 0, 0, 0 }
KVS_API int kvs_layout_describe(const kvs_layout* layout, kvs_layout_info* info);
/* Bytes spanned by the layout in one of its allocations. */
KVS_API int kvs_layout_allocation_bytes(const kvs_layout* layout, size_t allocation, uint64_t* bytes);
/* A text for people. KVS_TOO_LARGE if length + 1 > capacity, as in kvs_stats. */
KVS_API int kvs_layout_text(const kvs_layout* layout, char* text, size_t capacity, size_t* length);
struct kvs_operation;
/* KVS_OK if rows of `from` can go to `to`, else KVS_MISMATCH; kvs_last_error() names component and axis. */
KVS_API int kvs_layout_check(const kvs_layout* to, const kvs_layout* from, const struct kvs_operation* operation);

/* allocations[i]: with n allocations per layer, the (i % n)-th of layer i / n; or those of all layers together.
 * `bytes`: their sizes, checked against the layout; NULL: unchecked. The layout is copied. */
KVS_API int kvs_cache_bind(const kvs_layout* layout, void* const* allocations, const uint64_t* bytes, size_t count,
                           kvs_cache** cache);
KVS_API int kvs_cache_slice_layers(const kvs_cache* cache, int64_t first, int64_t count, kvs_cache** slice);
KVS_API int kvs_cache_slice_heads(const kvs_cache* cache, int64_t first, int64_t count, kvs_cache** slice);
KVS_API void kvs_cache_free(kvs_cache* cache); /* NULL is allowed; keeps the memory */

/* --- which rows --- */

enum {
  KVS_ROWS_RANGE,   /* row r is slot first + r */
  KVS_ROWS_SLOTS32, /* row r is slot ids[r]; a negative id: skip the row */
  KVS_ROWS_SLOTS64,
  KVS_ROWS_BLOCKS32, /* rows [i * block_tokens, (i + 1) * block_tokens) are block ids[i] */
  KVS_ROWS_BLOCKS64
};
/* A slot is block * block_tokens + offset. */
typedef struct kvs_rows {
  size_t struct_size;
  int kind;
  const void* ids; /* int32_t or int64_t, naturally aligned */
  size_t id_count;
  int64_t first;        /* KVS_ROWS_RANGE */
  int64_t block_tokens; /* KVS_ROWS_BLOCKS*; 0: the cache's */
} kvs_rows;
#define KVS_ROWS_INIT \
  { sizeof(kvs_rows), 0, NULL, 0, 0, 0 }

/* Slots of tokens [starts[s], starts[s] + lengths[s]) of each sequence s, end to end. Block i of sequence s is table[s
 * * width + i]. `starts` NULL: 0. A token whose block is negative has slot -1, or is left out with drop_missing.
 * *count: their number; KVS_TOO_LARGE if more than `capacity`. On an error, `slots` is unspecified. */
KVS_API int kvs_slots_of_table(const int32_t* table, size_t sequence_count, int64_t width, int64_t block_tokens,
                               const int64_t* starts, const int64_t* lengths, int drop_missing, int64_t* slots,
                               size_t capacity, size_t* count);
/* Slots of `count` entries, entry e at positions[e] of request batch_indices[e] (negative: slot -1). Pages of request b
 * are indices[indptr[b]] to indices[indptr[b + 1] - 1]. On an error, `slots` is unspecified. */
KVS_API int kvs_slots_of_csr(const int32_t* indptr, size_t indptr_count, const int32_t* indices, size_t index_count,
                             int64_t page_tokens, const int32_t* batch_indices, const int32_t* positions, size_t count,
                             int64_t* slots);
/* The same in 32 bits, as in Ascend's operators and vLLM's tables, for KVS_ROWS_SLOTS32. KVS_TOO_LARGE: a larger
 * slot. */
KVS_API int kvs_slots32_of_table(const int32_t* table, size_t sequence_count, int64_t width, int64_t block_tokens,
                                 const int32_t* starts, const int32_t* lengths, int drop_missing, int32_t* slots,
                                 size_t capacity, size_t* count);
KVS_API int kvs_slots32_of_csr(const int32_t* indptr, size_t indptr_count, const int32_t* indices, size_t index_count,
                               int64_t page_tokens, const int32_t* batch_indices, const int32_t* positions,
                               size_t count, int32_t* slots);
/* The request and position of each appended row (FlashInfer's get_batch_indices_positions): the rows of request b are
 * append_indptr[b] to append_indptr[b + 1] - 1, the last one being its last token, seq_lens[b] - 1. Rows past the end
 * of append_indptr get request -1, position 0. Input for kvs_slots_of_csr. On an error both results are unspecified. */
KVS_API int kvs_append_positions(const int32_t* append_indptr, size_t request_count, const int32_t* seq_lens,
                                 int32_t* batch_indices, int32_t* positions, size_t row_count);

/* --- conversions --- */

enum {
  KVS_COPY,       /* bytes: elements must be equal */
  KVS_CAST,       /* round(x * from_scale / to_scale), saturating */
  KVS_QUANTISE,   /* computes the scales of target components that have scales; at least one */
  KVS_DEQUANTISE, /* multiplies source components by their scales; at least one */
  KVS_ROTATE      /* turns keys from the positions they were computed at to others */
};
enum { /* computes a dynamic scale from the largest magnitude */
       /* The target's: NVFP4's for KVS_E2M1X2, tiles for KVS_LATENT, the indexer's for KVS_INDEX_KEY, else per
        * token and head. KVS_MISMATCH if a call quantises two components with different rules. */
       KVS_SCALE_OF_TARGET = 0,
       KVS_SCALE_TILE = 1,
       KVS_SCALE_INDEXER = 2,
       KVS_SCALE_INDEXER_POWER_OF_TWO = 3,
       KVS_SCALE_NVFP4 = 4,
       KVS_SCALE_TOKEN_HEAD = 5
};
enum { KVS_NEOX = 1, KVS_GPTJ = 2 }; /* pairs (i, i + R/2), or (2i, 2i + 1). No default: 0 is an error */

typedef struct kvs_operation {
  size_t struct_size;
  int kind;
  uint32_t roles;          /* bits 1 << KVS_KEY, ...: selects components of the target; 0: all */
  const float* from_scale; /* KVS_ROLE_COUNT, by role, on the host: value = stored number * scale; NULL: 1 */
  const float* to_scale;
  int scale_rule;            /* KVS_SCALE_* */
  float global_scale;        /* NVFP4's, on the dequantising side; 0: 1 */
  int rope_style;            /* KVS_ROTATE: KVS_NEOX or KVS_GPTJ */
  int64_t rotary_size;       /* R: number of rotated features */
  const double* frequencies; /* [R / 2] radians per position */
  size_t frequency_count;
  const int64_t* deltas; /* new minus old position of each row; NULL: `delta` for all */
  size_t delta_count;
  int64_t delta;
} kvs_operation;
#define KVS_OPERATION_INIT \
  { sizeof(kvs_operation), 0, 0, NULL, NULL, 0, 0, 0, 0, NULL, 0, NULL, 0, 0 }

/* --- where it runs --- */

enum { KVS_HOST, KVS_CUDA };
typedef struct kvs_where {
  size_t struct_size;
  int device;
  void* stream;        /* a cudaStream_t; NULL: the default stream */
  int block_count_max; /* CUDA blocks of a launch, all components and layers together; 0: chosen for speed */
  int device_number;   /* KVS_DEVICE_NUMBER(ordinal); 0: the device that holds the pages, or the thread's */
} kvs_where;
#define KVS_WHERE_INIT \
  { sizeof(kvs_where), 0, NULL, 0, 0 }
/* Counted from 1, so that zero stays the default. With a number, pages on another device are refused by name, work on
 * page-locked memory alone runs there, and a NULL stream is that device's default one. The thread's own device is the
 * same after the call. A stream of another device is KVS_BAD_REQUEST in any case. */
#define KVS_DEVICE_NUMBER(ordinal) ((ordinal) + 1)
/* KVS_OK: calls can run there. KVS_UNAVAILABLE: they cannot, for the reason in kvs_last_error() (missing module or
 * device). The module is libkvstore_cuda.so beside libkvstore.so, or the file named by the variable KV_CUDA_MODULE. */
KVS_API int kvs_device_check(int device);
/* CUDA devices visible to this process. *count is 0, with KVS_OK, without a device or module. */
KVS_API int kvs_device_count(int* count);
/* Loads all kernels on the run's device now, instead of each at its first call, which takes milliseconds. */
KVS_API int kvs_warm_up(const kvs_where* run);
/* Waits for all earlier work of the run's stream, for callers without a CUDA runtime. Returns at once on the host. */
KVS_API int kvs_synchronise(const kvs_where* run);

/* Page-locks the caller's memory, for instance from kvs_allocate, so that the device copies it at full speed and
 * kernels reach it. Unlock it before freeing it. KVS_UNAVAILABLE without a device. */
KVS_API int kvs_lock_pages(void* memory, size_t bytes);
KVS_API int kvs_unlock_pages(void* memory);

/* Describes device memory (of cudaMalloc, say) for kvs_add_device_memory: its address, bytes and dmabuf_fd, to be
 * closed after that call. From then on the driver's copies to and from it are complete when they return.
 * KVS_UNSUPPORTED: the driver exports no dma-buf; if the kernel has nvidia-peermem, kvs_add_device_memory takes the
 * address alone. KVS_UNAVAILABLE without a device. */
KVS_API int kvs_export_device_memory(void* memory, uint64_t bytes, kvs_device_memory* exported);

/* --- calls --- */

/* Row r of `from_rows` to row r of `to_rows`, for r in [0, row_count): each component of `to`, in each layer. A row
 * skipped on either side keeps its bytes. If two rows have one target slot, either may win; targets must not overlap
 * sources. `operation` NULL: KVS_COPY. */
KVS_API int kvs_permute(const kvs_cache* to, const kvs_rows* to_rows, const kvs_cache* from, const kvs_rows* from_rows,
                        int64_t row_count, const kvs_operation* operation, const kvs_where* run);
/* Row r of `source` to its slot in `cache`; for kvs_gather, a slot of `cache` to row r of `target`. */
KVS_API int kvs_scatter(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* source, int64_t row_count,
                        const kvs_operation* operation, const kvs_where* run);
KVS_API int kvs_gather(const kvs_cache* target, const kvs_cache* cache, const kvs_rows* rows, int64_t row_count,
                       const kvs_operation* operation, const kvs_where* run);
/* Block from_blocks[i] to block to_blocks[i], of the same block size. A negative block on either side: skip. */
KVS_API int kvs_relayout(const kvs_cache* to, const int64_t* to_blocks, const kvs_cache* from,
                         const int64_t* from_blocks, size_t count, const kvs_operation* operation,
                         const kvs_where* run);
/* Copy on write: pairs[i][0] to pairs[i][1], in every layer. On the host, a block that is a source and a target, or a
 * target twice, is refused. With KVS_CUDA, `pairs` may lie in any memory. Device or page-locked memory is read by the
 * kernel in stream order. Plain host memory is read before the call returns, and checked as on the host; a cache whose
 * blocks are not contiguous is then KVS_MISMATCH. */
KVS_API int kvs_copy_blocks(const kvs_cache* cache, const int64_t (*pairs)[2], size_t count, const kvs_where* run);
/* Block sources[i] to targets[ends[i - 1]] .. targets[ends[i] - 1], ends[-1] being 0. Host only. See
 * kvs_copy_blocks. */
KVS_API int kvs_fan_out_blocks(const kvs_cache* cache, const int64_t* sources, const int64_t* ends, size_t source_count,
                               const int64_t* targets, size_t target_count, const kvs_where* run);
/* Block pairs[i][0] of `from` to block pairs[i][1] of `to`: one layout in two memories, for instance the device's and
 * the host's, in few large copies if blocks are contiguous. May be captured in a CUDA graph. `pairs` in host memory is
 * read before the call returns, page-locked or not. With KVS_CUDA, `pairs` may be device memory: then a kernel copies,
 * and host memory must be page-locked. */
KVS_API int kvs_swap_blocks(const kvs_cache* to, const kvs_cache* from, const int64_t (*pairs)[2], size_t count,
                            const kvs_where* run);

/* --- checksums: name-bound XXH3-64 for each 64 KiB stripe of a block --- */

/* The seed of a block's checksums. */
KVS_API int kvs_checksum_seed(const char* record, const kvs_hash* hash, uint64_t* seed);
/* Verifies block i of `blocks` (kvs_layout_store_block) and scatters its tokens, rows [i * block_tokens, (i + 1) *
 * block_tokens), to their slots in `cache`. `sums`: the stripes' of each block. *verified: number of leading blocks
 * that match their names; the cache is unchanged from the first mismatch on. Host only. */
KVS_API int kvs_scatter_verified(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* blocks,
                                 const uint64_t* seeds, size_t block_count, const uint64_t* sums, size_t sum_count,
                                 const kvs_operation* operation, const kvs_where* run, size_t* verified);
/* Gathers block_count blocks and computes their checksums. With KVS_CUDA, seeds and sums are in device memory. */
KVS_API int kvs_gather_with_checksums(const kvs_cache* blocks, const kvs_cache* cache, const kvs_rows* rows,
                                      const uint64_t* seeds, size_t block_count, uint64_t* sums, size_t sum_count,
                                      const kvs_operation* operation, const kvs_where* run);

/* kvs_scatter_verified enqueued on a device, with KVS_CUDA only: seeds, sums and verdicts (block_count) are in device
 * memory. verdicts[i] becomes 0, or 1 for a block that does not match its name: its rows alone are left out. */
KVS_API int kvs_enqueue_scatter_verified(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* blocks,
                                         const uint64_t* seeds, size_t block_count, const uint64_t* sums,
                                         size_t sum_count, uint32_t* verdicts, const kvs_operation* operation,
                                         const kvs_where* run);

/* --- between the host and a device, in few large copies --- */

/* Copies blocks in host memory to and from pages on a device: large copies through a ring of buffers on the device,
 * layer 0 first, and small totals by a kernel alone. One thread at a time; enqueues without waiting unless stated
 * otherwise. docs/kernels.md, "Between the host and a device". */
typedef struct kvs_staging kvs_staging;
typedef struct kvs_staging_options {
  size_t struct_size;
  uint64_t buffer_bytes;      /* of one buffer, at least one layer of one block; 0: 16 MiB */
  int buffer_count;           /* from 2 to 64; 0: 3 */
  int direct_block_count_max; /* CUDA blocks of a kernel that reads host memory directly; 0: 64 */
  uint64_t direct_bytes_max;  /* totals up to this skip the buffers; 0: measured now; 1: all use them */
  int device_number;          /* KVS_DEVICE_NUMBER(ordinal); 0: the thread's */
  /* Place of page-locked buffers, as in kvs_options; NULL: the device's NUMA node; "off": anywhere */
  const char* numa_nodes;
} kvs_staging_options;
#define KVS_STAGING_OPTIONS_INIT \
  { sizeof(kvs_staging_options), 0, 0, 0, 0, 0, NULL }
/* `options` NULL: all defaults. KVS_UNAVAILABLE without a device; KVS_OUT_OF_MEMORY: the buffers do not fit. */
KVS_API int kvs_staging_create(const kvs_staging_options* options, kvs_staging** staging);
/* Waits for all enqueued work. NULL is allowed. */
KVS_API void kvs_staging_free(kvs_staging* staging);

typedef struct kvs_mark { /* does not grow. A moment on one of the two lines; number 0: now */
  uint64_t number;
  uint32_t line;
} kvs_mark;
typedef struct kvs_staged_layers { /* does not grow. Layers before layer_end are complete once `mark` is passed */
  int64_t layer_end;
  kvs_mark mark;
} kvs_staged_layers;

/* Borrowed until the call's last mark is passed; after an error, until kvs_staging_drain. */
typedef struct kvs_staged_blocks {
  size_t struct_size;
  const kvs_cache* pages;         /* the device's */
  const kvs_rows* rows;           /* of the tokens, in `pages`; ids in device or page-locked memory */
  const kvs_cache* blocks;        /* kvs_layout_store_block, in host memory */
  int64_t block_count;            /* uses the first block_count blocks */
  int is_page_locked;             /* not 0: the blocks' memory is page-locked. Else the call waits for its copies */
  const kvs_operation* operation; /* NULL: KVS_COPY; its arrays as the ids */
  int64_t first_layer;
  int64_t layer_count;  /* 0: all from first_layer on */
  uint64_t deadline_us; /* for waits within the call; 0: unlimited */
  /* Not 0: runs after all earlier work of `stream` (NULL: the default stream), such as computing these pages. */
  int is_after_stream;
  void* stream;
} kvs_staged_blocks;
#define KVS_STAGED_BLOCKS_INIT \
  { sizeof(kvs_staged_blocks), NULL, NULL, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL }
/* Blocks to pages. `layers` receives 1 to layer_count elements, the last covering all layers: `capacity` must be at
 * least the number of layers. *count is set in any case: after KVS_TIMED_OUT or a CUDA error the layers of those marks
 * are right, the others unspecified. KVS_TOO_LARGE: a layer of a block is larger than a buffer. */
KVS_API int kvs_staging_load(kvs_staging* staging, const kvs_staged_blocks* blocks, kvs_staged_layers* layers,
                             size_t capacity, size_t* count);
/* Pages to blocks. Blocks that are not page-locked have all layers once the call returns. */
KVS_API int kvs_staging_store(kvs_staging* staging, const kvs_staged_blocks* blocks, kvs_staged_layers* layers,
                              size_t capacity, size_t* count);
/* Waits for a mark; deadline_us 0: unlimited. */
KVS_API int kvs_staging_wait(kvs_staging* staging, kvs_mark mark, uint64_t deadline_us);
/* Later work of the caller's stream waits for the mark, as an engine's layer waits for its pages. */
KVS_API int kvs_staging_wait_on_stream(kvs_staging* staging, void* stream, kvs_mark mark);
/* Waits for everything: after an error, before borrowed memory is used again. */
KVS_API int kvs_staging_drain(kvs_staging* staging, uint64_t deadline_us);

/* --- pruned caches: heads keep tokens of their own --- */

typedef struct kvs_keep_row { /* does not grow */
  int64_t slot;
  int64_t token; /* in the packed source; the mean of token_count tokens from there on */
  int32_t head;
  int32_t token_count;
} kvs_keep_row;
enum { KVS_KEEP_LAST, KVS_KEEP_MEAN, KVS_KEEP_DROP };
/* The rows kept by each (sequence b, head h), i = b * head_count + h: windows[i], offsets[i] (not for KVS_KEEP_LAST),
 * from first_slots[i] on (negative: keeps none). *count: rows; over `capacity`: KVS_TOO_LARGE, unwritten. */
KVS_API int kvs_plan_keep_rows(int mode, int64_t head_count, const int32_t* seq_lens, size_t sequence_count,
                               const int32_t* windows, const int32_t* offsets, const int64_t* first_slots,
                               kvs_keep_row* rows, size_t capacity, size_t* count);
/* The same with first slots in 32 bits: Ascend's slotMapping. */
KVS_API int kvs_plan_keep_rows32(int mode, int64_t head_count, const int32_t* seq_lens, size_t sequence_count,
                                 const int32_t* windows, const int32_t* offsets, const int32_t* first_slots,
                                 kvs_keep_row* rows, size_t capacity, size_t* count);
/* Writes the rows of `source` to a head-folded `cache`: K, V and the log count. */
KVS_API int kvs_scatter_kept(const kvs_cache* cache, const kvs_keep_row* rows, size_t row_count,
                             const kvs_cache* source, const kvs_where* run);

#ifdef __cplusplus
}
#endif
#endif /* KVSTORE_GPU_H */
