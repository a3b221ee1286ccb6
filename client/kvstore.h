/* client/kvstore.h: the C interface of kvstore's client, for engines and other languages. Link with -lkvstore.
 *
 *   kvs_options options = KVS_OPTIONS_INIT;
 *   kvs_node node = {"unix:///run/kvstore/kvstore.sock", NULL, 0};
 *   options.nodes = &node;
 *   options.node_count = 1;
 *   kvs_client *client;
 *   if (kvs_client_open(&options, &client) != KVS_OK) puts(kvs_last_error());
 *
 * Every call returns a status; only KVS_OK fills the results. A dead, slow or full node is not a failure of match, get
 * and put but a smaller result, and its `why` gives the reason. Calls block until their deadline at the latest;
 * kvs_submit_* never block: see kvs_queue below. All may be made from any thread, but blocking ones not from a progress
 * callback. Calls do not throw, abort the process or install signal handlers. After an internal error the client is
 * disabled: its calls fail with KVS_INTERNAL, and the process goes on.
 *
 * After fork() the client remains the parent's, which goes on as before. In the child its connections are closed, so
 * that a sleeping child holds no session, its calls fail with KVS_FORKED at once, and kvs_client_close only discards
 * it. The child may open its own client before or after that. Memory of kvs_allocate stays mapped in the child, and
 * shared: nodes go on filling it for the parent.
 *
 * Structs grow only at their end. `struct_size` is the size known to the caller's compiler: set it (the _INIT macros
 * do), and zero unused members. Zero always means the default. */
#ifndef KVSTORE_H
#define KVSTORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVS_API __attribute__((visibility("default")))
#else
#define KVS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVS_ABI_VERSION 1

enum {
  KVS_OK = 0,
  KVS_OUT_OF_MEMORY = 1,      /* the node has nothing left to evict */
  KVS_STALE_LEASE = 2,        /* the lease has ended */
  KVS_CORRUPT_BLOCK = 3,      /* a checksum did not match */
  KVS_BAD_FRAME = 4,          /* the node's bytes are malformed; the client reconnects */
  KVS_BAD_REQUEST = 5,        /* an argument breaks the rules: a bug in the caller */
  KVS_UNSUPPORTED = 6,        /* unknown to this library or to the node */
  KVS_NO_NAMESPACE = 7,       /* unknown namespace */
  KVS_MISMATCH = 8,           /* two sides describe the same thing differently */
  KVS_TOO_LARGE = 9,          /* over a limit of the node: split the request */
  KVS_BUSY = 10,              /* a limit is reached: back off */
  KVS_UNAVAILABLE = 11,       /* the node cannot be reached */
  KVS_NO_REGION = 12,         /* memory cannot be lent */
  KVS_QUARANTINED = 13,       /* a timed-out get may still write this memory, or it is being taken back */
  KVS_DRAINING = 14,          /* the node is shutting down */
  KVS_CANCELLED = 15,         /* given up */
  KVS_NOT_FOUND = 16,         /* unknown call, block of a set, or key of the disk tier */
  KVS_DISK_FAILED = 17,       /* the disk tier failed */
  KVS_NOT_ADMITTED = 18,      /* the blocks it would replace are worth more to the cache; do not retry */
  KVS_PERMISSION_DENIED = 19, /* the node's policy denies this client the right; its log names it */
  KVS_OVER_QUOTA = 20,        /* a limit of the client's tenant is reached: recompute, ask again later */
  KVS_TIMED_OUT = 1000,       /* the deadline has passed */
  KVS_SYSTEM = 1001,          /* an error of the operating system; kvs_last_error() names it */
  KVS_INTERNAL = 1002,        /* a bug in this library; the client is disabled */
  KVS_FORKED = 1003           /* the client belongs to the parent of this forked child: open another one */
};

typedef struct kvs_client kvs_client;
typedef uint32_t kvs_space; /* an opened namespace */
typedef uint64_t kvs_lease; /* 0: no lease */
typedef struct kvs_hash {
  uint8_t bytes[32];
} kvs_hash;

typedef struct kvs_extra { /* digest of the data in a block's hash besides its tokens; all zero: tokens only */
  uint8_t bytes[16];
} kvs_extra;

typedef struct kvs_node { /* does not grow */
  const char* endpoint;   /* "tcp://HOST:PORT", "tls://HOST:PORT" or "unix://PATH" */
  const char* name;       /* NULL: the endpoint */
  double weight;          /* 0: 1.0 */
} kvs_node;

