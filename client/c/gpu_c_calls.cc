// client/c/gpu_c_calls.cc: kvstore_gpu.h's calls that move rows, on the host or with CUDA. Exceptions stop here.
#include <algorithm>
#include <limits>
#include <span>
#include <unordered_set>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "gpu/permute.h"
#include "gpu/plans/row_plan.h"
#include "gpu/swap.h"

namespace kv {
namespace {

using namespace c_api;

void run_permute(const kvs_cache& to, const Rows& to_rows, const kvs_cache& from, const Rows& from_rows,
                 std::int64_t row_count, const Operation& operation, const Run& run) {
  const auto moved = run.cuda ? run.cuda->permute(to.bound, to_rows, from.bound, from_rows, row_count, operation,
                                                  run.stream, run.block_count_max)
                              : permute(to.bound, to_rows, from.bound, from_rows, row_count, operation);
  demand(moved, to.bound.layout, from.bound.layout, operation);
}

/// Rows `to_rows` and `from_rows`; null means a range from 0.
void permute_rows(const kvs_cache* to, const kvs_rows* to_rows, const kvs_cache* from, const kvs_rows* from_rows,
                  std::int64_t row_count, const kvs_operation* given, const kvs_where* where) {
  if (to == nullptr || from == nullptr) refuse(KVS_BAD_REQUEST, "a cache is NULL");
  if (row_count < 0) refuse_value("row_count", row_count, "0 or more");
  const kvs_rows range = KVS_ROWS_INIT;
  // Rows before the run, so that wrong numbers are reported on machines without CUDA too.
  const Rows to_list = read_rows(to_rows ? to_rows : &range, to->bound.layout, row_count);
  const Rows from_list = read_rows(from_rows ? from_rows : &range, from->bound.layout, row_count);
  const Operation operation = read_operation(given, row_count, to->bound.layout);
  run_permute(*to, to_list, *from, from_list, row_count, operation, Run(where, {to, from}));
}

/// `count` whole blocks: ids are `step` apart; `step` 2 is one column of pairs.
void move_blocks(const kvs_cache& to, const std::int64_t* to_blocks, const kvs_cache& from,
                 const std::int64_t* from_blocks, std::int64_t step, std::size_t count, const kvs_operation* given,
                 const Run& run) {
  const std::int64_t tokens = to.bound.layout.block_tokens;
  // Block ids on both sides name the same tokens only at equal block sizes. Others go row by row, by kvs_permute.
  if (from.bound.layout.block_tokens != tokens) {
    refuse(KVS_MISMATCH, "token axis: blocks of " + std::to_string(from.bound.layout.block_tokens) +
                             " tokens go to blocks of " + std::to_string(tokens));
  }
  std::int64_t row_count = 0;
  // The first bound keeps the cast positive; the second limits the product to 63 bits.
  if (count > (std::size_t{1} << 56) || __builtin_mul_overflow(static_cast<std::int64_t>(count), tokens, &row_count)) {
    refuse(KVS_TOO_LARGE, "count: more rows than can be counted");
  }
  if (count > 0 && (to_blocks == nullptr || from_blocks == nullptr)) refuse(KVS_BAD_REQUEST, "blocks is NULL");
  const Operation operation = read_operation(given, row_count, to.bound.layout);
  run_permute(to, Rows::blocks(to_blocks, tokens, step), from, Rows::blocks(from_blocks, tokens, step), row_count,
              operation, run);
}

/// Checks that every block is written once, or only read. Negative ids are skipped.
void check_disjoint(const std::int64_t* sources, std::size_t source_count, const std::int64_t* targets,
                    std::size_t target_count, std::size_t step) {
  // Blocks are copied in no particular order, by several threads of a kernel: a block on both sides would be copied
  // partly before and partly after it was overwritten.
  std::unordered_set<std::int64_t> written;
  for (std::size_t i = 0; i < target_count; ++i) {
    const std::int64_t target = targets[i * step];
    if (target >= 0 && !written.insert(target).second) refuse_value("target", target, "a target once");
  }
  for (std::size_t i = 0; i < source_count; ++i) {
    if (written.contains(sources[i * step])) refuse_value("source", sources[i * step], "a source alone");
  }
}

/// Slots as in Ascend's operators and most tables. Planned in 64 bits and then narrowed: a product of page and page
/// size that wraps in 32 bits would be a valid slot of another sequence.
void narrow(std::span<const std::int64_t> slots, std::int32_t* to) {
  for (const std::int64_t slot : slots) {
    if (slot > std::numeric_limits<std::int32_t>::max()) {
      refuse(KVS_TOO_LARGE, "slots: " + std::to_string(slot) + " does not fit 32 bits");
    }
    *to++ = static_cast<std::int32_t>(slot);
  }
}
/// Sum of all lengths; invalid ones count 0, and are refused later.
std::size_t count_rows(std::span<const std::int64_t> lengths) {
  std::size_t rows = 0;
  for (const std::int64_t length : lengths) rows += static_cast<std::size_t>(std::max<std::int64_t>(length, 0));
  return rows;
}

/// Neither allocated by CUDA nor registered by kvs_lock_pages: a kernel that touches it destroys the CUDA context.
bool is_plain_host(const CudaModule& cuda, const void* memory) {
  return cuda.place_of(memory).kind == CudaModule::MemoryKind::kHost;
}

/// Whole blocks by the copy engine; reads `pairs` before returning.
void enqueue_swap(const kvs_cache& to, const kvs_cache& from, std::span<const std::int64_t> pairs, const Run& run) {
  const auto copies = plan_swap(to.bound, from.bound, pairs);
  if (!copies && copies.error() == Errc::kMismatch) {
    refuse(KVS_MISMATCH, from.bound.layout.name + " to " + to.bound.layout.name +
                             ": blocks differ or are not contiguous: kvs_relayout moves those, with ids on the device");
  }
  demand(copies, to.bound.layout, from.bound.layout, Operation());
  demand(run.cuda->copy_batch(copies->to, copies->from, copies->bytes, run.stream));
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_device_check(int device) {
  return gpu_call([&] {
    kvs_where run = KVS_WHERE_INIT;
    run.device = device;
    const Run found(&run);
  });
}

int kvs_device_count(int* count) {
  return gpu_call([&] {
    if (count == nullptr) refuse(KVS_BAD_REQUEST, "count is NULL");
    // A machine without CUDA has 0 devices, which is not an error.
    *count = has_cuda() ? Run::on_cuda().cuda->device_count() : 0;
  });
}

int kvs_warm_up(const kvs_where* where) {
  return gpu_call([&] {
    const Run run(where);
    // Succeeds on the host too, which has nothing to load, so that callers need not distinguish.
    if (run.cuda) demand(run.cuda->warm_up());
  });
}

int kvs_synchronise(const kvs_where* where) {
  return gpu_call([&] {
    const Run run(where);
    if (run.cuda) demand(run.cuda->synchronise(run.stream));
  });
}

int kvs_lock_pages(void* memory, size_t bytes) {
  return gpu_call([&] {
    if (memory == nullptr || bytes == 0) refuse(KVS_BAD_REQUEST, "memory is NULL or empty");
    demand(Run::on_cuda().cuda->lock_pages({static_cast<std::byte*>(memory), bytes}));
  });
}

int kvs_unlock_pages(void* memory) {
  return gpu_call([&] {
    if (memory == nullptr) refuse(KVS_BAD_REQUEST, "memory is NULL");
    demand(Run::on_cuda().cuda->unlock_pages(static_cast<std::byte*>(memory)));
  });
}

int kvs_export_device_memory(void* memory, uint64_t bytes, kvs_device_memory* exported) {
  return gpu_call([&] {
    if (memory == nullptr || bytes == 0) refuse(KVS_BAD_REQUEST, "memory is NULL or empty");
    kvs_device_memory out = KVS_DEVICE_MEMORY_INIT;
    // Checked first, or its descriptor would be lost. The caller owns and closes the descriptor.
    if (exported == nullptr || exported->struct_size < sizeof out || exported->struct_size > 65536) {
      refuse(KVS_BAD_REQUEST, "exported is NULL, or struct_size is not set");
    }
    const Run run = Run::on_cuda();
    const auto dmabuf = run.cuda->export_dmabuf({static_cast<std::byte*>(memory), bytes});
    if (!dmabuf && dmabuf.error() == Errc::kUnsupported) {
      refuse(KVS_UNSUPPORTED, "the CUDA driver exports no dma-buf: it needs the open kernel modules and Linux 5.12");
    }
    if (!dmabuf) refuse(dmabuf.error());
    out.address = memory;
    out.bytes = bytes;
    out.dmabuf_fd = dmabuf->fd;
    out.dmabuf_offset = dmabuf->offset;
    write_struct(out, exported);
  });
}

int kvs_layout_check(const kvs_layout* to, const kvs_layout* from, const kvs_operation* given) {
  return gpu_call([&] {
    if (to == nullptr || from == nullptr) refuse(KVS_BAD_REQUEST, "a layout is NULL");
    // 0 rows: a rotation's deltas, one per row, belong to the call, not to the layouts.
    const Operation operation = read_operation(given, 0, to->layout);
    if (const auto flaw = explain_mismatch(to->layout, from->layout, operation)) refuse(KVS_MISMATCH, flaw->text);
  });
}

namespace kv {
namespace {

bool is_block_tokens(std::int64_t tokens) { return tokens >= 1 && tokens <= std::int64_t{1} << 31; }

/// From a block table, in the caller's width.
template <class Id>
void slots_of_table(const std::int32_t* table, std::size_t sequence_count, std::int64_t width,
                    std::int64_t block_tokens, const Id* starts, const Id* lengths, int drop_missing, Id* slots,
                    std::size_t capacity, std::size_t* count) {
  std::int64_t id_count = 0;
  if (width < 0 || sequence_count > (std::size_t{1} << 56) ||
      __builtin_mul_overflow(static_cast<std::int64_t>(sequence_count), width, &id_count)) {
    refuse(KVS_BAD_REQUEST, "table: sequence_count times width is not a count");
  }
  if (count == nullptr || (table == nullptr && id_count > 0) || (lengths == nullptr && sequence_count > 0) ||
      (slots == nullptr && capacity > 0)) {
    refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  }
  if (!is_block_tokens(block_tokens)) refuse_value("block_tokens", block_tokens, "from 1 to 2^31");
  const BlockTable blocks{{table, static_cast<std::size_t>(id_count)}, width};
  const auto missing = drop_missing != 0 ? MissingBlock::kDropRow : MissingBlock::kKeepRow;
  // One planner for both widths: the narrow form widens its lists, which are short beside the slots.
  const WideList wide_starts(starts, starts == nullptr ? 0 : sequence_count), wide_lengths(lengths, sequence_count);
  // Not `capacity` alone: the caller may give a number beyond all memory.
  std::vector<std::int64_t> wide(sizeof(Id) == 8 ? 0 : std::min(capacity, count_rows(wide_lengths.list)));
  std::span<std::int64_t> planned_slots(wide);
  if constexpr (sizeof(Id) == 8) planned_slots = {slots, capacity};
  const auto rows = plan_table_rows(planned_slots, blocks, block_tokens, wide_starts.list, wide_lengths.list, missing);
  if (!rows && rows.error() == Errc::kBadRequest) {
    refuse(KVS_BAD_REQUEST, "starts, lengths: one is negative, or a sequence ends beyond its " + std::to_string(width) +
                                " blocks of the table");
  }
  if (!rows) refuse(rows.error());
  if constexpr (sizeof(Id) != 8) narrow({wide.data(), static_cast<std::size_t>(*rows)}, slots);
  *count = static_cast<std::size_t>(*rows);
}

template <class Id>
void slots_of_csr(const std::int32_t* indptr, std::size_t indptr_count, const std::int32_t* indices,
                  std::size_t index_count, std::int64_t page_tokens, const std::int32_t* batch_indices,
                  const std::int32_t* positions, std::size_t count, Id* slots) {
  if ((indptr == nullptr && indptr_count > 0) || (indices == nullptr && index_count > 0) ||
      (count > 0 && (batch_indices == nullptr || positions == nullptr || slots == nullptr))) {
    refuse(KVS_BAD_REQUEST, "a pointer is NULL");
  }
  if (!is_block_tokens(page_tokens)) refuse_value("page_tokens", page_tokens, "from 1 to 2^31");
  const PageTableCsr pages{{indptr, indptr_count}, {indices, index_count}};
  std::vector<std::int64_t> wide(sizeof(Id) == 8 ? 0 : count);
  std::span<std::int64_t> planned_slots(wide);
  if constexpr (sizeof(Id) == 8) planned_slots = {slots, count};
  const auto planned = plan_append_rows(planned_slots, pages, page_tokens, {batch_indices, count}, {positions, count});
  if (!planned && planned.error() == Errc::kBadRequest) {
    refuse(KVS_BAD_REQUEST, "batch_indices, positions: a request or a position that indptr does not have");
  }
  if (!planned) refuse(planned.error());
  if constexpr (sizeof(Id) != 8) narrow(wide, slots);
}

}  // namespace
}  // namespace kv

int kvs_slots_of_table(const int32_t* table, size_t sequence_count, int64_t width, int64_t block_tokens,
                       const int64_t* starts, const int64_t* lengths, int drop_missing, int64_t* slots, size_t capacity,
                       size_t* count) {
  return gpu_call([&] {
    return slots_of_table(table, sequence_count, width, block_tokens, starts, lengths, drop_missing, slots, capacity,
                          count);
  });
}
int kvs_slots32_of_table(const int32_t* table, size_t sequence_count, int64_t width, int64_t block_tokens,
                         const int32_t* starts, const int32_t* lengths, int drop_missing, int32_t* slots,
                         size_t capacity, size_t* count) {
  return gpu_call([&] {
    return slots_of_table(table, sequence_count, width, block_tokens, starts, lengths, drop_missing, slots, capacity,
                          count);
  });
}

int kvs_slots_of_csr(const int32_t* indptr, size_t indptr_count, const int32_t* indices, size_t index_count,
                     int64_t page_tokens, const int32_t* batch_indices, const int32_t* positions, size_t count,
                     int64_t* slots) {
  return gpu_call([&] {
    return slots_of_csr(indptr, indptr_count, indices, index_count, page_tokens, batch_indices, positions, count,
                        slots);
  });
}
int kvs_slots32_of_csr(const int32_t* indptr, size_t indptr_count, const int32_t* indices, size_t index_count,
                       int64_t page_tokens, const int32_t* batch_indices, const int32_t* positions, size_t count,
                       int32_t* slots) {
  return gpu_call([&] {
    return slots_of_csr(indptr, indptr_count, indices, index_count, page_tokens, batch_indices, positions, count,
                        slots);
  });
}

int kvs_append_positions(const int32_t* append_indptr, size_t request_count, const int32_t* seq_lens,
                         int32_t* batch_indices, int32_t* positions, size_t row_count) {
  return gpu_call([&] {
    if (append_indptr == nullptr || (request_count > 0 && seq_lens == nullptr) ||
        (row_count > 0 && (batch_indices == nullptr || positions == nullptr))) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    if (request_count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      refuse(KVS_TOO_LARGE, "request_count: more than 2^31 - 1");
    }
    const auto planned = plan_append_positions({batch_indices, row_count}, {positions, row_count},
                                               {append_indptr, request_count + 1}, {seq_lens, request_count});
    if (!planned && planned.error() == Errc::kBadRequest) {
      refuse(KVS_BAD_REQUEST,
             "append_indptr: falls, ends beyond row_count, or a request appends more than seq_lens has for it");
    }
    demand(planned);
  });
}

int kvs_permute(const kvs_cache* to, const kvs_rows* to_rows, const kvs_cache* from, const kvs_rows* from_rows,
                int64_t row_count, const kvs_operation* operation, const kvs_where* run) {
  return gpu_call([&] {
    if (to_rows == nullptr || from_rows == nullptr) refuse(KVS_BAD_REQUEST, "rows is NULL");
    permute_rows(to, to_rows, from, from_rows, row_count, operation, run);
  });
}

int kvs_scatter(const kvs_cache* cache, const kvs_rows* rows, const kvs_cache* source, int64_t row_count,
                const kvs_operation* operation, const kvs_where* run) {
  return gpu_call([&] {
    if (rows == nullptr) refuse(KVS_BAD_REQUEST, "rows is NULL");
    permute_rows(cache, rows, source, nullptr, row_count, operation, run);
  });
}

int kvs_gather(const kvs_cache* target, const kvs_cache* cache, const kvs_rows* rows, int64_t row_count,
               const kvs_operation* operation, const kvs_where* run) {
  return gpu_call([&] {
    if (rows == nullptr) refuse(KVS_BAD_REQUEST, "rows is NULL");
    permute_rows(target, nullptr, cache, rows, row_count, operation, run);
  });
}

int kvs_relayout(const kvs_cache* to, const int64_t* to_blocks, const kvs_cache* from, const int64_t* from_blocks,
                 size_t count, const kvs_operation* operation, const kvs_where* where) {
  return gpu_call([&] {
    if (to == nullptr || from == nullptr) refuse(KVS_BAD_REQUEST, "a cache is NULL");
    const Run run(where, {to, from});
    move_blocks(*to, to_blocks, *from, from_blocks, 1, count, operation, run);
  });
}

int kvs_copy_blocks(const kvs_cache* cache, const int64_t (*pairs)[2], size_t count, const kvs_where* where) {
  return gpu_call([&] {
    if (cache == nullptr || (pairs == nullptr && count > 0)) refuse(KVS_BAD_REQUEST, "cache or pairs is NULL");
    const Run run(where, {cache});
    if (count == 0) return;
    const bool is_read_here = !run.cuda || is_plain_host(*run.cuda, pairs);
    if (is_read_here) {
      check_disjoint(pairs[0], count, pairs[0] + 1, count, 2);
    }
    // Kernels must not touch plain host memory, and copying it to the device would allocate: use the copy engine. Pairs
    // in device memory cannot be checked without waiting for the device; the caller is responsible.
    if (run.cuda && is_read_here) return enqueue_swap(*cache, *cache, {pairs[0], 2 * count}, run);
    move_blocks(*cache, pairs[0] + 1, *cache, pairs[0], 2, count, nullptr, run);
  });
}

int kvs_fan_out_blocks(const kvs_cache* cache, const int64_t* sources, const int64_t* ends, size_t source_count,
                       const int64_t* targets, size_t target_count, const kvs_where* where) {
  return gpu_call([&] {
    if (cache == nullptr || (source_count > 0 && (sources == nullptr || ends == nullptr)) ||
        (targets == nullptr && target_count > 0)) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    // For a device, callers use kvs_copy_blocks, with the pairs written out.
    if (Run(where).cuda) refuse(KVS_UNSUPPORTED, "kvs_fan_out_blocks runs on the host only");
    check_disjoint(sources, source_count, targets, target_count, 1);
    const auto copied =
        copy_blocks(cache->bound, {sources, source_count}, {targets, target_count}, {ends, source_count});
    demand(copied, cache->bound.layout, cache->bound.layout, Operation());
  });
}

int kvs_swap_blocks(const kvs_cache* to, const kvs_cache* from, const int64_t (*pairs)[2], size_t count,
                    const kvs_where* where) {
  return gpu_call([&] {
    if (to == nullptr || from == nullptr || (pairs == nullptr && count > 0)) {
      refuse(KVS_BAD_REQUEST, "a cache or pairs is NULL");
    }
    const Run run(where, {to, from});
    if (count == 0) return;
    if (!run.cuda) return move_blocks(*to, pairs[0] + 1, *from, pairs[0], 2, count, nullptr, run);
    // Pairs readable here go to the copy engine, at full bus rate, and leave the multiprocessors to the model.
    if (run.cuda->place_of(pairs).kind != CudaModule::MemoryKind::kDevice) {
      return enqueue_swap(*to, *from, {pairs[0], 2 * count}, run);
    }
    for (const kvs_cache* each : {to, from}) {
      if (!each->bound.bases.empty() && is_plain_host(*run.cuda, each->bound.bases.front())) {
        refuse(KVS_BAD_REQUEST, "pairs: is the device's, so a kernel copies, which cannot reach " +
                                    each->bound.layout.name + ": lock its pages, or give pairs in host memory");
      }
    }
    move_blocks(*to, pairs[0] + 1, *from, pairs[0], 2, count, nullptr, run);
  });
}
