/* client/kvstore.h: the C interface of kvstore's client, for engines and other languages. Link with -lkvstore.
 *
 *   kvs_options options = KVS_OPTIONS_INIT;
 *   options.endpoints = "unix:///run/kvstore/kvstore.sock";
 *   kvs_client *client;
 *   if (kvs_client_open(&options, &client) != KVS_OK) puts(kvs_last_error());
 *
 *   kvs_request get = KVS_REQUEST_INIT(KVS_OP_GET);
 *   get.space = space;
 *   get.hashes = hashes;
 *   get.count = count;
 *   get.blocks = pages;
 *   get.deadline_us = 50000;
 *   kvs_completion got;
 *   if (kvs_run(client, &get, &got, sizeof got) == KVS_OK) skip_prefill(got.block_count);
 *
 * A call is a kvs_request in and a kvs_completion out: kvs_run blocks until its end, by its deadline at the latest;
 * kvs_submit and kvs_reap never block. A dead, slow or full node is not a failure of match, get and put but a smaller
 * result, and its `why` gives the reason. Functions may be called from any thread, but blocking ones not from a
 * progress callback. They do not throw, abort the process or install signal handlers. After an internal error the
 * client is disabled: its calls fail with KVS_INTERNAL, and the process goes on.
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
  const kvs_node* nodes; /* NULL: endpoints, below */
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
  uint64_t extent_blocks; /* one block in this many begins an extent, which lies on one node; 0: 256. Equal on all
                           * clients of a list. (64 bits: 32 would lie in former padding.) */
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
  const char* endpoints; /* nodes without a name or a weight, in place of `nodes`. Commas separate them, so none may lie
                          * in a path; blanks around one are dropped. */
} kvs_options;
#define KVS_OPTIONS_INIT                                                                                              \
  {                                                                                                                   \
    sizeof(kvs_options), NULL, 0, NULL, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        0, 0, 0, NULL, NULL, NULL, NULL                                                                               \
  }

/* ---- A call */

/* The fields of a kvs_request that each operation uses, besides deadline_us and tag; those in brackets are optional.
 * All others must be zero. */
enum {
  KVS_OP_OPEN = 1,      /* record */
  KVS_OP_WAIT_OPEN = 2, /* space */
  KVS_OP_MATCH = 3,     /* space, hashes [token_ids, extras, reuse, LEASE, PREFETCH] */
  KVS_OP_GET = 4,       /* space, hashes, blocks [lease, segment_ends, checksums, MEMORY_ONLY] */
  KVS_OP_LOAD = 5,      /* space, hashes, blocks [block_count_min, segment_ends, checksums, reuse,
                         * MEMORY_ONLY, TELL_MATCH] */
  KVS_OP_PUT = 6,       /* space, hashes, blocks [token_ids, extras, checksums, reuse] */
  KVS_OP_TOUCH = 7,     /* space, hashes; as the next three */
  KVS_OP_RETAIN = 8,
  KVS_OP_UNRETAIN = 9,
  KVS_OP_DROP = 10,
  KVS_OP_RELEASE = 11,              /* lease */
  KVS_OP_LEND = 12,                 /* memory, bytes */
  KVS_OP_REMOVE_DEVICE_MEMORY = 13, /* memory, bytes */
  KVS_OP_STATS = 14,                /* json */
  KVS_OP_MATCH_SET = 15,            /* space, hashes [held, held_bytes, group_counts, reuse, LEASE, PREFETCH] */
  KVS_OP_GET_SET = 16,              /* space, hashes, blocks, lengths [landed, lease, group_counts, MEMORY_ONLY] */
  KVS_OP_PUT_SET = 17,              /* space, hashes, blocks, lengths [outcomes, group_counts, reuse] */
  KVS_OP_WHY = 18,                  /* space, hashes, json */
  KVS_OP_CONTEXT_CREATE = 19,       /* space, hashes, name, ttl_us or until_us, json [tags, priority, SLIDING] */
  KVS_OP_CONTEXT_EXTEND = 20,       /* name, ttl_us or until_us, json [priority, SLIDING] */
  KVS_OP_CONTEXT_DELETE = 21,       /* name, json */
  KVS_OP_CONTEXT_WARM = 22,         /* name, json [STOP] */
  KVS_OP_CONTEXT_EXPORT = 23,       /* name, file, json [key_file, PARTIAL, REPLACE]; kvs_run only */
  KVS_OP_CONTEXT_IMPORT = 24,       /* file, json [name, ttl_us or until_us, priority, key_file, SLIDING]; the same */
  KVS_OP_CONTEXT_LIST = 25          /* json [name] */
};