typedef struct kvs_options {
  size_t struct_size;
  const kvs_node* nodes;
  size_t node_count;
  const char* identity;          /* NULL: "client" */
  uint32_t connections_per_node; /* 0: 2 */
  uint32_t calls_max;            /* 0: 1024 */
  uint64_t connect_timeout_us;   /* 0: one second */
  uint64_t region_bytes_max;     /* 0: 8 GiB */
  uint64_t busy_poll_us;         /* spin this long before sleeping; 0: do not spin */
  int rdma_off;                  /* not 0: never use RDMA */
  const char* rdma_devices;      /* such as "mlx5_0,mlx5_1@10.0.0.1"; NULL: the nearest to this processor */
  uint32_t rdma_lanes;           /* queue pairs per connection; 0: one per device */
  int rdma_messages_off;         /* not 0: small requests go through the socket, not by SEND */
  uint8_t rdma_traffic_class;    /* for packets sent by this side; on RoCE 4 x DSCP */
  uint64_t extent_blocks; /* one block in this many begins an extent, which lies on one node; 0: 1, each block alone.
                           * Equal on all clients of a cluster. (64 bits: 32 would lie in former padding.) */
  /* For tls:// endpoints: PEM files of certificate, key and CA, all three. Read by kvs_client_open(), and again for a
   * new connection after a change. */
  const char* tls_cert_file;
  const char* tls_key_file;
  const char* tls_ca_file;
  const char* tls_crl_file;    /* revoked certificates; NULL: not checked */
  const char* tls_server_name; /* name that nodes must prove: DNS name, address or URI; NULL: the endpoint's host */
  /* Identify this client to the nodes' policy (docs/security.md): a token, copied by kvs_client_open(), or a file with
   * one, reread for each connection. At most one of the two; NULL: neither. */
  const char* token;
  const char* token_file;
  /* If a node is late with a match or get, the second node is asked too, for at most this share of reads, up to 1
   * (docs/cluster.md); 0: 0.02; negative: never. Late: longer than 99 of 100 of its answers, within the bounds: */
  double hedge_share;
  uint64_t hedge_after_min_us; /* 0: 1,000 */
  uint64_t hedge_after_max_us; /* 0: 200,000 */
  const char* zone;            /* this client's zone: among equal nodes, those of the same zone are asked; NULL: any */
  /* Places memory of kvs_allocate and this library's own threads: NUMA nodes such as "1" or "0-1", or those of a PCI
   * device such as "pci:0000:3b:00.0" (docs/operating.md, "NUMA"); NULL: no placement. */
  const char* numa_nodes;
  /* With a token: names allowed in the certificates of nodes known only from a cluster's map, separated by commas, such
   * as "*.kvstore.example.org" (docs/security.md); NULL: only the hosts of the tls:// endpoints. */
  const char* tls_names;
} kvs_options;
#define KVS_OPTIONS_INIT                                                                                              \
  {                                                                                                                   \
    sizeof(kvs_options), NULL, 0, NULL, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        0, 0, 0, NULL, NULL, NULL                                                                                     \
  }

/* The expected next use of a request's blocks. A wrong hint costs hits, never a wrong byte; a tenant's hints are
 * ignored if they do not come true. */
enum {
  KVS_REUSE_UNKNOWN = 0,
  KVS_REUSE_NEVER = 1,
  KVS_REUSE_WITHIN_15_S = 2,
  KVS_REUSE_WITHIN_60_S = 3,
  KVS_REUSE_WITHIN_240_S = 4,
  KVS_REUSE_WITHIN_600_S = 5,
  KVS_REUSE_LATER = 6
};

typedef struct kvs_match_options {
  size_t struct_size;
  uint64_t deadline_us;
  const uint32_t* token_ids; /* of the blocks, then of up to one more; NULL: not given */
  size_t token_count;
  int lease;    /* not 0: keep the found blocks for a while */
  int prefetch; /* not 0: load blocks from disk into memory, for a later get */
  /* kvs_digest_extra() of the data hashed into each block besides its tokens, and into the next block; NULL: tokens
   * only. A partial block has the next block's extra, and requires one if the record has a field `hash`. */
  const kvs_extra* extras;
  size_t extra_count;
  uint64_t reuse; /* KVS_REUSE_... (64 bits: 32 would lie in former padding elsewhere) */
} kvs_match_options;
#define KVS_MATCH_OPTIONS_INIT \
  { sizeof(kvs_match_options), 0, NULL, 0, 0, 0, NULL, 0, 0 }
typedef struct kvs_match_result {
  size_t struct_size;
  size_t block_count;
  int why; /* reason for a short prefix; KVS_OK: a plain miss */
  kvs_lease lease;
  size_t partial_token_count;
  kvs_hash partial_block;
  size_t disk_block_count; /* those of block_count on disk */
  uint64_t disk_us;        /* estimated time to read them */
} kvs_match_result;
#define KVS_MATCH_RESULT_INIT \
  { sizeof(kvs_match_result), 0, 0, 0, 0, {{0}}, 0, 0 }

/* The first block_count blocks have this segment and all earlier ones. Runs on the client's own thread. */
typedef void (*kvs_on_segment)(void* context, size_t segment, size_t block_count);
typedef struct kvs_get_options {
  size_t struct_size;
  uint64_t deadline_us;
  kvs_lease lease;
  const uint64_t* segment_ends; /* byte offsets in a block, increasing, the last the block's size; NULL: one segment */
  size_t segment_count;
  kvs_on_segment on_segment;
  void* context;
  int memory_only; /* not 0: stop before blocks on disk */
  /* Receives the expected checksums, one for each 64 KiB stripe begun, block after block, for the first block_count
   * blocks. Required for a device's memory. NULL: not wanted. */
  uint64_t* checksums;
  size_t checksum_count; /* of all blocks */
} kvs_get_options;
#define KVS_GET_OPTIONS_INIT \
  { sizeof(kvs_get_options), 0, 0, NULL, 0, NULL, NULL, 0, NULL, 0 }
