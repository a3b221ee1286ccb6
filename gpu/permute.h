// gpu/permute.h: moving KV between any two layouts: scatter loads a prefix, gather stores one; copy on write, relayout,
// tensor-parallel re-slicing, swap and quantisation are the same call with other layouts, rows or operations.
//
//     scatter(pages, Rows::slots(slot_mapping), blocks, token_count)   blocks in prefix order -> the engine's pages
//     gather(blocks, pages, Rows::slots(slot_mapping), token_count)    and back
//
// These run on the host, synchronously: the fallback without a device, and the reference for the kernels of gpu/cuda.
// One call moves all components of all layers, without allocation.
//
// The folder is independent of network and store; CUDA is in gpu/cuda alone. Files, in reading order:
//     layout.h, named_layouts.h   addresses of elements; every engine's layout by name
//     rows.h, plans/row_plan.h    rows to slots; slots from block tables and page tables
//     operation.h, row_math.h     casts, scales, rotation; their arithmetic, one for host and device
//     plans/permute_plan.h        a call, checked and flat
//     host/host_copy.h, host_rows.h, host_turn.h   the host's bodies: bytes, rows through float, keys that turn side by side
//     device/device_plan.h, device_values.h, device_body.h, cuda_module.h, cuda/*.cu   the device's
//     verified.h                  the store's blocks with their checksums
//     plans/verified_plan.h, device/device_checksum.h   the same on a device
//     swap.h                      whole blocks between one layout in two memories
//     staging_device.h, staging.h, device/cuda_staging.h   blocks between the host and a device's pages
//     compress.h                  caches that keep a part of a head's tokens
//
// The subfolders, each with a map in its front header:
//     device/        cuda_module.h   kernels' arithmetic, compiled by host and device; the loader of the module
//     cuda/          module_abi.h    the kernels and the module that exports them; the only code that links CUDA
//     paging/        paged_cache.h   which pages a sequence has, and which a batch shares (docs/paged-cache.md)
//     layer_caches/  layer_cache.h   caches for models that run on the host, layer by layer
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "gpu/layout.h"
#include "gpu/operation.h"
#include "gpu/plans/permute_plan.h"
#include "gpu/rows.h"

namespace kv {

/// Moves row r of `from_rows` to row r of `to_rows`, for r in [0, row_count): each component that `to` has and
/// operation.roles names, in each layer. A row whose slot is negative on either side is skipped. Bytes outside the rows
/// are untouched. If two rows have one target slot, either may win; targets must not overlap sources. Errors, before
/// any write: kMismatch (see explain_mismatch()), kBadRequest (a slot beyond the cache).
Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                     std::int64_t row_count, const Operation& operation = Operation());

/// The errors of permute(), without a move: for callers that move in several calls.
Result<void> check_permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                           std::int64_t row_count, const Operation& operation = Operation());

/// Row r of `source` to slot(r) of `cache`.
Result<void> scatter(const BoundLayout& cache, const Rows& rows, const BoundLayout& source, std::int64_t row_count,
                     const Operation& operation = Operation());
/// slot(r) of `cache` to row r of `target`.
Result<void> gather(const BoundLayout& target, const BoundLayout& cache, const Rows& rows, std::int64_t row_count,
                    const Operation& operation = Operation());

/// Block from_blocks[i] of `from` to block to_blocks[i] of `to`, of one block size. Also swap: `to` and `from` are the
/// same layout in two memories. Requires: spans of one length.
Result<void> relayout(const BoundLayout& to, std::span<const std::int64_t> to_blocks, const BoundLayout& from,
                      std::span<const std::int64_t> from_blocks, const Operation& operation = Operation());

/// Copy on write: pairs [n][2] of source and target block, in every layer and component. The two columns are disjoint.
Result<void> copy_blocks(const BoundLayout& cache, std::span<const std::int64_t> pairs);
/// Block sources[i] to blocks targets[ends[i-1]] .. targets[ends[i] - 1], ends[-1] = 0. Errors: kBadRequest if ends
/// decrease or exceed the targets.
Result<void> copy_blocks(const BoundLayout& cache, std::span<const std::int64_t> sources,
                         std::span<const std::int64_t> targets, std::span<const std::int64_t> ends);

/// Why the layouts cannot exchange rows: a sentence with component and axis; nullopt if they can.
std::optional<Flaw> explain_mismatch(const Layout& to, const Layout& from, const Operation& operation);

}  // namespace kv
