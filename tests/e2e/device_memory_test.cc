// Blocks by RDMA into and out of memory that the client's processor does not touch: a GPU's where there is one, with
// the GPU's own kernels verifying, and on any RDMA device memory of the host that is closed to this process.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "base/assert.h"
#include "base/checksum.h"
#include "gpu/device/cuda_module.h"
#include "gpu/named_layouts.h"
#include "gpu/plans/verified_plan.h"
#include "tests/e2e/node_process.h"
#include "tests/e2e/test_client.h"
#include "transport/stream.h"

namespace kv::e2e {
namespace {

constexpr std::size_t kBlockCount = 24;
constexpr Transport kTransport = Transport::kVerbs;

std::vector<std::span<std::byte>> blocks_of(std::span<std::byte> memory, std::size_t block_bytes) {
  std::vector<std::span<std::byte>> blocks;
  for (std::size_t i = 0; i < kBlockCount; ++i) blocks.push_back(memory.subspan(i * block_bytes, block_bytes));
  return blocks;
}

PutResult put(TestClient& client, std::span<const BlockHash> chain, std::span<const std::span<std::byte>> blocks,
              std::span<const std::uint64_t> sums) {
  PutOptions options{.deadline = kDeadline};
  options.checksums = sums;
  const std::vector<std::span<const std::byte>> from(blocks.begin(), blocks.end());
  return client->put(client.space(), chain, from, options).value();
}
GetResult get(TestClient& client, std::span<const BlockHash> chain, std::span<const std::span<std::byte>> blocks,
              std::span<std::uint64_t> sums, std::chrono::microseconds deadline = kDeadline) {
  GetOptions options{.deadline = deadline};
  options.checksums = sums;
  return client->get(client.space(), chain, blocks, options).value();
}

class DeviceMemoryE2eTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = lacks(kTransport); !why.empty()) GTEST_SKIP() << why;
  }
  const NodeProcess node_{node_options(kTransport, {"--capacity", "256MiB"})};
};

/// Memory with two mappings: the client's, which can be closed, and the test's own.
class TwoViews {
 public:
  explicit TwoViews(std::size_t bytes) : fd_(::memfd_create("kvstore-e2e-device", MFD_CLOEXEC)), bytes_(bytes) {
    KV_ASSERT(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    for (std::byte*& view : views_) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
      KV_ASSERT(mapped != MAP_FAILED);
      view = static_cast<std::byte*>(mapped);
    }
  }
  ~TwoViews() {
    for (std::byte* const view : views_) ::munmap(view, bytes_);
  }
  TwoViews(const TwoViews&) = delete;
  TwoViews& operator=(const TwoViews&) = delete;

  std::span<std::byte> given() const { return {views_[0], bytes_}; }
  std::span<std::byte> own() const { return {views_[1], bytes_}; }
  void close_given() const { KV_ASSERT(::mprotect(views_[0], bytes_, PROT_NONE) == 0); }

 private:
  Descriptor fd_;
  std::size_t bytes_;
  std::byte* views_[2] = {};
};