typedef struct kvs_get_result {
  size_t struct_size;
  size_t block_count; /* leading blocks landed and verified (a device's memory: landed); the rest is unspecified */
  int why;
  size_t corrupt_count;
} kvs_get_result;
#define KVS_GET_RESULT_INIT \
  { sizeof(kvs_get_result), 0, 0, 0 }

typedef struct kvs_put_options {
  size_t struct_size;
  uint64_t deadline_us;
  const uint32_t* token_ids; /* block_size per block; NULL: not given */
  size_t token_count;
  const uint64_t* checksums; /* from kvs_gather_with_checksums. NULL: computed here; required for a device's memory */
  size_t checksum_count;     /* of all blocks */
  const kvs_extra* extras;   /* as in kvs_match_options, one per block; NULL: tokens only */
  size_t extra_count;
  uint64_t reuse; /* as in kvs_match_options */
} kvs_put_options;
#define KVS_PUT_OPTIONS_INIT \
  { sizeof(kvs_put_options), 0, NULL, 0, NULL, 0, NULL, 0, 0 }
typedef struct kvs_put_result {
  size_t struct_size;
  size_t stored, already_stored, refused;
  int why; /* why some were refused */
} kvs_put_result;
#define KVS_PUT_RESULT_INIT \
  { sizeof(kvs_put_result), 0, 0, 0, 0 }

/* Memory of a device, such as a GPU, that RDMA devices reach and the processor need not. kvs_export_device_memory
 * (kvstore_gpu.h) fills it for CUDA. */
typedef struct kvs_device_memory {
  size_t struct_size;
  void* address; /* as the device's own programs use it */
  uint64_t bytes;
  int dmabuf_fd;          /* a dma-buf that holds it, borrowed for the call; 0 or less: without one */
  uint64_t dmabuf_offset; /* where in it the memory begins */
} kvs_device_memory;
#define KVS_DEVICE_MEMORY_INIT \
  { sizeof(kvs_device_memory), NULL, 0, 0, 0 }

KVS_API uint32_t kvs_abi_version(void);
KVS_API const char* kvs_status_text(int status);
/* Describes the last call of this thread that did not return KVS_OK. Valid until its next call. */
KVS_API const char* kvs_last_error(void);

/* Connects on first use. The options are copied. */
KVS_API int kvs_client_open(const kvs_options* options, kvs_client** client);
/* Requires that all blocking calls have returned. Calls of queues in flight end with KVS_CANCELLED; the queues remain,
 * to be reaped and closed. NULL is allowed. Does not wait for nodes or name servers. */
KVS_API void kvs_client_close(kvs_client* client);

/* The block hashes of a namespace's tokens: token_count / block_size of them, at most `capacity`. */
KVS_API int kvs_hash_chain(const char* record, const uint32_t* tokens, size_t token_count, kvs_hash* hashes,
                           size_t capacity, size_t* count);

/* The digest of data hashed into a block besides its tokens, such as an image's digest: all zero for 0 bytes. */
KVS_API int kvs_digest_extra(const void* extra, size_t bytes, kvs_extra* digest);

/* Opens a namespace: `record` is its canonical text, or its "key=value" lines in any order; with kind=set, a set (see
 * below). Nodes may come later: a worker may start while the store is away; its lookups then find 0 blocks, with `why`,
 * and nodes open the namespace when they come. Waits for the first that does, until the deadline and only while a node
 * is in reach; 0: does not wait. KVS_MISMATCH, KVS_BAD_REQUEST, KVS_UNSUPPORTED, KVS_TOO_LARGE: a node refuses the
 * record; a later refusal is the `why` of each call. */
KVS_API int kvs_open(kvs_client* client, const char* record, uint64_t deadline_us, kvs_space* space);
/* Waits until one node has opened it. KVS_UNAVAILABLE, KVS_TIMED_OUT: none did. */
KVS_API int kvs_wait_open(kvs_client* client, kvs_space space, uint64_t deadline_us);
/* Of every block of a chain; of a set's largest block. */
KVS_API int kvs_block_bytes(kvs_client* client, kvs_space space, uint64_t* bytes);

KVS_API int kvs_match(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count,
                      const kvs_match_options* options, kvs_match_result* result);
KVS_API int kvs_release(kvs_client* client, kvs_lease lease);
/* blocks[i] receives block i: block_bytes each, no two overlapping. */
KVS_API int kvs_get(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, void* const* blocks,
                    const kvs_get_options* options, kvs_get_result* result);
KVS_API int kvs_put(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count,
                    const void* const* blocks, const kvs_put_options* options, kvs_put_result* result);

