// tests/gpu/backend.h: who executes a call. The same matrix runs on the host, with the kernels' bodies thread by thread
// on the host, and on a CUDA device where there is one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/compress.h"
#include "gpu/permute.h"
#include "tests/gpu/test_cache.h"

namespace kv {

/// Caches lie in host memory; a device backend mirrors them there and back around the call.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Why its cases cannot run here; empty: they can.
  virtual std::string absence() const = 0;
  virtual Result<void> permute(TestCache& to, const Rows& to_rows, TestCache& from, const Rows& from_rows,
                               std::int64_t row_count, const Operation& operation) = 0;
  virtual Result<void> scatter_kept(TestCache& cache, std::span<const KeepRow> rows, TestCache& source) = 0;
  /// Blocks of so many bytes, end to end; their checksums, a stripe each.
  virtual Result<std::vector<std::uint64_t>> checksums(std::span<const std::byte> bytes, std::size_t block_bytes,
                                                       std::span<const std::uint64_t> seeds) = 0;
  /// For each block 0, or 1 if it was refused.
  virtual Result<std::vector<std::uint32_t>> scatter_verified(TestCache& cache, const Rows& rows, TestCache& blocks,
                                                              std::span<const std::uint64_t> seeds,
                                                              std::span<const std::uint64_t> sums,
                                                              const Operation& operation) = 0;
  virtual Result<std::vector<std::uint64_t>> gather_with_checksums(TestCache& blocks, TestCache& cache,
                                                                   const Rows& rows,
                                                                   std::span<const std::uint64_t> seeds,
                                                                   const Operation& operation) = 0;
  /// Whether a block that is refused ends the call; a device goes on with the sound ones after it.
  virtual bool ends_at_wrong_block() const { return false; }
  /// Whether slots beyond the cache are an error; a device skips them instead.
  virtual bool refuses_slots() const = 0;
};

/// The host; the kernels' bodies run on the host; a CUDA device.
std::vector<Backend*> all_backends();

/// Threads of a block, blocks, and the widest access, of a device that is not there.
struct EmulatedGrid {
  int thread_count = 64;
  std::int64_t block_count = 3;
  int vec_bytes_max = 16;
  int slice_count = 1;  ///< Of copied rows.
};
/// permute() by the kernels' bodies on the host: what a device that is not there would do.
Result<void> emulated_permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                              const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                              const EmulatedGrid& grid = {});

/// A case of the matrix: every TEST_P runs once for each backend, and says aloud why it did not. The parameter is the
/// backend's name, so that a test is called the same in every run.
class MatrixTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto backends = all_backends();
    backend_ = *std::ranges::find(backends, GetParam(), &Backend::name);
    if (const std::string why = backend().absence(); !why.empty()) GTEST_SKIP() << why;
  }
  Backend& backend() { return *backend_; }

 private:
  Backend* backend_ = nullptr;
};

#define KV_INSTANTIATE_MATRIX(suite)                                                                       \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::Values("Host", "Emulated", "EmulatedNarrow", "Cuda"), \
                           [](const auto& each) { return std::string(each.param); })

}  // namespace kv