TEST_F(DeviceMemoryE2eTest, BlocksReachMemoryThatOurProcessorCannotTouch) {
  constexpr std::size_t kBlockBytes = 200'000, kStripes = stripe_count(kBlockBytes);
  TestClient client(endpoint_of(node_, kTransport), kTransport, kBlockBytes, kBlockCount);
  ASSERT_TRUE(client.wait_for_rdma());
  const auto chain = make_chain(7, kBlockCount);
  const TwoViews memory(kBlockCount * kBlockBytes);
  ASSERT_TRUE(client->add_device_memory({.bytes = memory.given()}));  // by address: as with nvidia-peermem
  ASSERT_GT(client->lend(memory.given(), kDeadline).value(), 0u);
  memory.close_given();
  const auto given = blocks_of(memory.given(), kBlockBytes), own = blocks_of(memory.own(), kBlockBytes);

  std::mt19937_64 random(7);
  for (std::byte& each : memory.own()) each = static_cast<std::byte>(random());
  const std::vector<std::byte> before(memory.own().begin(), memory.own().end());
  std::vector<std::uint64_t> sums(kBlockCount * kStripes), told(sums.size());
  for (std::size_t i = 0; i < kBlockCount; ++i) {
    block_checksums(checksum_seed(client.record().id(), chain[i]), own[i],
                    std::span(sums).subspan(i * kStripes, kStripes));
  }
  const PutResult stored = put(client, chain, given, sums);
  ASSERT_EQ(stored.stored, kBlockCount) << stored.why.message();
  for (int i = 0; i < 10; ++i) {
    std::ranges::fill(memory.own(), std::byte{0xEE});
    const GetResult got = get(client, chain, given, told);
    ASSERT_EQ(got.block_count, kBlockCount) << got.why.message();
    EXPECT_EQ(told, sums);
    EXPECT_TRUE(std::ranges::equal(memory.own(), before));
  }
  // Taken back in the middle, it is left alone.
  for (int i = 0; i < 20; ++i) {
    const auto deadline = std::chrono::microseconds(random() % 3000);
    (void)get(client, chain, given, told, deadline);
    ASSERT_TRUE(client->remove_device_memory(memory.given(), kDeadline));
    std::ranges::fill(memory.own(), std::byte{0x5A});
    ASSERT_TRUE(client->ask({.path = "/stats.json"}, kDeadline));  // the node has heard of it by now
    ASSERT_TRUE(std::ranges::all_of(memory.own(), [](std::byte byte) { return byte == std::byte{0x5A}; }));
    ASSERT_EQ(::mprotect(memory.given().data(), memory.given().size(), PROT_READ | PROT_WRITE), 0);
    ASSERT_TRUE(client->add_device_memory({.bytes = memory.given()}));
    while (client->lend(memory.given(), kDeadline).value() == 0) {
    }
    memory.close_given();
  }
  ASSERT_TRUE(client->remove_device_memory(memory.given(), kDeadline));
}