/* Apply to a chain's longest prefix, or to each held block of a set. *blocks: their count over all nodes, or NULL. */
KVS_API int kvs_touch(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                      uint64_t* blocks);
KVS_API int kvs_pin(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                    uint64_t* blocks);
KVS_API int kvs_unpin(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                      uint64_t* blocks);
/* Drops the chain's last block and all below it, or each of a set's blocks; count 0: the whole namespace.
 * *until_restart: 1 if a node's disk did not record the drop in time, so that blocks may come back at that node's next
 * start; 0: the drop is permanent. NULL is allowed. */
KVS_API int kvs_drop(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                     uint64_t* blocks, int* until_restart);

/* What each node answers to /stats.json (docs/wire.md), as JSON, ended by a zero byte, and "numa": the place of this
 * client's memory (numa_nodes). *length: without the zero. KVS_TOO_LARGE if length + 1 > capacity; *length then has the
 * required length. */
KVS_API int kvs_stats(kvs_client* client, uint64_t deadline_us, char* json, size_t capacity, size_t* length);
/* Why a chain is held only in part, as JSON: the first missing block, and its node's record of it ("reason" and "text";
 * docs/operating.md, "Why nothing hits"). Does not count as a use. Otherwise as kvs_stats. */
KVS_API int kvs_why(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count, uint64_t deadline_us,
                    char* json, size_t capacity, size_t* length);
/* Named contexts (docs/contexts.md): prefixes that nodes keep in memory for a time. Each answer is JSON, as in
 * kvs_stats; if KVS_TOO_LARGE says that the answer does not fit, the request is done all the same. A time is ttl_us
 * from now (sliding: also from each use), or until_us, microseconds since 1970; the other one is 0. tags: tag_count
 * strings. priority: 0..9, the highest is kept first if memory is short; negative: 5, or unchanged. KVS_NOT_FOUND:
 * unknown name. KVS_BAD_REQUEST: a name, tag or time that is not allowed. */
KVS_API int kvs_context_create(kvs_client* client, kvs_space space, const kvs_hash* hashes, size_t count,
                               const char* name, const char* const* tags, size_t tag_count, uint64_t ttl_us,
                               int sliding, uint64_t until_us, int priority, uint64_t deadline_us, char* json,
                               size_t capacity, size_t* length);
KVS_API int kvs_context_extend(kvs_client* client, const char* name, uint64_t ttl_us, int sliding, uint64_t until_us,
                               int priority, uint64_t deadline_us, char* json, size_t capacity, size_t* length);
KVS_API int kvs_context_delete(kvs_client* client, const char* name, uint64_t deadline_us, char* json, size_t capacity,
                               size_t* length);
/* Loads the context's blocks from the nodes' disks into memory; stop not 0: stops loading. Done when a list of this
 * name says "warming": false; "memory_blocks" and "disk_blocks" show the progress. */
KVS_API int kvs_context_warm(kvs_client* client, const char* name, int stop, uint64_t deadline_us, char* json,
                             size_t capacity, size_t* length);
/* A context as a file, to create it on another cluster (docs/contexts.md). The answer is JSON: name, namespace_id,
 * blocks, wanted_blocks and bytes of the file, signed; for an import also stored_blocks, and context as above.
 * deadline_us applies to each call to the nodes; the whole may take many. Neither leaves half a file. kvs_last_error()
 * names the fault in a file, and its place. KVS_CORRUPT_BLOCK: it is damaged; KVS_UNSUPPORTED: of a later version.
 * key_file: a file with 64 hexadecimal digits, readable by its owner only, whose key signs an export; an import refuses
 * files that it has not signed with KVS_PERMISSION_DENIED. NULL: the environment's KVSTORE_ARCHIVE_KEY_FILE, if any. */
#define KVS_EXPORT_PARTIAL 1u /* if blocks are missing, export those before the first missing one */
#define KVS_EXPORT_REPLACE 2u /* replace an existing file */
KVS_API int kvs_context_export(kvs_client* client, const char* name, const char* file, unsigned int flags,
                               const char* key_file, uint64_t deadline_us, char* json, size_t capacity, size_t* length);
/* name NULL, ttl_us and until_us 0, priority negative: as in the file. */
KVS_API int kvs_context_import(kvs_client* client, const char* file, const char* name, uint64_t ttl_us, int sliding,
                               uint64_t until_us, int priority, const char* key_file, uint64_t deadline_us, char* json,
                               size_t capacity, size_t* length);
/* name NULL: all. "silent" in the answer: nodes that did not answer. */
KVS_API int kvs_context_list(kvs_client* client, const char* name, uint64_t deadline_us, char* json, size_t capacity,
                             size_t* length);
/* Sets the W3C traceparent of this thread's later calls. Nodes show it in their slow logs. NULL: without one.
 * KVS_BAD_REQUEST: not a traceparent; the calls then carry none. */
KVS_API int kvs_traceparent(const char* traceparent);

/* This client's metrics as Prometheus text, ended by a zero byte, for an endpoint of the worker. Does not ask the
 * nodes. *length and KVS_TOO_LARGE as in kvs_stats. docs/operating.md has the names. */
