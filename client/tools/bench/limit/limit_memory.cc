#include <algorithm>
#include <cstring>
#include <memory>

#include "base/assert.h"
#include "base/checksum.h"
#include "client/tools/bench/limit/limit.h"
#include "client/tools/bench/touched_memory.h"

namespace kv {
namespace {

/// Both sides of a copy. Larger than the caches, as an arena is.
struct MemoryPair {
  explicit MemoryPair(std::size_t bytes) : from(bytes), to(bytes) {}
  TouchedMemory from, to;
};

/// Blocks in random order on both sides, as in a node, which defeats prefetchers beyond one block.
template <class Copy>
LimitSample measure_copies(const LimitShape& shape, MemoryPair& memory, Copy copy) {
  const std::size_t block_count = memory.from.bytes().size() / shape.block_bytes;
  KV_ASSERT(block_count > 0);
  QuickRandom random(42);
  std::size_t copied = 0;
  const auto start = std::chrono::steady_clock::now();
  auto now = start;
  while (now - start < shape.duration) {
    // The clock is read once a batch, as by a caller that waits for a batch.
    for (std::size_t i = 0; i < shape.batch; ++i) {
      copy(memory.to.bytes().subspan(random.below(block_count) * shape.block_bytes, shape.block_bytes),
           memory.from.bytes().subspan(random.below(block_count) * shape.block_bytes, shape.block_bytes));
    }
    copied += shape.batch;
    now = std::chrono::steady_clock::now();
  }
  LimitSample sample;
  const double seconds = std::chrono::duration<double>(now - start).count();
  sample.bytes_per_second = static_cast<double>(copied * shape.block_bytes) / seconds;
  sample.calls_per_second = static_cast<double>(copied / shape.batch) / seconds;
  return sample;
}

}  // namespace

std::vector<LimitCase> memory_limits(const LimitShape& shape) {
  auto memory = std::make_shared<MemoryPair>(std::max(shape.memory_bytes, shape.block_bytes));
  std::vector<LimitCase> cases;
  cases.push_back({"memcpy", "one thread, blocks in random order", true, [shape, memory] {
                     return measure_copies(shape, *memory, [](std::span<std::byte> to, std::span<std::byte> from) {
                       std::memcpy(to.data(), from.data(), to.size());
                     });
                   }});
  cases.push_back({"memcpy_checksum", "the same, and XXH3 of what was copied", true, [shape, memory] {
                     std::vector<std::uint64_t> sums(stripe_count(shape.block_bytes));
                     return measure_copies(shape, *memory, [&](std::span<std::byte> to, std::span<std::byte> from) {
                       copy_with_checksums(/*seed=*/1, to, from, sums);
                     });
                   }});
  return cases;
}

}  // namespace kv