/// Device memory, freed after the client has given it back.
struct DeviceArray {
  DeviceArray(std::shared_ptr<const CudaModule> m, std::size_t bytes) : module(std::move(m)) {
    memory = {static_cast<std::byte*>(module->allocate(bytes)), bytes};
    if (memory.data() == nullptr) throw std::bad_alloc();
  }
  ~DeviceArray() { module->free(memory.data()); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  std::shared_ptr<const CudaModule> module;
  std::span<std::byte> memory;
};

TEST_F(DeviceMemoryE2eTest, BlocksGoFromAGpusPagesToTheNodeAndBackWithoutTheHost) {
#ifdef KV_CUDA_MODULE
  setenv("KV_CUDA_MODULE", KV_CUDA_MODULE, /*overwrite=*/0);  // the one that was just built
#endif
  const auto module = CudaModule::load();
  if (!module) GTEST_SKIP() << "needs a GPU: " << module.error().text;
  const CudaModule& cuda = **module;

  constexpr std::int64_t kTokens = 16;
  const CacheShape shape{.block_count = 2 * static_cast<std::int64_t>(kBlockCount),
                         .block_tokens = kTokens,
                         .heads = 4,
                         .key_size = 64,
                         .layer_count = 1};
  const Layout pages_layout = layouts::nhd(shape).value();
  const Layout block_layout = layouts::store_block(pages_layout, 1, kBlockCount, kTokens).value();
  const auto block_bytes = static_cast<std::size_t>(layouts::store_block_bytes(block_layout));
  const std::size_t stripes = stripe_count(block_bytes);
  TestClient client(endpoint_of(node_, kTransport), kTransport, block_bytes, kBlockCount);
  ASSERT_TRUE(client.wait_for_rdma());
  const auto chain = make_chain(9, kBlockCount);

  DeviceArray blocks(*module, kBlockCount * block_bytes);
  DeviceMemory lent{.bytes = blocks.memory};
  const auto dmabuf = cuda.export_dmabuf(blocks.memory);
  const Descriptor descriptor(dmabuf ? dmabuf->fd : -1);
  if (dmabuf) lent.dmabuf_fd = dmabuf->fd, lent.dmabuf_offset = dmabuf->offset;
  ASSERT_TRUE(client->add_device_memory(lent));
  if (client->lend(blocks.memory, kDeadline).value() == 0) {
    GTEST_SKIP() << "needs dma-bufs or nvidia-peermem: " << client->nodes()[0].rdma_text;
  }

  // K and V of one layer are two allocations.
  const auto tensor_bytes = static_cast<std::size_t>(pages_layout.tensor_bytes(0));
  DeviceArray keys(*module, tensor_bytes), values(*module, tensor_bytes);
  std::mt19937_64 random(11);
  std::vector<std::byte> content(2 * tensor_bytes), read(content.size());
  for (std::byte& each : content) each = static_cast<std::byte>(random());
  ASSERT_TRUE(cuda.copy(keys.memory.data(), content.data(), tensor_bytes));
  ASSERT_TRUE(cuda.copy(values.memory.data(), content.data() + tensor_bytes, tensor_bytes));
  void* const tensors[] = {keys.memory.data(), values.memory.data()};
  void* const base = blocks.memory.data();
  const BoundLayout pages = bind_layout(pages_layout, tensors).value();
  const BoundLayout bound = bind_layout(block_layout, {&base, 1}).value();

  std::vector<std::uint64_t> seeds, sums(kBlockCount * stripes);
  for (const BlockHash& hash : chain) seeds.push_back(checksum_seed(client.record().id(), hash));
  DeviceArray seeds_there(*module, seeds.size() * 8), sums_there(*module, sums.size() * 8);
  DeviceArray verdicts_there(*module, kBlockCount * 4);
  ASSERT_TRUE(cuda.copy(seeds_there.memory.data(), seeds.data(), seeds.size() * 8));
  VerifiedBlocks verified;
  verified.seeds = reinterpret_cast<const std::uint64_t*>(seeds_there.memory.data());
  verified.sums = reinterpret_cast<std::uint64_t*>(sums_there.memory.data());
  verified.verdicts = reinterpret_cast<std::uint32_t*>(verdicts_there.memory.data());
  verified.block_count = static_cast<std::int64_t>(kBlockCount);
  ASSERT_TRUE(cuda.gather_with_checksums(bound, pages, Rows::range(), verified, Operation(), nullptr));
  ASSERT_TRUE(cuda.synchronise(nullptr));
  ASSERT_TRUE(cuda.copy(sums.data(), sums_there.memory.data(), sums.size() * 8));
  const auto spans = blocks_of(blocks.memory, block_bytes);
  const PutResult stored = put(client, chain, spans, sums);
  ASSERT_EQ(stored.stored, kBlockCount) << stored.why.message();

  const std::vector<std::byte> nothing(content.size());
  ASSERT_TRUE(cuda.copy(blocks.memory.data(), nothing.data(), blocks.memory.size()));
  ASSERT_TRUE(cuda.copy(keys.memory.data(), nothing.data(), tensor_bytes));
  ASSERT_TRUE(cuda.copy(values.memory.data(), nothing.data(), tensor_bytes));
  std::vector<std::uint64_t> told(sums.size());
  const GetResult got = get(client, chain, spans, told);
  ASSERT_EQ(got.block_count, kBlockCount) << got.why.message();
  EXPECT_EQ(told, sums);
  ASSERT_TRUE(cuda.copy(sums_there.memory.data(), told.data(), told.size() * 8));
  verified.expected = verified.sums;
  ASSERT_TRUE(cuda.scatter_verified(pages, Rows::range(), bound, verified, Operation(), nullptr));
  ASSERT_TRUE(cuda.synchronise(nullptr));
  std::vector<std::uint32_t> verdicts(kBlockCount, 7);
  ASSERT_TRUE(cuda.copy(verdicts.data(), verdicts_there.memory.data(), verdicts.size() * 4));
  EXPECT_EQ(verdicts, std::vector<std::uint32_t>(kBlockCount, 0));
  ASSERT_TRUE(cuda.copy(read.data(), keys.memory.data(), tensor_bytes));
  ASSERT_TRUE(cuda.copy(read.data() + tensor_bytes, values.memory.data(), tensor_bytes));
  const std::size_t used = kBlockCount * kTokens * 4 * 64 * 2;  // of each tensor: the first half
  EXPECT_EQ(std::memcmp(read.data(), content.data(), used), 0);
  EXPECT_EQ(std::memcmp(read.data() + tensor_bytes, content.data() + tensor_bytes, used), 0);
  ASSERT_TRUE(client->remove_device_memory(blocks.memory, kDeadline));
}

}  // namespace
}  // namespace kv::e2e