/* What an operation does
 *
 * open       Opens a namespace. Nodes may come later: a worker may start while the store is away; its lookups then find
 *            0 blocks, with `why`, and nodes open the namespace when they come. Waits for the first that does, until
 *            the deadline and only while a node is in reach; 0: does not wait. KVS_MISMATCH, KVS_BAD_REQUEST,
 *            KVS_UNSUPPORTED, KVS_TOO_LARGE: a node refuses the record; a later refusal is the `why` of each call.
 * wait_open  Waits until one node has opened it. KVS_UNAVAILABLE, KVS_TIMED_OUT: none did.
 * match      Tells how many leading blocks of a chain are held.
 * get        Copies the longest held prefix to memory.
 * load       Match, then get of the matched blocks, under one deadline.
 * put        Stores a chain's blocks.
 * touch, retain, unretain  Apply to a chain's longest held prefix, or to each held block of a set.
 * drop       Drops the chain's last block and all below it, or each of a set's blocks; count 0: the whole namespace.
 * release    Ends a lease, without waiting for the nodes.
 * lend       Lends memory of kvs_allocate or of a device to all nodes now, so that the first calls need not use the
 *            socket while it is registered.
 * remove_device_memory  Takes it back. After KVS_OK RDMA devices cannot reach it, whatever a node does: free it then,
 *            not before. After KVS_TIMED_OUT call again. KVS_BUSY: a call in progress uses it. kvs_client_close does
 *            the same for all.
 * stats      What each node answers to /stats.json (docs/wire.md), and "numa": the place of this client's memory.
 * why        Why a chain is held only in part: the first missing block, and its node's record of it ("reason" and
 *            "text"; docs/operating.md, "Why nothing hits"). Does not count as a use.
 *
 * Sets are namespaces whose blocks stand alone: open one with kind=set in its record. Each block has a name (a kvs_hash
 * chosen by the caller) and its own length, 1 to block_bytes. A call names blocks in any order, at most as many as the
 * nodes take at once; each node gets one request for all its blocks. match, get, put and load of a set are
 * KVS_UNSUPPORTED, and so are these three of a chain:
 *
 * match_set  Tells which names are held.
 * get_set    Copies held blocks to memory. A block longer than its room is not sent; behind a shorter one the room
 *            stays unchanged; the memory of a block that did not land is unspecified. A device's: KVS_UNSUPPORTED.
 * put_set    Stores blocks whose name is not held yet.
 *
 * Groups: names of a set whose blocks are useful only together (a state and its window, K and V stored apart).
 * group_counts cuts the list of names: the first group_counts[0] names are a group, the next group_counts[1] another,
 * to the end of the list; each has 1 to 64 different names. A group is held, got and put as a whole or not at all: a
 * put makes its blocks visible at one moment, and a group with a missing block is a miss. A lease covers the groups
 * that are in memory as a whole. Nodes keep no record of groups, so all calls should list the same names with the same
 * one first: among several nodes the group lies where that name belongs, and touch, retain, unretain and drop, which
 * take single names, reach only that one. Dropping it drops the group. A node without group support is not asked: `why`
 * is KVS_UNSUPPORTED.
 *
 * Named contexts (docs/contexts.md) are prefixes that nodes keep in memory for a time. KVS_NOT_FOUND: unknown name.
 * KVS_BAD_REQUEST: a name, tag or time that is not allowed.
 *
 * context_warm    Loads the context's blocks from the nodes' disks into memory. Done when a list of this name says
 *                 "warming": false; "memory_blocks" and "disk_blocks" show the progress.
 * context_export  Writes a context to a file, to create it on another cluster; context_import reads it. The answer:
 *                 name, namespace_id, blocks, wanted_blocks and bytes of the file, signed; for an import also
 *                 stored_blocks, and the context. deadline_us applies to each call to the nodes; the whole may take
 *                 many. Neither leaves half a file. kvs_last_error() names the fault in a file, and its place.
 *                 KVS_CORRUPT_BLOCK: it is damaged; KVS_UNSUPPORTED: of a later version.
 * context_list    "silent" in the answer: nodes that did not answer. */

enum {
  KVS_FLAG_LEASE = 1,       /* keep the found blocks in memory for a while */
  KVS_FLAG_PREFETCH = 2,    /* load blocks from disk into memory, for a later get */
  KVS_FLAG_MEMORY_ONLY = 4, /* stop before blocks on disk; of a set: skip them */
  KVS_FLAG_TELL_MATCH = 8,  /* a KVS_EVENT_MATCHED reports the match, before the blocks come */
  KVS_FLAG_SLIDING = 16,    /* with ttl_us: it begins anew with each use */
  KVS_FLAG_PRIORITY = 32,   /* `priority` is given */
  KVS_FLAG_STOP = 64,       /* stop loading */
  KVS_FLAG_PARTIAL = 128,   /* if blocks are missing, export those before the first missing one */
  KVS_FLAG_REPLACE = 256    /* replace an existing file */
};

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