KVS_API int kvs_metrics_text(kvs_client* client, char* text, size_t capacity, size_t* length);
/* Sets the engine's prefill speed, for the estimate of the time saved by loading; 0: unknown. */
KVS_API int kvs_tell_prefill_speed(kvs_client* client, double tokens_per_second);

/* Memory that nodes on this host, or reached by RDMA, fill and drain. Freed by kvs_free or with the client. */
KVS_API int kvs_allocate(kvs_client* client, size_t bytes, void** memory);
/* Lends memory of kvs_allocate to all nodes now, so that the first calls need not use the socket while it is
 * registered. *connections: how many received it; 0 is not an error. NULL is allowed. */
KVS_API int kvs_lend(kvs_client* client, void* memory, size_t bytes, uint64_t deadline_us, size_t* connections);
KVS_API int kvs_free(kvs_client* client, void* memory, size_t bytes);
/* Makes a device's memory lendable, by RDMA only and to nodes on tcp:// endpoints only. kvs_lend it, wait for its
 * connections, then name it in kvs_get and kvs_put, all blocks of a call in one such memory, with checksums: this
 * library does not read or write it, so the caller verifies those of get (kvs_enqueue_scatter_verified) and computes
 * those of put (kvs_gather_with_checksums). Without RDMA the result is cut, with the `why` KVS_UNAVAILABLE (not ready,
 * or broken) or KVS_NO_REGION (not with this node now); get stops before blocks on disk. docs/rdma.md, "GPU memory". */
KVS_API int kvs_add_device_memory(kvs_client* client, const kvs_device_memory* memory);
/* Takes it back. After KVS_OK RDMA devices cannot reach it, whatever a node does: free it then, not before. After
 * KVS_TIMED_OUT call again. KVS_BUSY: a call in progress uses it. kvs_client_close does the same for all. */
KVS_API int kvs_remove_device_memory(kvs_client* client, void* address, uint64_t bytes, uint64_t deadline_us);

/* ---- Sets: namespaces whose blocks stand alone
 *
 *   kvs_open(client, "model=m\nkind=set\nblock_bytes_max=1048576\n", deadline_us, &set);
 *   kvs_put_set(client, set, names, count, blocks, lengths, &put, outcomes, &stored);
 *   kvs_match_set(client, set, names, count, &match, held, lengths_found, &matched);
 *   kvs_get_set(client, set, names, count, memory, rooms, &get, landed, &got);
 *
 * Each block of a set has a name (a kvs_hash chosen by the caller) and its own length, 1 to kvs_block_bytes bytes. A
 * call names blocks in any order, at most as many as the nodes take at once; each node gets one request for all its
 * blocks. kvs_touch, kvs_pin, kvs_unpin, kvs_drop and kvs_release work on sets too. kvs_match, kvs_get, kvs_put and
 * kvs_submit_load on a set are KVS_UNSUPPORTED, and so are these calls on a chain.
 *
 * Lists have `count` elements, element i for hashes[i]; lengths are in bytes. Result lists are the caller's memory. A
 * blocking call writes them only if it returns KVS_OK. For submitted calls see kvs_submit_match_set. */
enum { KVS_HELD_NOWHERE = 0, KVS_HELD_IN_MEMORY = 1, KVS_HELD_ON_DISK = 2 };
enum {
  KVS_PUT_REFUSED = 0, /* not stored; the result's `why` has the reason */
  KVS_PUT_STORED = 1,
  KVS_PUT_ALREADY_STORED = 2, /* a block of this name is stored and stays */
  KVS_PUT_CONFLICT = 3        /* the same, but it has other bytes or another length */
};

/* Groups: names whose blocks are useful only together (a state and its window, K and V stored apart). group_counts, in
 * the options of the three set calls, cuts the list of names: the first group_counts[0] names are a group, the next
 * group_counts[1] another, to the end of the list; each has 1 to 64 different names. A group is held, got and put as a
 * whole or not at all: a put makes its blocks visible at one moment, and a group with a missing block is a miss. Nodes
 * keep no record of groups, so all calls should list the same names with the same one first: among several nodes the
 * group lies where that name belongs, and kvs_touch, kvs_pin, kvs_unpin and kvs_drop, which take single names, reach
 * only that one. Dropping it drops the group. A node without group support is not asked: `why` is KVS_UNSUPPORTED. */

typedef struct kvs_match_set_options {
  size_t struct_size;
  uint64_t deadline_us;
  int lease;    /* not 0: keep blocks in memory for a while */
  int prefetch; /* not 0: load blocks from disk into memory, for a later get */
  /* As above; NULL: each name is alone. A lease covers the groups that are in memory as a whole. */
  const uint32_t* group_counts;
  size_t group_count;
  uint64_t reuse; /* as in kvs_match_options */
} kvs_match_set_options;
#define KVS_MATCH_SET_OPTIONS_INIT \
  { sizeof(kvs_match_set_options), 0, 0, 0, NULL, 0, 0 }
