// gpu/verified_plan.h: gpu/verified.h as kernels take it: steps of a few blocks each, checksums and rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "gpu/device/device_checksum.h"
#include "gpu/device/device_plan.h"

namespace kv {

/// Arrays in memory that the device reaches, one element for each block, or for each stripe of each.
struct VerifiedBlocks {
  std::int64_t block_count = 0;
  const std::uint64_t* seeds = nullptr;
  std::uint64_t* sums = nullptr;            ///< What a gather writes,
  const std::uint64_t* expected = nullptr;  ///< and what a scatter compares with.
  std::uint32_t* verdicts = nullptr;        ///< What a scatter found: 0, or 1 for a block that is not right.
};

/// So many blocks as a device's cache holds: of a scatter the checksum first, of a gather the launches.
struct VerifiedStep {
  DeviceChecksum checksum;
  std::vector<DevicePlan> launches;
};

/// What a device's L2 cache (40 MB and more) still holds when the second kernel of a step reads it, so that HBM is read
/// once.
inline constexpr std::int64_t kVerifiedStepBytes = 16 << 20;

/// Errors: kMismatch: layouts that do not meet, or `blocks` that are not the store's; kBadRequest: more blocks than
/// there are, missing arrays, rows in blocks that a store's block cuts. `vec_bytes_max` as make_device_plans(). A step
/// has at least one block.
Result<std::vector<VerifiedStep>> plan_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                                const VerifiedBlocks& verified, const Operation& operation,
                                                bool is_scatter, int vec_bytes_max = 16,
                                                std::int64_t step_bytes = kVerifiedStepBytes);

}  // namespace kv