/* The first block_count blocks have this segment and all earlier ones. Runs on the client's own thread, or on any that
 * is in kvs_run() with this client. */
typedef void (*kvs_on_segment)(void* context, size_t segment, size_t block_count);

enum { KVS_HELD_NOWHERE = 0, KVS_HELD_IN_MEMORY = 1, KVS_HELD_ON_DISK = 2 };
enum {
  KVS_PUT_REFUSED = 0, /* not stored; `why` has the reason */
  KVS_PUT_STORED = 1,
  KVS_PUT_ALREADY_STORED = 2, /* a block of this name is stored and stays */
  KVS_PUT_CONFLICT = 3        /* the same, but it has other bytes or another length */
};
typedef struct kvs_set_block { /* does not grow */
  /* KVS_OK: landed and verified. KVS_NOT_FOUND: held nowhere. KVS_TOO_LARGE: longer than its room (see block_bytes), or
   * too many blocks for the node. Otherwise the error, such as KVS_TIMED_OUT, KVS_UNAVAILABLE, KVS_CORRUPT_BLOCK,
   * KVS_DISK_FAILED. In a group all blocks are KVS_OK, or all have the status of a block that failed; if that is
   * KVS_TOO_LARGE, the other blocks have a block_bytes that fits or is unknown. */
  int status;
  size_t block_bytes; /* 0: unknown */
} kvs_set_block;

/* A list has a pointer and, behind it, its count; lists without one have `count` elements, element i for hashes[i].
 *
 * Until a call has ended, its blocks, `checksums`, `json` and result lists stay in use, even after kvs_cancel and after
 * the deadline: until then the caller keeps them, and does not change blocks being put. All else is copied by the
 * submit. Afterwards they are the caller's again, with one exception: memory of kvs_allocate and device memory that a
 * node may still write after a cancelled or late get is quarantined, and calls that name it fail with KVS_QUARANTINED
 * until the node has answered or ended. Memory of kvs_allocate may be freed meanwhile. */
typedef struct kvs_request {
  size_t struct_size;
  uint32_t op;    /* KVS_OP_... */
  uint32_t flags; /* KVS_FLAG_... */
  kvs_space space;
  uint32_t reuse;       /* KVS_REUSE_... */
  uint64_t deadline_us; /* from the submit to the end; at most 24 hours */
  uint64_t tag;         /* comes back in the completions */
  kvs_lease lease;      /* from an earlier match; a get ends it */
  const kvs_hash* hashes;
  size_t count;
  /* Address of each block: filled by a get, read by a put. Each has block_bytes of the namespace, or lengths[i] of a
   * set: room of a get, length of a put. No two overlap. */
  void* const* blocks;
  const size_t* lengths;
  /* One for each 64 KiB stripe begun, block after block, of all blocks. A get fills the expected ones of the first
   * block_count blocks; a put reads those from kvs_gather_with_checksums. NULL: not wanted, or computed here. Required
   * for a device's memory. */
  uint64_t* checksums;
  size_t checksum_count;
  /* Of a put: block_size per block; of a match: of the blocks, then of up to one more. NULL: not given. */
  const uint32_t* token_ids;
  size_t token_count;
  /* kvs_digest_extra() of the data hashed into each block besides its tokens; NULL: tokens only. Of a match also into
   * the next block: a partial block has the next block's extra, and requires one if the record has a field `hash`. */
  const kvs_extra* extras;
  size_t extra_count;
  const uint64_t* segment_ends; /* byte offsets in a block, increasing, the last the block's size; NULL: one segment */
  size_t segment_count;
  kvs_on_segment on_segment; /* NULL: segments come as KVS_EVENT_SEGMENT */
  void* segment_context;
  size_t block_count_min;       /* with fewer matched blocks the get is skipped; 0: 1 */
  const uint32_t* group_counts; /* NULL: each name is alone */
  size_t group_count;
  void* memory; /* of kvs_allocate, or of a device as its own programs use it */
  uint64_t bytes;
  const char* record; /* the namespace's canonical text, or its "key=value" lines in any order */
  const char* name;   /* of a context; NULL: all, or as in the file */
  const char* const* tags;
  size_t tag_count;
  uint64_t ttl_us;   /* from now; this one or the other, or of an import neither: as in the file */
  uint64_t until_us; /* microseconds since 1970 */
  uint64_t priority; /* 0..9, the highest is kept first if memory is short; without its flag: 5, or unchanged */
  const char* file;
  /* A file with 64 hexadecimal digits, readable by its owner only, whose key signs an export; an import refuses files
   * that it has not signed with KVS_PERMISSION_DENIED. NULL: the environment's KVSTORE_ARCHIVE_KEY_FILE, if any. */
  const char* key_file;
  /* Receives the answer, ended by a zero byte. KVS_TOO_LARGE if the completion's length + 1 > json_capacity; the
   * request is done all the same. */
  char* json;
  size_t json_capacity;
  /* Results by name, written by the end of the call at any status: blocks without an outcome are held nowhere, refused,
   * or have that status. NULL: not wanted. */
  uint8_t* held;         /* KVS_HELD_... */
  uint32_t* held_bytes;  /* length of the block; 0: held nowhere */
  kvs_set_block* landed; /* outcome of a get */
  uint8_t* outcomes;     /* KVS_PUT_... */
} kvs_request;
#define KVS_REQUEST_INIT(op)                                                                                          \
  {                                                                                                                   \
    sizeof(kvs_request), (op), 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, \
        0, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL                \
  }