typedef struct kvs_match_set_result {
  size_t struct_size;
  size_t held_count; /* in memory or on disk */
  size_t disk_count; /* those on disk */
  uint64_t disk_us;  /* estimated time to read them */
  int why;           /* why some were not looked up, or why there is no lease; KVS_OK: all were looked up */
  kvs_lease lease;
} kvs_match_set_result;
#define KVS_MATCH_SET_RESULT_INIT \
  { sizeof(kvs_match_set_result), 0, 0, 0, 0, 0 }

typedef struct kvs_get_set_options {
  size_t struct_size;
  uint64_t deadline_us;
  kvs_lease lease;              /* from an earlier kvs_match_set; this get ends it */
  int memory_only;              /* not 0: skip blocks on disk */
  const uint32_t* group_counts; /* as above; NULL: each name is alone */
  size_t group_count;
} kvs_get_set_options;
#define KVS_GET_SET_OPTIONS_INIT \
  { sizeof(kvs_get_set_options), 0, 0, 0, NULL, 0 }
typedef struct kvs_set_block { /* does not grow */
  /* KVS_OK: landed and verified. KVS_NOT_FOUND: held nowhere. KVS_TOO_LARGE: longer than its room (see block_bytes), or
   * too many blocks for the node. Otherwise the error, such as KVS_TIMED_OUT, KVS_UNAVAILABLE, KVS_CORRUPT_BLOCK,
   * KVS_DISK_FAILED. In a group all blocks are KVS_OK, or all have the status of a block that failed; if that is
   * KVS_TOO_LARGE, the other blocks have a block_bytes that fits or is unknown. */
  int status;
  size_t block_bytes; /* 0: unknown */
} kvs_set_block;
typedef struct kvs_get_set_result {
  size_t struct_size;
  size_t landed_count;
  size_t corrupt_count; /* blocks with a bad checksum here */
  int why;              /* the blocks' first status other than KVS_NOT_FOUND and KVS_TOO_LARGE */
} kvs_get_set_result;
#define KVS_GET_SET_RESULT_INIT \
  { sizeof(kvs_get_set_result), 0, 0, 0 }

typedef struct kvs_put_set_options {
  size_t struct_size;
  uint64_t deadline_us;
  const uint32_t* group_counts; /* as above; NULL: each name is alone */
  size_t group_count;
  uint64_t reuse; /* as in kvs_match_options */
} kvs_put_set_options;
#define KVS_PUT_SET_OPTIONS_INIT \
  { sizeof(kvs_put_set_options), 0, NULL, 0, 0 }
typedef struct kvs_put_set_result {
  size_t struct_size;
  size_t stored, already_stored, conflicts, refused; /* sum: count */
  /* Why some were refused. KVS_TOO_LARGE: too many blocks for a node; put the rest with another call.
   * KVS_OUT_OF_MEMORY: a node is full now. KVS_MISMATCH: another block of the group is in conflict. KVS_NOT_FOUND:
   * another block of the group, held before, has gone meanwhile; put it again. */
  int why;
} kvs_put_set_result;
#define KVS_PUT_SET_RESULT_INIT \
  { sizeof(kvs_put_set_result), 0, 0, 0, 0, 0 }

/* Which names are held. held[i]: a KVS_HELD_*; block_bytes[i]: length of the block, 0 if held nowhere. Either may be
 * NULL. */
KVS_API int kvs_match_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count,
                          const kvs_match_set_options* options, uint8_t* held, uint32_t* block_bytes,
                          kvs_match_set_result* result);
/* Copies held blocks to memory: block i to blocks[i], which has room for rooms[i] bytes. No two overlap. A longer block
 * is not sent. Behind a shorter block its room stays unchanged; the memory of a block that did not land is unspecified.
 * landed[i]: its outcome; NULL is allowed. A device's memory: KVS_UNSUPPORTED. */
KVS_API int kvs_get_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count, void* const* blocks,
                        const size_t* rooms, const kvs_get_set_options* options, kvs_set_block* landed,
                        kvs_get_set_result* result);
/* Stores blocks whose name is not held yet, block i from lengths[i] bytes at blocks[i]. outcomes[i]: KVS_PUT_*, or
 * NULL. */
KVS_API int kvs_put_set(kvs_client* client, kvs_space set, const kvs_hash* hashes, size_t count,
                        const void* const* blocks, const size_t* lengths, const kvs_put_set_options* options,
                        uint8_t* outcomes, kvs_put_set_result* result);

