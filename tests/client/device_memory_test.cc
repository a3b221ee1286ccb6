// Blocks into and out of memory that the client's processor must not touch, by RDMA, between a client and real
// sessions. A memfd stands in for a GPU's memory: the client knows it by addresses that fault, RDMA devices by the
// dma-buf, and the test, which plays the GPU, by a mapping of its own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/checksum.h"
#include "tests/client/real_nodes.h"
#include "tests/fakes/virtual_clock.h"

namespace kv {
namespace {

/// A GPU with so much memory.
class FakeGpu {
 public:
  explicit FakeGpu(std::size_t bytes) : fd_(::memfd_create("kvstore-gpu", MFD_CLOEXEC)), bytes_(bytes) {
    KV_ASSERT(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    view_ = map(PROT_NONE);
    own_ = map(PROT_READ | PROT_WRITE);
  }
  ~FakeGpu() {
    ::munmap(view_, bytes_);
    ::munmap(own_, bytes_);
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  std::span<std::byte> addresses() const { return {view_, bytes_}; }  ///< As a client gets them: each access faults.
  std::span<std::byte> memory() const { return {own_, bytes_}; }      ///< As the GPU's own programs see it.
  int dmabuf() const { return fd_.get(); }

 private:
  std::byte* map(int protection) const {
    void* const mapped = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
    KV_ASSERT(mapped != MAP_FAILED);
    return static_cast<std::byte*>(mapped);
  }

  Descriptor fd_;
  std::size_t bytes_;
  std::byte *view_ = nullptr, *own_ = nullptr;
};

std::uint64_t seed_or(std::uint64_t otherwise) {
  const char* const chosen = std::getenv("KV_SEED");
  return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

/// A node on fake0 and fake1, a client on fake2 and fake3, and a GPU.
class DeviceMemoryTest : public testing::Test {
 public:
  static constexpr std::size_t kBlockBytes = 300'000, kCount = 32, kStripes = stripe_count(kBlockBytes);
  static constexpr std::size_t kGpuBytes = 10'000'000;

  DeviceMemoryTest() { network.set_passes_descriptors(false); }
  ~DeviceMemoryTest() override {
    client.reset();
    node.reset();
    loop.drain();
    loop.run_for(20s);
    loop.drain();
  }
  void start(verbs::FakeOptions options = {}, const StoreConfig& store = small_store(), std::size_t connections = 1) {
    options.device_count = 4;
    verbs.emplace(clock, loop.context().get_executor(), options);
    node = std::make_unique<sim::SimNode>(loop.context(), network, clock, "node", store, sim::DiskFaults{}, 1, &*verbs,
                                          std::vector<std::string>{"fake0", "fake1"});
    config.nodes.push_back({.endpoint = "sim://node", .name = "node"});
    config.rdma_devices = {"fake2", "fake3"};
    config.rdma_messages = message_count;
    config.connections_per_node = connections;
    client = std::make_unique<Client>(loop.context().get_executor(), config, network, clock, &*verbs);
    space = loop.run(client->open(record, 5s)).value();
  }
  void start_and_lend() {
    start();
    add_gpu();
    ASSERT_EQ(lend(), 1u);
  }
  void add_gpu() {
    ASSERT_TRUE(client->add_device_memory({.bytes = gpu.addresses(), .dmabuf_fd = gpu.dmabuf()}));
    use(gpu.addresses(), gpu.memory());
  }
  /// Blocks one after the other in the GPU's memory.
  void use(std::span<std::byte> addresses, std::span<std::byte> memory) {
    to.clear();
    from.clear();
    seen.clear();
    for (std::size_t i = 0; i < kCount; ++i) {
      to.push_back(addresses.subspan(i * kBlockBytes, kBlockBytes));
      from.push_back(to.back());
      seen.push_back(memory.subspan(i * kBlockBytes, kBlockBytes));
    }
  }
  std::size_t message_count = 0;  ///< Else what they register is counted, and a lost device costs the session.
  std::size_t lend() { return loop.run(client->lend(gpu.addresses(), 5s)).value(); }

  std::uint64_t seed_at(std::size_t i) const { return checksum_seed(record.id(), chain[i]); }
  /// What kvs_gather_with_checksums would leave.
  void fill() {
    sums.resize(kCount * kStripes);
    for (std::size_t i = 0; i < kCount; ++i) {
      fill_block(chain[i], seen[i]);
      block_checksums(seed_at(i), seen[i], std::span(sums).subspan(i * kStripes, kStripes));
    }
  }
  void wipe() {
    std::memset(gpu.memory().data(), 0xEE, kGpuBytes);
    sums.assign(kCount * kStripes, 0);
  }
  bool is_wiped() const {
    return std::ranges::all_of(gpu.memory(), [](std::byte byte) { return byte == std::byte{0xEE}; });
  }
  PutResult put(std::chrono::microseconds deadline = 5s) {
    PutOptions options{.deadline = deadline};
    options.checksums = sums;
    return loop.run(client->put(space, chain, from, options)).value();
  }
  void put_all() {
    fill();
    const PutResult stored = put();
    ASSERT_EQ(stored.stored + stored.already_stored, kCount) << stored.why.message();
    wipe();
  }
  GetOptions get_options(std::chrono::microseconds deadline = 5s) {
    GetOptions options{.deadline = deadline};
    options.checksums = sums;
    return options;
  }
  /// What landed is verified as kvs_enqueue_scatter_verified would, and compared.
  GetResult get(std::chrono::microseconds deadline = 5s) {
    wipe();
    const GetResult got = loop.run(client->get(space, chain, to, get_options(deadline))).value();
    expect_right(got.block_count);
    EXPECT_EQ(got.corrupt_count, 0u);
    return got;
  }
  void expect_right(std::size_t count) const {
    std::vector<std::byte> expected(kBlockBytes);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(verify_block(seed_at(i), seen[i], std::span(sums).subspan(i * kStripes, kStripes))) << i;
      fill_block(chain[i], expected);
      EXPECT_TRUE(std::ranges::equal(expected, seen[i])) << i;
    }
  }
  /// Into ordinary memory.
  GetResult get_to_host() {
    Blocks host(kCount, kBlockBytes);
    const GetResult got = loop.run(client->get(space, chain, host.to, {.deadline = 5s})).value();
    EXPECT_GE(host.right(chain), got.block_count);
    return got;
  }
  error_code remove(std::chrono::microseconds deadline = 5s) {
    const auto removed = loop.run(client->remove_device_memory(gpu.addresses(), deadline));
    return removed ? error_code() : removed.error();
  }
  void expect_out_of_reach() {
    EXPECT_EQ(verbs->registered_bytes("fake2") + verbs->registered_bytes("fake3"), 0u);
    wipe();
    loop.run_for(20s);
    EXPECT_TRUE(is_wiped()) << "written after it was given back";
  }

  VirtualClock clock;
  SimNetwork network{clock, 1};
  Loop loop{&clock};
  FakeGpu gpu{kGpuBytes};
  std::optional<verbs::FakeVerbs> verbs;
  std::unique_ptr<sim::SimNode> node;
  ClientConfig config = repeatable_config();
  std::unique_ptr<Client> client;
  const NamespaceRecord record = test_record(kBlockBytes);
  const std::vector<BlockHash> chain = test_chain(record, kCount);
  Space space{};
  std::vector<std::span<std::byte>> to;          ///< In the GPU's addresses.
  std::vector<std::span<const std::byte>> from;  ///< The same.
  std::vector<std::span<std::byte>> seen;        ///< As the GPU sees them.
  std::vector<std::uint64_t> sums;
};

TEST_F(DeviceMemoryTest, BlocksGoBothWaysAndOurProcessorTouchesNone) {
  start_and_lend();
  put_all();
  const std::uint64_t before = verbs->packet_count();
  EXPECT_EQ(get().block_count, kCount);
  EXPECT_GT(verbs->packet_count(), before + kCount);
  EXPECT_EQ(get_to_host().block_count, kCount) << "what was put out of the GPU is what others get";
  EXPECT_EQ(remove(), error_code());
}

TEST_F(DeviceMemoryTest, PartsOfADmabufInSlicesAreEnough) {
  constexpr std::size_t kOffset = 4096;
  verbs::FakeOptions options;
  options.limits.region_bytes_max = 1'000'000;
  auto store = small_store();
  store.arena.capacity_bytes = 32 << 20;
  start(options, store);
  const auto addresses = gpu.addresses().subspan(kOffset);
  ASSERT_TRUE(client->add_device_memory({addresses, gpu.dmabuf(), kOffset}));
  use(addresses, gpu.memory().subspan(kOffset));
  ASSERT_EQ(loop.run(client->lend(addresses, 5s)).value(), 1u);
  put_all();
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(DeviceMemoryTest, TheDmabufIsOnlyBorrowedForTheCall) {
  start();
  const int copy = ::fcntl(gpu.dmabuf(), F_DUPFD_CLOEXEC, 0);
  ASSERT_TRUE(client->add_device_memory({.bytes = gpu.addresses(), .dmabuf_fd = copy}));
  ::close(copy);
  use(gpu.addresses(), gpu.memory());
  ASSERT_EQ(lend(), 1u);
  put_all();
  EXPECT_EQ(get().block_count, kCount);
  EXPECT_EQ(client->add_device_memory({.bytes = to[0], .dmabuf_fd = 1'000'000}).error().value(), EBADF);
}

TEST_F(DeviceMemoryTest, EachSegmentComesWithItsChecksums) {
  start_and_lend();
  put_all();
  struct Seen {
    DeviceMemoryTest& test;
    std::span<const std::uint64_t> sums;
    std::vector<std::size_t> counts = {};
    bool is_right = true;
  } arrived{*this, sums};
  const std::uint64_t ends[] = {kStripeBytes, 3 * kStripeBytes, kBlockBytes};
  const auto on_segment = [](void* context, std::size_t segment, std::size_t block_count) {
    auto& [test, told, counts, is_right] = *static_cast<Seen*>(context);
    counts.push_back(block_count);
    const std::size_t first = segment == 0 ? 0 : segment == 1 ? 1 : 3, last = segment == 0 ? 1 : segment == 1 ? 3 : 5;
    for (std::size_t i = 0; i < block_count; ++i) {
      for (std::size_t s = first; s < last; ++s) {
        const auto bytes = std::min(kStripeBytes, kBlockBytes - s * kStripeBytes);
        const auto stripe = test.seen[i].subspan(s * kStripeBytes, bytes);
        is_right = is_right && stripe_checksum(test.seed_at(i), s, stripe) == told[i * kStripes + s];
      }
    }
  };
  GetOptions options = get_options();
  options.segment_ends = ends;
  options.on_segment = {on_segment, &arrived};
  EXPECT_EQ(loop.run(client->get(space, chain, to, options))->block_count, kCount);
  EXPECT_EQ(arrived.counts, std::vector<std::size_t>(3, kCount));
  EXPECT_TRUE(arrived.is_right);
  expect_right(kCount);
}

TEST_F(DeviceMemoryTest, WithoutChecksumsNothingIsAsked) {
  start_and_lend();
  fill();
  EXPECT_EQ(loop.run(client->put(space, chain, from, {.deadline = 5s})).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->get(space, chain, to, {.deadline = 5s})).error(), Errc::kBadRequest);
  sums.pop_back();
  PutOptions options{.deadline = 5s};
  options.checksums = sums;
  EXPECT_EQ(loop.run(client->put(space, chain, from, options)).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->get(space, chain, to, get_options())).error(), Errc::kBadRequest);
  EXPECT_EQ(node->stats().block_count, 0u);
}

TEST_F(DeviceMemoryTest, WrongChecksumsAreRefusedByTheNode) {
  start_and_lend();
  fill();
  sums[10 * kStripes + 4] ^= 1;
  const PutResult stored = put();
  EXPECT_LT(stored.stored, kCount);
  EXPECT_EQ(stored.why, make_error_code(Errc::kCorruptBlock)) << stored.why.message();
  EXPECT_EQ(get().block_count, 10u) << "those before it";
  EXPECT_EQ(node->check(), "");
}

TEST_F(DeviceMemoryTest, ABlockThatChangedAfterItsChecksumIsRefusedToo) {
  start_and_lend();
  fill();
  seen[0][kBlockBytes - 1] ^= std::byte{1};
  const PutResult stored = put();
  EXPECT_EQ(stored.stored, 0u);
  EXPECT_EQ(stored.why, make_error_code(Errc::kCorruptBlock)) << stored.why.message();
}

TEST_F(DeviceMemoryTest, BlocksPartlyInItAreRefused) {
  start_and_lend();
  fill();
  const auto host = client->allocate(kBlockBytes).value();
  std::vector<std::byte> plain(kBlockBytes);
  FakeGpu other(2 * kBlockBytes);
  ASSERT_TRUE(client->add_device_memory({.bytes = other.addresses(), .dmabuf_fd = other.dmabuf()}));
  const std::span<std::byte> straddling{other.addresses().data() + kBlockBytes + 1, kBlockBytes};
  const auto before_it = reinterpret_cast<std::uintptr_t>(other.addresses().data()) - 1;
  const std::span<std::byte> early{reinterpret_cast<std::byte*>(before_it), kBlockBytes};
  for (const auto& second : {host, std::span(plain), other.addresses().first(kBlockBytes), straddling, early}) {
    const std::span<std::byte> mixed[] = {to[0], second};
    const std::span<const std::byte> sources[] = {to[0], second};
    std::vector<std::uint64_t> two(2 * kStripes);
    GetOptions get{.deadline = 5s};
    get.checksums = two;
    PutOptions put{.deadline = 5s};
    put.checksums = two;
    const auto names = std::span(chain).first(2);
    EXPECT_EQ(loop.run(client->get(space, names, mixed, get)).error(), Errc::kBadRequest);
    EXPECT_EQ(loop.run(client->put(space, names, sources, put)).error(), Errc::kBadRequest);
  }
  const std::span<std::byte> alone[] = {straddling};
  EXPECT_EQ(loop.run(client->get(space, std::span(chain).first(1), alone, {.deadline = 5s})).error(),
            Errc::kBadRequest);
}

TEST_F(DeviceMemoryTest, WhatIsNotLentYetIsUnavailable) {
  start();
  add_gpu();
  fill();
  const PutResult stored = put();
  EXPECT_EQ(stored.stored, 0u);
  EXPECT_EQ(stored.why, make_error_code(Errc::kUnavailable)) << stored.why.message();
  EXPECT_EQ(get().why, make_error_code(Errc::kUnavailable));
  EXPECT_TRUE(is_wiped());
  ASSERT_EQ(lend(), 1u);
  put_all();
  EXPECT_EQ(get().block_count, kCount);
  EXPECT_FALSE(client->nodes()[0].breaker_open) << "the node is well";
}

TEST_F(DeviceMemoryTest, ANodeOnAUnixSocketCannotHaveIt) {
  network.set_passes_descriptors(true);
  start();
  add_gpu();
  EXPECT_EQ(lend(), 0u);
  fill();
  EXPECT_EQ(put().why, make_error_code(Errc::kNoRegion));
  EXPECT_EQ(get().why, make_error_code(Errc::kNoRegion));
  EXPECT_EQ(remove(), error_code());
}

TEST_F(DeviceMemoryTest, WithoutDmabufItIsRegisteredByItsAddresses) {
  start({.takes_dmabuf = false});
  use(gpu.memory(), gpu.memory());  // as nvidia-peermem would, the provider reaches what the processor's addresses name
  ASSERT_TRUE(client->add_device_memory({.bytes = gpu.memory(), .dmabuf_fd = gpu.dmabuf()}));
  ASSERT_EQ(loop.run(client->lend(gpu.memory(), 5s)).value(), 1u);
  put_all();
  EXPECT_EQ(get().block_count, kCount);
  ASSERT_TRUE(loop.run(client->remove_device_memory(gpu.memory(), 5s)));
  ASSERT_TRUE(client->add_device_memory({.bytes = gpu.memory()}));  // and without one
  ASSERT_EQ(loop.run(client->lend(gpu.memory(), 5s)).value(), 1u);
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(DeviceMemoryTest, WhatCannotBeRegisteredIsToldWithBothWays) {
  auto store = small_store();
  store.arena.capacity_bytes = 4 << 20;
  start({.registered_bytes_max = 5'000'000, .takes_dmabuf = false}, store);
  add_gpu();
  EXPECT_EQ(lend(), 0u);
  EXPECT_THAT(client->nodes()[0].rdma_text,
              testing::AllOf(testing::HasSubstr("fake2"), testing::HasSubstr("dma-buf: not with this device"),
                             testing::HasSubstr("nvidia-peermem: bytes: 10000000")));
  EXPECT_EQ(get().why, make_error_code(Errc::kNoRegion));
  EXPECT_EQ(remove(), error_code());
}

TEST_F(DeviceMemoryTest, WithoutTheNodesDevicesNothingMoves) {
  start_and_lend();
  put_all();
  verbs->remove_device("fake0");
  verbs->remove_device("fake1");
  for (int i = 0; i < 3; ++i) {
    const GetResult got = get();
    EXPECT_EQ(got.block_count, 0u);
    EXPECT_EQ(got.why, make_error_code(Errc::kUnavailable)) << got.why.message();
    EXPECT_TRUE(is_wiped());
    EXPECT_EQ(put().why, make_error_code(Errc::kUnavailable));
  }
  EXPECT_EQ(get_to_host().block_count, kCount) << "on the same connection";
  EXPECT_EQ(client->nodes()[0].reconnects, 0u);
}

TEST_F(DeviceMemoryTest, BytesThatANodeWithoutLanesSendsAreSwallowed) {
  start_and_lend();
  put_all();
  ASSERT_EQ(loop.run(client->drop(space, std::span(chain).first(kCount - 3), 5s)).value().block_count, 4u);
  fill();
  for (const char* device : {"fake0", "fake1"}) verbs->set_link(device, false);
  EXPECT_EQ(put(100ms).why, make_error_code(asio::error::timed_out));
  loop.run_for(5s);  // the node gives its lanes up, with nobody to tell
  for (const char* device : {"fake0", "fake1"}) verbs->set_link(device, true);
  ASSERT_EQ(client->nodes()[0].rdma_lanes, 2u) << "as the client believes";
  const TimePoint before = clock.now();
  const GetResult got = get();
  EXPECT_EQ(got.block_count, 0u);
  EXPECT_EQ(got.why, make_error_code(Errc::kUnavailable)) << got.why.message();
  EXPECT_TRUE(is_wiped());
  EXPECT_LT(clock.now() - before, 5s) << "it ends with the node's answer, not with its deadline";
  EXPECT_EQ(get_to_host().block_count, kCount - 4) << "on the same connection";
  EXPECT_EQ(client->nodes()[0].reconnects, 0u);
  loop.run_for(10s);
  ASSERT_EQ(lend(), 1u);
  EXPECT_EQ(get().block_count, kCount - 4) << "once the lanes are made anew";
}

TEST_F(DeviceMemoryTest, ABrokenLaneCostsOneShortGet) {
  start_and_lend();
  put_all();
  verbs->fail_next("fake0", verbs::Status::kRetryExceeded);
  const GetResult got = get();
  EXPECT_LT(got.block_count, kCount);
  EXPECT_EQ(got.why, make_error_code(Errc::kUnavailable)) << got.why.message();
  EXPECT_FALSE(client->is_quarantined(gpu.addresses()));
  EXPECT_EQ(get().block_count, kCount) << "over the other lane";
}

TEST_F(DeviceMemoryTest, AConnectionThatHasNoLanesLeavesItToOneThatHas) {
  config.rdma_lanes = 1;
  start({}, small_store(), /*connections=*/2);
  add_gpu();
  ASSERT_EQ(lend(), 2u);
  put_all();
  verbs->fail_next("fake0", verbs::Status::kRetryExceeded);
  EXPECT_LT(get().block_count, kCount);
  ASSERT_EQ(client->nodes()[0].rdma_lanes, 1u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(get().block_count, kCount);
}

TEST_F(DeviceMemoryTest, BlocksOnDiskEndTheResult) {
  StoreConfig store = small_store(16 << 20);
  store.disk.capacity_bytes = 256 << 20;
  store.spill.write_through = true;
  start({}, store);
  add_gpu();
  ASSERT_EQ(lend(), 1u);
  put_all();
  const auto other = test_chain(record, 30, /*seed=*/99);  // pushes some of the chain out of memory
  Blocks more(30, kBlockBytes);
  more.fill(other);
  loop.run_for(5s);
  ASSERT_GT(loop.run(client->put(space, other, more.from, {.deadline = 5s}))->stored, 0u);
  loop.run_for(5s);
  const MatchResult match = loop.run(client->match(space, chain, {.deadline = 5s})).value();
  ASSERT_GT(match.disk_block_count, 0u);
  const GetResult got = get();
  EXPECT_EQ(got.block_count, match.block_count - match.disk_block_count);
  EXPECT_FALSE(got.why) << "as with memory_only: " << got.why.message();
  EXPECT_EQ(node->stats().get_disk_blocks, 0u) << "nothing is read in vain";
}

TEST_F(DeviceMemoryTest, OnlyOwnAndWholeRegionsAreAddedAndRemoved) {
  config.region_bytes_max = kGpuBytes + 100'000;
  start();
  add_gpu();
  const auto bytes = gpu.addresses();
  EXPECT_EQ(client->add_device_memory({.bytes = bytes}).error(), Errc::kBadRequest);
  EXPECT_EQ(client->add_device_memory({.bytes = bytes.last(1)}).error(), Errc::kBadRequest);
  EXPECT_EQ(client->add_device_memory({.bytes = {}}).error(), Errc::kBadRequest);
  FakeGpu other(1 << 20);
  EXPECT_EQ(client->add_device_memory({.bytes = other.addresses()}).error(), Errc::kBusy);
  EXPECT_EQ(client->allocate(1 << 20).error(), Errc::kBusy);
  EXPECT_EQ(client->free_memory(bytes).error(), Errc::kBadRequest);
  const auto host = client->allocate(4096).value();
  EXPECT_EQ(loop.run(client->remove_device_memory(host, 5s)).error(), Errc::kBadRequest);
  EXPECT_EQ(loop.run(client->remove_device_memory(bytes.first(4096), 5s)).error(), Errc::kBadRequest);
  EXPECT_EQ(remove(), error_code()) << "never lent";
  EXPECT_EQ(remove(), make_error_code(Errc::kBadRequest));
  EXPECT_TRUE(client->allocate(1 << 20)) << "its bytes are free again";
}

TEST_F(DeviceMemoryTest, MemoryOfACallInProgressStays) {
  start_and_lend();
  put_all();
  bool is_over = false;
  const GetOptions options = get_options();
  asio::co_spawn(loop.context(), client->get(space, chain, to, options),
                 [&](std::exception_ptr, Result<GetResult> got) { is_over = got && got->block_count == kCount; });
  const std::uint64_t before = verbs->packet_count();
  loop.run_until([&] { return verbs->packet_count() > before + 20; });
  EXPECT_EQ(remove(), make_error_code(Errc::kBusy));
  loop.run_until([&] { return is_over; });
  EXPECT_EQ(remove(), error_code());
  expect_out_of_reach();
}

TEST_F(DeviceMemoryTest, QuarantinedMemoryIsOutOfReachOnceItIsRemoved) {
  start_and_lend();
  put_all();
  EXPECT_LT(get(200us).block_count, kCount);
  ASSERT_TRUE(client->is_quarantined(gpu.addresses()));
  const GetOptions options = get_options();
  EXPECT_EQ(loop.run(client->get(space, chain, to, options)).error(), Errc::kQuarantined);
  EXPECT_EQ(remove(), error_code());
  expect_out_of_reach();
  EXPECT_FALSE(client->is_quarantined(gpu.addresses()));
  add_gpu();  // the same addresses, lent anew
  loop.run_for(10s);
  ASSERT_EQ(lend(), 1u);
  EXPECT_EQ(get().block_count, kCount);
}

TEST_F(DeviceMemoryTest, ARemovalThatMissedItsDeadlineIsAskedForAgain) {
  start_and_lend();
  put_all();
  EXPECT_EQ(remove(0us), make_error_code(asio::error::timed_out)) << "the device is asked on another thread, as a rule";
  EXPECT_TRUE(client->is_quarantined(gpu.addresses().last(1)));
  const GetOptions options = get_options();
  EXPECT_EQ(loop.run(client->get(space, chain, to, options)).error(), Errc::kQuarantined);
  EXPECT_EQ(loop.run(client->lend(gpu.addresses(), 5s)).error(), Errc::kQuarantined);
  EXPECT_EQ(client->add_device_memory({.bytes = gpu.addresses()}).error(), Errc::kBadRequest);
  loop.run_for(1s);
  EXPECT_EQ(remove(0us), error_code()) << "it has gone meanwhile";
  EXPECT_EQ(remove(0us), make_error_code(Errc::kBadRequest));
  expect_out_of_reach();
}

TEST_F(DeviceMemoryTest, ANodeKilledInTheMiddleWritesNothingLater) {
  start_and_lend();
  put_all();
  bool is_over = false;
  const GetOptions options = get_options();
  asio::co_spawn(loop.context(), client->get(space, chain, to, options),
                 [&](std::exception_ptr, Result<GetResult>) { is_over = true; });
  const std::uint64_t before = verbs->packet_count();
  loop.run_until([&] { return verbs->packet_count() > before + 20; });
  node->kill();
  loop.run_until([&] { return is_over; });
  EXPECT_FALSE(client->is_quarantined(gpu.addresses())) << "the client has cut its lanes";
  wipe();
  loop.run_for(20s);
  EXPECT_TRUE(is_wiped());
  EXPECT_EQ(remove(), error_code());
}

TEST_F(DeviceMemoryTest, ChecksumsAreToldOfHostMemoryToo) {
  start();
  Blocks host(kCount, kBlockBytes);
  host.fill(chain);
  seen = host.to;
  fill();
  PutOptions put{.deadline = 5s};
  put.checksums = sums;
  ASSERT_EQ(loop.run(client->put(space, chain, host.from, put))->stored, kCount);
  host.clear();
  sums.assign(sums.size(), 0);
  EXPECT_EQ(loop.run(client->get(space, chain, host.to, get_options()))->block_count, kCount);
  expect_right(kCount);
  sums.back() ^= 1;
  put.checksums = sums;
  EXPECT_EQ(loop.run(client->drop(space, chain, 5s)).value().block_count, 1u);
  const PutResult stored = loop.run(client->put(space, chain, host.from, put)).value();
  EXPECT_EQ(stored.stored, 0u);
  EXPECT_EQ(stored.why, make_error_code(Errc::kCorruptBlock)) << "they are taken at their word";
}

TEST_F(DeviceMemoryTest, RandomFaultsNeverDeliverAWrongByteNorAWriteAfterTheEnd) {
  const std::uint64_t seed = seed_or(1);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto chance = [&](double probability) { return std::bernoulli_distribution(probability)(random); };
  config = repeatable_config(seed | 1);
  start({.seed = seed});
  add_gpu();
  ASSERT_EQ(lend(), 1u);
  put_all();
  verbs->set_fault_probability(0.0003);
  std::size_t full_count = 0, short_count = 0, removed_count = 0;
  for (int i = 0; i < 150; ++i) {
    if (chance(0.1)) {
      verbs->set_link("fake0", false);
      verbs->set_link("fake1", false);
    }
    const std::chrono::microseconds deadline(chance(0.3) ? 100 + random() % 20'000 : 200'000);
    if (chance(0.3)) {
      if (chance(0.5)) {  // else it is known, mostly
        const auto dropped = loop.run(client->drop(space, std::span(chain).first(1 + random() % kCount), 5s));
        if (!dropped) {
          EXPECT_EQ(dropped.error(), Errc::kUnavailable) << "after several missed deadlines in a row";
        }
      }
      fill();
      const PutResult stored = put(deadline);
      EXPECT_NE(stored.why, make_error_code(Errc::kCorruptBlock));
    } else {
      const GetResult got = get(deadline);
      ++(got.block_count == kCount ? full_count : short_count);
    }
    verbs->set_link("fake0", true);
    verbs->set_link("fake1", true);
    if (chance(0.15)) {
      ASSERT_EQ(remove(), error_code());
      expect_out_of_reach();
      add_gpu();
      ++removed_count;
    }
    loop.run_until([&] { return !client->is_quarantined(gpu.addresses()); });
    if (chance(0.8)) loop.run_for(std::chrono::milliseconds(random() % 200));
    if (chance(0.7)) lend();
    EXPECT_EQ(node->check(), "");
  }
  EXPECT_GT(full_count, 0u);
  EXPECT_GT(short_count, 0u);
  EXPECT_GT(removed_count, 0u);
}

}  // namespace
}  // namespace kv