typedef uint64_t kvs_call; /* of one queue; never 0, never reused */

enum {
  KVS_EVENT_END = 0,     /* the call has ended: its last completion, the only one with results */
  KVS_EVENT_MATCHED = 1, /* of a load, before it moves blocks: block_count, disk_block_count, disk_us, why */
  KVS_EVENT_SEGMENT = 2  /* of a get or load with segment_ends and without on_segment: the first block_count blocks have
                          * `segment` and all earlier ones. In order, and before the end. */
};
typedef struct kvs_completion { /* grows at its end: functions that write one take its size */
  kvs_call call;
  uint64_t tag; /* from the request */
  int event;
  int op;
  int status; /* KVS_CANCELLED: given up, the results cover the part done */
  int why;    /* of match, get, load, put and of a set: reason for a short result; KVS_OK: a plain miss */
  /* match, match_set: found. get, load, get_set: landed and verified (a device's memory: landed; the rest is
   * unspecified). put, put_set: stored. touch, retain, unretain, drop: blocks, over all nodes. lend: connections that
   * received it; 0 is not an error. */
  size_t block_count;
  size_t segment;
  size_t matched_count;       /* of a load: blocks found */
  size_t disk_block_count;    /* of a match, match_set or load: found blocks on disk */
  uint64_t disk_us;           /* estimated time to read them */
  kvs_lease lease;            /* of a match or match_set */
  size_t partial_token_count; /* of a match, as is partial_block */
  kvs_hash partial_block;
  size_t corrupt_count;  /* of a get, load or get_set: blocks with a bad checksum here */
  size_t already_stored; /* of a put or put_set: with the next two and block_count, all blocks */
  size_t refused;
  size_t conflicts; /* of a put_set */
  /* Of a drop: 1 if a node's disk did not record it in time, so that blocks may come back at that node's next start. */
  int until_restart;
  kvs_space space;      /* of an open, as is block_bytes */
  uint64_t block_bytes; /* of every block of a chain; of a set's largest block */
  size_t length;        /* of `json`, without its zero byte */
} kvs_completion;

/* ---- Functions */

KVS_API uint32_t kvs_abi_version(void);
KVS_API const char* kvs_status_text(int status);
/* Describes the last function of this thread that did not return KVS_OK. Valid until its next one. */
KVS_API const char* kvs_last_error(void);

/* Connects on first use. The options are copied. */
KVS_API int kvs_client_open(const kvs_options* options, kvs_client** client);
/* Requires that kvs_run has returned. Calls of queues in flight end with KVS_CANCELLED; the queues remain, to be reaped
 * and closed. NULL is allowed. Does not wait for nodes or name servers. */
KVS_API void kvs_client_close(kvs_client* client);

/* Makes the call and waits for its end, which is written to *completion; NULL with size 0: not wanted. Returns the
 * call's status. Waits, up to the deadline, for a node that is being connected. While no other call of the client is in
 * progress, the calling thread does the I/O itself. Segments without on_segment and the match of a load are not
 * reported. KVS_BUSY: 256 threads wait already. KVS_BAD_REQUEST in on_segment. */
KVS_API int kvs_run(kvs_client* client, const kvs_request* request, kvs_completion* completion, size_t completion_size);