/* ---- Calls that never block
 *
 *   kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
 *   kvs_queue *queue;
 *   kvs_queue_open(client, &options, &queue);
 *   epoll_ctl(epoll, EPOLL_CTL_ADD, kvs_queue_fd(queue), ...);
 *   ...
 *   kvs_load_options load = KVS_LOAD_OPTIONS_INIT;
 *   load.deadline_us = 50000;
 *   load.block_count_min = 8;
 *   kvs_submit_load(queue, space, hashes, count, pages, &load, request, &call);
 *   ...
 *   kvs_completion ended[64];
 *   kvs_reap(queue, ended, sizeof *ended, 64, 0, 0, &count);
 *   for (size_t i = 0; i < count; ++i) resume(ended[i].tag, ended[i].block_count);
 *
 * A submit returns a call, or a status without having begun: KVS_BUSY at calls_max or bytes_max (reap, or go without),
 * KVS_TOO_LARGE if the call alone exceeds bytes_max, KVS_BAD_REQUEST, KVS_CANCELLED if the queue was shut down or its
 * client closed, KVS_INTERNAL, KVS_FORKED. It takes no lock, does not wait and makes at most one system call. Other
 * mistakes are the status of the completion.
 *
 * A submit copies hashes, the list of block addresses, rooms, lengths, group counts, segment ends, token ids, extras
 * and records. The blocks themselves, `checksums`, `json` and `length`, and the result lists of set calls stay in use
 * until the call's KVS_EVENT_END, even after kvs_cancel and after the deadline: until then the caller keeps them, and
 * does not change blocks being put. Afterwards they are the caller's again, with the same exception as for blocking
 * calls: memory of kvs_allocate and device memory that a node may still write after a cancelled or late get is
 * quarantined, and calls that name it fail with KVS_QUARANTINED until the node has answered or ended. Memory of
 * kvs_allocate may be freed meanwhile.
 *
 * Deadlines count from the submit. While a node is not connected, its blocks are answered at once, with the `why`
 * KVS_UNAVAILABLE, and connecting goes on in the background; so a worker that starts before the store gets misses
 * instead of a delay. See wait_while_away.
 *
 * A call is in flight, and counts, until its end is reaped. Any thread may call any function of a queue at any time,
 * except kvs_queue_close. After fork() the child gets KVS_FORKED, and its copy of the descriptor is closed;
 * kvs_queue_close there only discards the queue. The parent is unaffected. */
typedef struct kvs_queue kvs_queue;
typedef uint64_t kvs_call; /* of one queue; never 0, never reused */

typedef struct kvs_queue_options {
  size_t struct_size;
  uint32_t calls_max;  /* in flight; 0: 256; at most 65536 */
  uint64_t bytes_max;  /* in flight: blocks to fill or read, and copied arguments; 0: 4 GiB */
  int wait_while_away; /* not 0: calls wait, up to their deadline, for a node that is being connected */
} kvs_queue_options;
#define KVS_QUEUE_OPTIONS_INIT \
  { sizeof(kvs_queue_options), 0, 0, 0 }

/* Match, then get of the matched blocks, in one call under one deadline. */
typedef struct kvs_load_options {
  size_t struct_size;
  uint64_t deadline_us;
  size_t block_count_min;       /* with fewer matched blocks the get is skipped; 0: 1 */
  int tell_match;               /* not 0: a KVS_EVENT_MATCHED reports the match, before the blocks come */
  const uint64_t* segment_ends; /* this and the next members as in kvs_get_options */
  size_t segment_count;
  kvs_on_segment on_segment;
  void* context;
  int memory_only;
  uint64_t* checksums;
  size_t checksum_count;
  uint64_t reuse; /* as in kvs_match_options */
} kvs_load_options;
#define KVS_LOAD_OPTIONS_INIT \
  { sizeof(kvs_load_options), 0, 0, 0, NULL, 0, NULL, NULL, 0, NULL, 0, 0 }

enum {
  KVS_EVENT_END = 0,     /* the call has ended: its last completion, the only one with results */
  KVS_EVENT_MATCHED = 1, /* of a load, before it moves blocks: block_count, disk_block_count, disk_us, why */
  KVS_EVENT_SEGMENT = 2  /* of a get or load with segment_ends and without on_segment: the first block_count blocks have
                          * `segment` and all earlier ones. In order, and before the end. */
};
enum {
  KVS_VERB_OPEN = 1,
  KVS_VERB_WAIT_OPEN = 2,
  KVS_VERB_MATCH = 3,
  KVS_VERB_GET = 4,
  KVS_VERB_LOAD = 5,
  KVS_VERB_PUT = 6,
  KVS_VERB_TOUCH = 7,
  KVS_VERB_PIN = 8,
  KVS_VERB_UNPIN = 9,
  KVS_VERB_DROP = 10,
  KVS_VERB_RELEASE = 11,
  KVS_VERB_LEND = 12,
  KVS_VERB_REMOVE_DEVICE_MEMORY = 13,
  KVS_VERB_STATS = 14,
  KVS_VERB_MATCH_SET = 15,
  KVS_VERB_GET_SET = 16,
  KVS_VERB_PUT_SET = 17
};
typedef struct kvs_completion { /* grows at its end: kvs_reap and kvs_wait take its size */
  kvs_call call;
  uint64_t tag; /* from the submit */
  int event;
  int verb;
  int status; /* as the blocking call would return it; KVS_CANCELLED: given up, the results cover the part done */
  int why;    /* of match, get, load, put and the set calls: reason for a short result */
  /* match, match_set: found. get, load, get_set: landed and verified (a device's memory: landed). put, put_set: stored.
   * touch, pin, unpin, drop: blocks. lend: connections. */
  size_t block_count;
  size_t segment;
  size_t matched_count;    /* of a load: blocks found */
  size_t disk_block_count; /* of a match, match_set or load: found blocks on disk */
  uint64_t disk_us;
  kvs_lease lease;            /* of a match or match_set */
  size_t partial_token_count; /* of a match, as is partial_block */
  kvs_hash partial_block;
  size_t corrupt_count;           /* of a get, load or get_set */
  size_t already_stored, refused; /* of a put or put_set */
  int until_restart;              /* of a drop */
  kvs_space space;                /* of an open */
  size_t conflicts;               /* of a put_set */
} kvs_completion;

