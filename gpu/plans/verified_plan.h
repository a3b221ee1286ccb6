// gpu/plans/verified_plan.h: gpu/verified.h for kernels: steps of a few blocks each, checksums and rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "gpu/device/device_checksum.h"
#include "gpu/device/device_plan.h"

namespace kv {

/// Arrays in device-accessible memory, one element per block, or per stripe of each block.
struct VerifiedBlocks {
  std::int64_t block_count = 0;
  const std::uint64_t* seeds = nullptr;
  std::uint64_t* sums = nullptr;            ///< Written by a gather.
  const std::uint64_t* expected = nullptr;  ///< Compared by a scatter.
  std::uint32_t* verdicts = nullptr;        ///< Written by a scatter: 0, or 1 for a block that failed.
};

/// A device cache's worth of blocks. A scatter runs the checksum first, a gather the launches.
struct VerifiedStep {
  DeviceChecksum checksum;
  std::vector<DevicePlan> launches;
};

/// Fits a device's L2 cache (40 MB and more), so that a step's second kernel reads from it and HBM is read once.
inline constexpr std::int64_t kVerifiedStepBytes = 16 << 20;

/// Errors: kMismatch: other layouts; kBadRequest: too many blocks, missing arrays, rows whose blocks straddle a store's
/// block. `vec_bytes_max` as make_device_plans(). A step has at least one block.
Result<std::vector<VerifiedStep>> plan_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                                const VerifiedBlocks& verified, const Operation& operation,
                                                bool is_scatter, int vec_bytes_max = 16,
                                                std::int64_t step_bytes = kVerifiedStepBytes);

}  // namespace kv