/* ---- Calls that never block
 *
 *   kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
 *   kvs_queue *queue;
 *   kvs_queue_open(client, &options, &queue);
 *   epoll_ctl(epoll, EPOLL_CTL_ADD, kvs_queue_fd(queue), ...);
 *   ...
 *   kvs_submit(queue, &request, &call);
 *   ...
 *   kvs_completion ended[64];
 *   kvs_reap(queue, ended, sizeof *ended, 64, 0, 0, &count);
 *   for (size_t i = 0; i < count; ++i) resume(ended[i].tag, ended[i].block_count);
 *
 * While a node is not connected, its blocks are answered at once, with the `why` KVS_UNAVAILABLE, and connecting goes
 * on in the background; so a worker that starts before the store gets misses instead of a delay. See wait_while_away.
 *
 * A call is in flight, and counts, until its end is reaped. Any thread may call any function of a queue at any time,
 * except kvs_queue_close. After fork() the child gets KVS_FORKED, and its copy of the descriptor is closed;
 * kvs_queue_close there only discards the queue. The parent is unaffected. */
typedef struct kvs_queue kvs_queue;

typedef struct kvs_queue_options {
  size_t struct_size;
  uint32_t calls_max;  /* in flight; 0: 256; at most 65536 */
  uint64_t bytes_max;  /* in flight: blocks to fill or read, rooms up to the set's largest block, and copied arguments;
                        * 0: 4 GiB */
  int wait_while_away; /* not 0: calls wait, up to their deadline, for a node that is being connected */
} kvs_queue_options;
#define KVS_QUEUE_OPTIONS_INIT \
  { sizeof(kvs_queue_options), 0, 0, 0 }

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

/* Begins a call, or returns a status without having begun: KVS_BUSY at calls_max or bytes_max (reap, or go without),
 * KVS_TOO_LARGE if the call alone exceeds bytes_max, KVS_BAD_REQUEST, KVS_UNSUPPORTED, KVS_CANCELLED if the queue was
 * shut down or its client closed, KVS_INTERNAL, KVS_FORKED. Takes no lock, does not wait and makes at most one system
 * call. Other mistakes are the status of the completion. call: NULL is allowed. */
KVS_API int kvs_submit(kvs_queue* queue, const kvs_request* request, kvs_call* call);
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

/* ---- Memory */

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

/* Memory that nodes on this host, or reached by RDMA, fill and drain. Freed by kvs_free or with the client. */
KVS_API int kvs_allocate(kvs_client* client, size_t bytes, void** memory);
KVS_API int kvs_free(kvs_client* client, void* memory, size_t bytes);
/* Makes a device's memory lendable, by RDMA only and to nodes on tcp:// endpoints only. Lend it, wait for its
 * connections, then name it in gets and puts, all blocks of a call in one such memory, with checksums: this library
 * does not read or write it, so the caller verifies those of a get (kvs_enqueue_scatter_verified) and computes those of
 * a put (kvs_gather_with_checksums). Without RDMA the result is cut, with the `why` KVS_UNAVAILABLE (not ready, or
 * broken) or KVS_NO_REGION (not with this node now); a get stops before blocks on disk. docs/rdma.md, "GPU memory". */
KVS_API int kvs_add_device_memory(kvs_client* client, const kvs_device_memory* memory);

/* ---- Without a call */

/* The block hashes of a namespace's tokens: token_count / block_size of them, at most `capacity`. */
KVS_API int kvs_hash_chain(const char* record, const uint32_t* tokens, size_t token_count, kvs_hash* hashes,
                           size_t capacity, size_t* count);
/* The digest of data hashed into a block besides its tokens, such as an image's digest: all zero for 0 bytes. */
KVS_API int kvs_digest_extra(const void* extra, size_t bytes, kvs_extra* digest);
/* Sets the W3C traceparent of this thread's later calls. Nodes show it in their slow logs. NULL: without one.
 * KVS_BAD_REQUEST: not a traceparent; the calls then carry none. */
KVS_API int kvs_traceparent(const char* traceparent);
/* This client's metrics as Prometheus text, ended by a zero byte, for an endpoint of the worker. Does not ask the
 * nodes. KVS_TOO_LARGE if *length + 1 > capacity; *length then has the required length, without the zero.
 * docs/operating.md has the names. */
KVS_API int kvs_metrics_text(kvs_client* client, char* text, size_t capacity, size_t* length);
/* Sets the engine's prefill speed, for the estimate of the time saved by loading; 0: unknown. */
KVS_API int kvs_tell_prefill_speed(kvs_client* client, double tokens_per_second);

#ifdef __cplusplus
}
#endif
#endif /* KVSTORE_H */