KVS_API int kvs_queue_open(kvs_client* client, const kvs_queue_options* options, kvs_queue** queue);
/* Cancels calls in flight, and discards unreaped completions. On return the library has released all their memory,
 * except quarantined memory. Does not wait for nodes. Requires that all other functions of the queue have returned.
 * NULL is allowed. Before or after kvs_client_close. */
KVS_API void kvs_queue_close(kvs_queue* queue);
/* Refuses new calls, cancels those in flight, and wakes threads waiting for them. Their ends can still be reaped. */
KVS_API int kvs_queue_shutdown(kvs_queue* queue);
/* For epoll, poll, asyncio's add_reader: readable exactly while completions wait. Do not read from it; reaping the last
 * completion makes it unreadable. With EPOLLET reap until *count is 0. Closed by kvs_queue_close. -1: queue is NULL. */
KVS_API int kvs_queue_fd(const kvs_queue* queue);
/* Either may be NULL. */
KVS_API int kvs_queue_in_flight(const kvs_queue* queue, size_t* calls, uint64_t* bytes);

/* `tag` comes back in the completions. call: NULL is allowed. Otherwise as the blocking call of that name. */
KVS_API int kvs_submit_open(kvs_queue* queue, const char* record, uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_wait_open(kvs_queue* queue, kvs_space space, uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_match(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                             const kvs_match_options* options, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_get(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count, void* const* blocks,
                           const kvs_get_options* options, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_load(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                            void* const* blocks, const kvs_load_options* options, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_put(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                           const void* const* blocks, const kvs_put_options* options, uint64_t tag, kvs_call* call);
/* Sets. Result lists are filled by the end of the call, at any status: blocks without an outcome are held nowhere,
 * refused, or have that status. Rooms count against bytes_max, up to the set's largest block each. */
KVS_API int kvs_submit_match_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count,
                                 const kvs_match_set_options* options, uint8_t* held, uint32_t* block_bytes,
                                 uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_get_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count,
                               void* const* blocks, const size_t* rooms, const kvs_get_set_options* options,
                               kvs_set_block* landed, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_put_set(kvs_queue* queue, kvs_space set, const kvs_hash* hashes, size_t count,
                               const void* const* blocks, const size_t* lengths, const kvs_put_set_options* options,
                               uint8_t* outcomes, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_touch(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                             uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_pin(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                           uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_unpin(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                             uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_drop(kvs_queue* queue, kvs_space space, const kvs_hash* hashes, size_t count,
                            uint64_t deadline_us, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_release(kvs_queue* queue, kvs_lease lease, uint64_t tag, kvs_call* call);
KVS_API int kvs_submit_lend(kvs_queue* queue, void* memory, size_t bytes, uint64_t deadline_us, uint64_t tag,
                            kvs_call* call);
KVS_API int kvs_submit_remove_device_memory(kvs_queue* queue, void* address, uint64_t bytes, uint64_t deadline_us,
                                            uint64_t tag, kvs_call* call);
/* json and *length are written by the end of the call; length must not be NULL. */
KVS_API int kvs_submit_stats(kvs_queue* queue, uint64_t deadline_us, char* json, size_t capacity, size_t* length,
                             uint64_t tag, kvs_call* call);

/* Gives a call up. Its end follows soon, whatever the node does, and is still to be reaped; a call that ended meanwhile
 * keeps its result. KVS_NOT_FOUND: it was reaped, or never existed. */
KVS_API int kvs_cancel(kvs_queue* queue, kvs_call call);
/* Takes up to `capacity` completions, oldest first, each `completion_size` bytes: sizeof(kvs_completion). Waits until
 * there are count_min, all calls in flight have ended, or the time has passed; 0: does not wait. */
KVS_API int kvs_reap(kvs_queue* queue, kvs_completion* completions, size_t completion_size, size_t capacity,
                     size_t count_min, uint64_t timeout_us, size_t* count);
/* Takes the ends of these calls, once count_min of them have ended or the time has passed: 1 for any one, call_count
 * for all. In the order of `calls`; completions must have room for all. Their unreaped segments are dropped.
 * KVS_NOT_FOUND: a call was already reaped or never existed; then all ends stay. */
KVS_API int kvs_wait(kvs_queue* queue, const kvs_call* calls, size_t call_count, size_t count_min, uint64_t timeout_us,
                     kvs_completion* completions, size_t completion_size, size_t* count);

#ifdef __cplusplus
}
#endif
#endif /* KVSTORE_H */
