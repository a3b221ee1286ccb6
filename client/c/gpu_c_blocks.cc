// client/c/gpu_c_blocks.cc: kvstore_gpu.h's calls with checksums, and those of pruned caches. Exceptions stop here.

#include "base/checksum.h"
#include "client/c/gpu_c_arguments.h"
#include "gpu/compress.h"
#include "gpu/plans/verified_plan.h"
#include "gpu/verified.h"
#include "index/block_hash.h"

namespace kv {
namespace {

using namespace c_api;

static_assert(KVS_KEEP_DROP == static_cast<int>(KeepMode::kDrop));
// The caller's rows go to the device without a copy, so the two structs must agree to the byte.
static_assert(sizeof(kvs_keep_row) == sizeof(KeepRow) && offsetof(kvs_keep_row, token) == offsetof(KeepRow, token) &&
              offsetof(kvs_keep_row, head) == offsetof(KeepRow, head) &&
              offsetof(kvs_keep_row, token_count) == offsetof(KeepRow, token_count));

/// Per call: a higher number would be a mistake, and exhaust memory.
constexpr std::int64_t kKeepRowsMax = std::int64_t{1} << 32;

struct BlockCall {
  Rows rows;
  Operation operation;
  Run run;
};
BlockCall read_block_call(bool is_scatter, const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* blocks,
                          const void* seeds, std::size_t block_count, const void* sums, std::size_t sum_count,
                          const kvs_operation* operation, const kvs_where* run) {
  if (cache == nullptr || blocks == nullptr || rows == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  if (block_count > 0 && (seeds == nullptr || sums == nullptr)) refuse(KVS_BAD_REQUEST, "seeds or sums is NULL");
  const Layout& layout = blocks->bound.layout;
  const std::int64_t block_bytes = dense_block_bytes(layout);
  // Checksums cover a block's bytes in the store's order, which only a block without gaps has.
  if (block_bytes == 0) refuse(KVS_MISMATCH, layout.name + ": is not the layout of store blocks");
  if (block_count > static_cast<std::uint64_t>(layout.block_count)) {
    refuse_value("block_count", static_cast<std::int64_t>(block_count), "at most what blocks holds");
  }
  // Cannot overflow: block_count is bounded by the layout, whose bytes were computed when it was made.
  if (sum_count != block_count * stripe_count(static_cast<std::size_t>(block_bytes))) {
    refuse_value("sum_count", static_cast<std::int64_t>(sum_count), "one for each 64 KiB stripe of each block");
  }
  const std::int64_t row_count = static_cast<std::int64_t>(block_count) * layout.block_tokens;
  return {read_rows(rows, cache->bound.layout, row_count),
          read_operation(operation, row_count, is_scatter ? cache->bound.layout : layout), Run(run, {cache, blocks})};
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_checksum_seed(const char* record, const kvs_hash* hash, uint64_t* seed) {
  return gpu_call([&] {
    if (record == nullptr || hash == nullptr || seed == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    const auto parsed = parse_record(record);
    if (!parsed) refuse(KVS_BAD_REQUEST, parsed.error().text);
    BlockHash block;
    std::memcpy(block.bytes.data(), hash->bytes, sizeof block.bytes);
    *seed = checksum_seed(parsed->id(), block);
  });
}

int kvs_scatter_verified(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* blocks, const uint64_t* seeds,
                         size_t block_count, const uint64_t* sums, size_t sum_count, const kvs_operation* operation,
                         const kvs_where* run, size_t* verified) {
  return gpu_call([&] {
    if (verified == nullptr) refuse(KVS_BAD_REQUEST, "verified is NULL");
    const BlockCall call =
        read_block_call(true, cache, rows, blocks, seeds, block_count, sums, sum_count, operation, run);
    // Its result, the number of good blocks, would need a wait on a device; the enqueued form writes verdicts instead.
    if (call.run.cuda) refuse(KVS_UNSUPPORTED, "kvs_scatter_verified runs on the host; enqueue it on a device");
    const auto done = scatter_verified(cache->bound, call.rows, blocks->bound, {seeds, block_count}, {sums, sum_count},
                                       call.operation);
    demand(done, cache->bound.layout, blocks->bound.layout, call.operation);
    KV_ASSERT(*done >= 0 && static_cast<std::size_t>(*done) <= block_count);
    *verified = static_cast<std::size_t>(*done);
  });
}

int kvs_gather_with_checksums(const kvs_cache* blocks, const kvs_cache* cache, const kvs_rows* rows,
                              const uint64_t* seeds, size_t block_count, uint64_t* sums, size_t sum_count,
                              const kvs_operation* operation, const kvs_where* run) {
  return gpu_call([&] {
    const BlockCall call =
        read_block_call(false, cache, rows, blocks, seeds, block_count, sums, sum_count, operation, run);
    // Computed where the bytes are: reading them back over the bus would cost as much as staging saves.
    const VerifiedBlocks all{.block_count = static_cast<std::int64_t>(block_count), .seeds = seeds, .sums = sums};
    const auto done =
        call.run.cuda ? call.run.cuda->gather_with_checksums(blocks->bound, cache->bound, call.rows, all,
                                                             call.operation, call.run.stream, call.run.block_count_max)
                      : gather_with_checksums(blocks->bound, cache->bound, call.rows, {seeds, block_count},
                                              {sums, sum_count}, call.operation);
    demand(done, blocks->bound.layout, cache->bound.layout, call.operation);
  });
}

int kvs_enqueue_scatter_verified(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* blocks,
                                 const uint64_t* seeds, size_t block_count, const uint64_t* sums, size_t sum_count,
                                 uint32_t* verdicts, const kvs_operation* operation, const kvs_where* run) {
  return gpu_call([&] {
    if (verdicts == nullptr && block_count > 0) refuse(KVS_BAD_REQUEST, "verdicts is NULL");
    const BlockCall call =
        read_block_call(true, cache, rows, blocks, seeds, block_count, sums, sum_count, operation, run);
    if (!call.run.cuda) refuse(KVS_UNSUPPORTED, "kvs_enqueue_scatter_verified runs on a device only");
    const VerifiedBlocks all{
        .block_count = static_cast<std::int64_t>(block_count), .seeds = seeds, .expected = sums, .verdicts = verdicts};
    const auto enqueued = call.run.cuda->scatter_verified(cache->bound, call.rows, blocks->bound, all, call.operation,
                                                          call.run.stream, call.run.block_count_max);
    demand(enqueued, cache->bound.layout, blocks->bound.layout, call.operation);
  });
}

namespace kv {
namespace {

template <class Id>
void plan_keep(int mode, std::int64_t head_count, const std::int32_t* seq_lens, std::size_t sequence_count,
               const std::int32_t* windows, const std::int32_t* offsets, const Id* given_slots, kvs_keep_row* rows,
               std::size_t capacity, std::size_t* count) {
  if (mode < KVS_KEEP_LAST || mode > KVS_KEEP_DROP) refuse_value("mode", mode, "one of KVS_KEEP_*");
  if (head_count < 1 || head_count > 65536) refuse_value("head_count", head_count, "from 1 to 65536");
  if (sequence_count > (std::size_t{1} << 40)) refuse(KVS_TOO_LARGE, "sequence_count: more than 2^40");
  const bool has_offsets = mode != KVS_KEEP_LAST;
  if (count == nullptr || (rows == nullptr && capacity > 0) ||
      (sequence_count > 0 &&
       (seq_lens == nullptr || windows == nullptr || given_slots == nullptr || (has_offsets && offsets == nullptr)))) {
    refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  }
  std::int64_t row_count_max = 0;
  for (std::size_t b = 0; b < sequence_count; ++b) {
    if (seq_lens[b] < 0) refuse_value("seq_lens", seq_lens[b], "0 or more");
    // At most 2^31 x 2^16 per step, checked after each: cannot overflow.
    row_count_max += seq_lens[b] * head_count;
    if (row_count_max > kKeepRowsMax) refuse(KVS_TOO_LARGE, "seq_lens: more than 2^32 rows");
  }
  const std::size_t pairs = sequence_count * static_cast<std::size_t>(head_count);
  const WideList first_slots(given_slots, pairs);
  const auto planned = plan_keep_rows({static_cast<KeepMode>(mode),
                                       head_count,
                                       {seq_lens, sequence_count},
                                       {windows, pairs},
                                       {offsets, has_offsets ? pairs : 0},
                                       first_slots.list});
  if (!planned) {
    refuse(KVS_BAD_REQUEST, "windows, offsets: a window is longer than its sequence, or reaches beyond its end");
  }
  // Set before the capacity check: tells the caller the required number of rows.
  *count = planned->size();
  if (planned->size() > capacity) refuse(KVS_TOO_LARGE, "capacity is too small");
  if (!planned->empty()) std::memcpy(rows, planned->data(), planned->size() * sizeof(kvs_keep_row));
}

}  // namespace
}  // namespace kv

int kvs_plan_keep_rows(int mode, int64_t head_count, const int32_t* seq_lens, size_t sequence_count,
                       const int32_t* windows, const int32_t* offsets, const int64_t* first_slots, kvs_keep_row* rows,
                       size_t capacity, size_t* count) {
  return gpu_call([&] {
    return plan_keep(mode, head_count, seq_lens, sequence_count, windows, offsets, first_slots, rows, capacity, count);
  });
}
int kvs_plan_keep_rows32(int mode, int64_t head_count, const int32_t* seq_lens, size_t sequence_count,
                         const int32_t* windows, const int32_t* offsets, const int32_t* first_slots, kvs_keep_row* rows,
                         size_t capacity, size_t* count) {
  return gpu_call([&] {
    return plan_keep(mode, head_count, seq_lens, sequence_count, windows, offsets, first_slots, rows, capacity, count);
  });
}

int kvs_scatter_kept(const kvs_cache* cache, const kvs_keep_row* rows, size_t row_count, const kvs_cache* source,
                     const kvs_where* where) {
  return gpu_call([&] {
    if (cache == nullptr || source == nullptr || (rows == nullptr && row_count > 0)) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    const Run run(where, {cache, source});
    const std::span list(reinterpret_cast<const KeepRow*>(rows), row_count);
    const auto kept = run.cuda
                          ? run.cuda->scatter_kept(cache->bound, list, source->bound, run.stream, run.block_count_max)
                          : scatter_kept(cache->bound, list, source->bound);
    if (!kept && kept.error() == Errc::kMismatch) {
      refuse(KVS_MISMATCH, cache->bound.layout.name + ": needs one head and the components of " +
                               source->bound.layout.name + ", of the same elements; int8 has no means");
    }
    if (!kept && kept.error() == Errc::kBadRequest) {
      refuse(KVS_BAD_REQUEST, "rows: a slot, token, head or count is not within the caches");
    }
    demand(kept);
  });
}
