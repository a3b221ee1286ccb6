// Memory that is lent in bad faith: none at all, holes without end, somebody else's file, gone while it is used.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"
#include "transport/shared_memory.h"

namespace kv::attack {
namespace {

constexpr std::size_t kBlock = 64 << 10;

class RegionTest : public AttackTest {
 protected:
  void SetUp() override {
    start();
    add_bystander(Transport::kShm);
    attacker = std::make_unique<Attacker>(Attacker::greeted(node->unix_socket()));
    space = attacker->open(record);
    ASSERT_EQ(attacker->put(space, record, chain, std::byte{1}), chain.size());
  }
  void TearDown() override {
    attacker.reset();
    AttackTest::TearDown();
  }
  /// Sealed as the node wants it, of so many bytes, without a page.
  static Descriptor sparse(std::uint64_t bytes, int seals = F_SEAL_SHRINK, unsigned flags = 0) {
    Descriptor fd(::memfd_create("attack", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    EXPECT_TRUE(fd);
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    }
    return fd;
  }
  Offsets spread(std::uint64_t step) const {
    Offsets offsets(chain.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * step;
    return offsets;
  }
  /// The whole put from a region, announced at once.
  e2e::RawSession::Answer put_from(std::uint32_t region, Hashes hashes, const Offsets& offsets, std::byte byte) {
    attacker->send(FrameType::kPut, 20, put_request(space, hashes, region, offsets));
    const auto first = attacker->read_answer();
    if (!first) throw std::runtime_error("the node ended the session");
    if (first->is_last()) return *first;
    const auto* want = read_table<wire::PutWant>(first->table);
    const auto wanted = hashes.subspan(want->first_block(), want->block_count());
    attacker->send(FrameType::kPutData, 20, put_data(want->block_count(), sums_of(record, wanted, byte)));
    return attacker->last_answer(20);
  }

  NamespaceRecord record = record_of(kBlock, "regions");
  std::vector<BlockHash> chain = e2e::make_chain(3, 32);
  std::unique_ptr<Attacker> attacker;
  OpenedSpace space;
};

TEST_F(RegionTest, WhatIsNoMemfdOfOrdinaryPagesIsRefused) {
  const e2e::TempDir directory;
  const std::string path = directory.path() + "/file";
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  std::vector<std::pair<std::string, Descriptor>> fds;
  fds.emplace_back("pipe, read", Descriptor(pipe_ends[0]));
  fds.emplace_back("pipe, write", Descriptor(pipe_ends[1]));
  fds.emplace_back("socket", Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  fds.emplace_back("/dev/zero", Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC)));
  fds.emplace_back("/dev/null", Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  fds.emplace_back("directory", Descriptor(::open(directory.path().c_str(), O_RDONLY | O_CLOEXEC)));
  fds.emplace_back("eventfd", Descriptor(::eventfd(0, EFD_CLOEXEC)));
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), 1 << 20), 0);
  fds.emplace_back("file", std::move(file));
  Descriptor path_only(::open(path.c_str(), O_PATH | O_CLOEXEC));
  fds.emplace_back("O_PATH", std::move(path_only));
  const std::string shm = "/dev/shm/kvstore-attack-" + std::to_string(::getpid());
  Descriptor tmpfs(::open(shm.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (tmpfs) {
    ::unlink(shm.c_str());
    ASSERT_EQ(::ftruncate(tmpfs.get(), 1 << 20), 0);
    fds.emplace_back("tmpfs file", std::move(tmpfs));
  }
  fds.emplace_back("unsealed", sparse(1 << 20, 0));
  fds.emplace_back("sealed against growing only", sparse(1 << 20, F_SEAL_GROW));
  fds.emplace_back("sealed against writing", sparse(1 << 20, F_SEAL_SHRINK | F_SEAL_WRITE));
  fds.emplace_back("too small", sparse((1 << 20) - 1));
  const Descriptor whole = sparse(1 << 20);
  fds.emplace_back("for reading only",
                   Descriptor(::open(("/proc/self/fd/" + std::to_string(whole.get())).c_str(), O_RDONLY | O_CLOEXEC)));
  // A huge page that is missing would be a SIGBUS in the node.
  Descriptor huge(::memfd_create("attack", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge && ::ftruncate(huge.get(), 2 << 20) == 0 && ::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0)
    fds.emplace_back("huge pages", std::move(huge));
  for (const auto& [name, fd] : fds) {
    ASSERT_TRUE(fd) << name;
    const auto answer = attacker->lend(fd.get(), 1 << 20);
    EXPECT_TRUE(answer.is_error()) << name;
    attacker->ping();
  }
  EXPECT_TRUE(attacker->ask(FrameType::kRegionAdd, 5, region_add(4096)).is_error()) << "no descriptor at all";
  expect_bystanders_served();
}

TEST_F(RegionTest, SizesAtTheEdgesAreRefusedOrHold) {
  const auto memory = SharedMemory::create(1 << 20).value();
  for (const std::uint64_t bytes : {std::uint64_t{0}, (std::uint64_t{1} << 20) + 1, std::uint64_t{1} << 40,
                                    std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 4095}) {
    EXPECT_TRUE(attacker->lend(memory->fd(), bytes).is_error()) << bytes;
  }
  EXPECT_FALSE(attacker->lend(memory->fd(), 1).is_error());
  EXPECT_FALSE(attacker->lend(memory->fd(), 4097).is_error());
  EXPECT_FALSE(attacker->lend(memory->fd(), 1 << 20).is_error());
}

/// Terabytes of holes: none of them become memory of the node's, and nobody waits while they are mapped.
TEST_F(RegionTest, HolesWithoutEndAreNobodysMemory) {
  for (std::uint64_t bytes = 1 << 30; bytes <= std::uint64_t{1} << 44; bytes *= 2) {
    const Descriptor fd = sparse(bytes);
    const auto answer = attacker->lend(fd.get(), bytes);
    EXPECT_TRUE(answer.is_error()) << bytes << " bytes";
    for (const std::uint64_t at : {std::uint64_t{0}, bytes / 2, bytes - 1})  // a page here and there changes nothing
      EXPECT_EQ(::pwrite(fd.get(), "x", 1, static_cast<off_t>(at)), 1);
    EXPECT_TRUE(attacker->lend(fd.get(), bytes).is_error()) << bytes << " bytes";
  }
  expect_bystanders_served();
}

TEST_F(RegionTest, OneDescriptorLentManyTimesIsRefusedAtALimitAndGivenBack) {
  const auto memory = SharedMemory::create(kBlock).value();
  std::vector<std::uint32_t> regions;
  for (int i = 0; i < 400; ++i) {
    const auto answer = attacker->lend(memory->fd(), kBlock);
    if (!answer.is_error()) regions.push_back(read_table<wire::RegionResponse>(answer.table)->region());
  }
  EXPECT_LT(regions.size(), 400u);
  EXPECT_GT(regions.size(), 0u);
  for (const std::uint32_t region : regions) {
    attacker->send(FrameType::kRegionRemove, 7, region_remove(region));
    attacker->send(FrameType::kRegionRemove, 8, region_remove(region));
    EXPECT_FALSE(attacker->last_answer(7).is_error());
    EXPECT_TRUE(attacker->last_answer(8).is_error()) << "removed twice";
  }
  EXPECT_EQ(attacker->ask(FrameType::kGet, 9, get_request(space, chain, regions[0], spread(0))).error_code(),
            Errc::kNoRegion);
}

TEST_F(RegionTest, DescriptorsThatNobodyAskedForAreClosed) {
  const Descriptor memory = sparse(4096);
  const Bytes ping = frame_bytes(FrameType::kPing, 7, ping_request());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(attacker->send_with_descriptor(ping, memory.get()));
    attacker->last_answer(7);
  }
  EXPECT_LT(use_of(node->pid()).descriptor_count, 100u);
}

TEST_F(RegionTest, OffsetsAtTheEdgesAreRefusedOrHold) {
  const auto memory = SharedMemory::create(chain.size() * kBlock).value();
  const std::uint64_t size = memory->bytes().size();
  const std::uint32_t region = attacker->lent(memory->fd(), size);
  const auto get_at = [&](std::uint64_t offset) {
    Offsets offsets = spread(kBlock);
    offsets.back() = offset;
    return attacker->ask(FrameType::kGet, 9, get_request(space, chain, region, offsets));
  };
  for (const std::uint64_t offset :
       {size - kBlock + 1, size - 1, size, size + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - kBlock,
        ~std::uint64_t{0} - kBlock + 1, std::uint64_t{1} << 63, std::uint64_t{1} << 32}) {
    EXPECT_EQ(get_at(offset).error_code(), Errc::kNoRegion) << offset;
  }
  for (const std::uint64_t offset : {size - kBlock, std::uint64_t{1}, std::uint64_t{0}})
    EXPECT_FALSE(get_at(offset).is_error()) << offset;
  EXPECT_FALSE(
      attacker->ask(FrameType::kGet, 9, get_request(space, chain, region, spread(0))).is_error());  // all in one place
  EXPECT_EQ(memory->bytes()[0], std::byte{1});
  for (const std::size_t count : {std::size_t{0}, chain.size() - 1, chain.size() + 1}) {
    EXPECT_EQ(attacker->ask(FrameType::kGet, 9, get_request(space, chain, region, Offsets(count))).error_code(),
              Errc::kBadRequest)
        << count;
  }
}

TEST_F(RegionTest, HolesPunchedUnderRunningTransfersHurtNobody) {
  const auto memory = SharedMemory::create(chain.size() * kBlock).value();
  const std::uint32_t region = attacker->lent(memory->fd(), memory->bytes().size());
  std::atomic<bool> is_over{false};
  std::thread punch([&] {
    while (!is_over) {
      ::fallocate(memory->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(memory->bytes().size()));
      EXPECT_NE(::ftruncate(memory->fd(), 0), 0) << "sealed against shrinking";
    }
  });
  for (std::uint64_t i = 0; i < 100; ++i) {
    // Served, or refused for the holes.
    const auto got = attacker->ask(FrameType::kGet, 9, get_request(space, chain, region, spread(kBlock)));
    EXPECT_TRUE(!got.is_error() || got.error_code() == Errc::kNoRegion) << got.error_text();
    put_from(region, e2e::make_chain(20 + i, 8), {0, 0, 1, 2, 3, 4, 5, 6}, std::byte{0});
  }
  is_over = true;
  punch.join();
  expect_bystanders_served();
}

TEST_F(RegionTest, BytesThatChangeWhileTheyAreTakenAreRefusedOrRight) {
  const auto memory = SharedMemory::create(8 * kBlock).value();
  const std::uint32_t region = attacker->lent(memory->fd(), memory->bytes().size());
  std::atomic<bool> is_over{false};
  std::thread scribble([&] {
    volatile std::byte* const bytes = memory->bytes().data();
    for (std::size_t i = 0; !is_over; i = (i + 997) % memory->bytes().size()) bytes[i] = bytes[i] ^ std::byte{1};
  });
  std::vector<BlockHash> offered;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto some = e2e::make_chain(200 + i, 8);
    put_from(region, some, {0, kBlock, 2 * kBlock, 3 * kBlock, 4 * kBlock, 5 * kBlock, 6 * kBlock, 7 * kBlock},
             std::byte{0});
    offered.push_back(some[0]);
  }
  is_over = true;
  scribble.join();
  for (const BlockHash& each : offered) {  // what is held is what its checksum says
    attacker->send(FrameType::kGet, 9, get_request(space, std::span(&each, 1)));
    for (auto answer = attacker->read_answer(); answer && !answer->is_last(); answer = attacker->read_answer()) {
      EXPECT_TRUE(std::all_of(answer->payload.begin(), answer->payload.end(),
                              [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
}

TEST_F(RegionTest, ARegionRemovedWhileItIsUsedIsAnsweredAfterItsLastUse) {
  const auto memory = SharedMemory::create(chain.size() * kBlock).value();
  for (int round = 0; round < 50; ++round) {
    const std::uint32_t region = attacker->lent(memory->fd(), memory->bytes().size());
    attacker->send(FrameType::kGet, 30, get_request(space, chain, region, spread(kBlock)));
    attacker->send(FrameType::kPut, 31,
                   put_request(space, e2e::make_chain(static_cast<std::uint64_t>(500 + round), 4), region, Offsets(4)));
    attacker->send(FrameType::kRegionRemove, 32, region_remove(region));
    attacker->send(FrameType::kGet, 33, get_request(space, chain, region, spread(kBlock)));
    attacker->send(FrameType::kRegionRemove, 34, region_remove(region));
    attacker->send(FrameType::kPutData, 31, put_data(99, {}));  // ends the put, the last user
    std::vector<std::uint64_t> order;
    while (order.size() < 5) {
      const auto answer = attacker->read_answer();
      ASSERT_TRUE(answer);
      if (!answer->is_last()) continue;
      order.push_back(answer->header.request_id);
      if (order.back() == 33 || order.back() == 34) {
        EXPECT_TRUE(answer->is_error());
      }
    }
    EXPECT_EQ(order.back(), 32u) << "the removal was answered while the region was in use";
  }
  expect_bystanders_served();
}

TEST_F(RegionTest, ASessionThatDiesInTheMiddleOfItsTransfersLeavesNothing) {
  const auto memory = SharedMemory::create(chain.size() * kBlock).value();
  for (int round = 0; round < 30; ++round) {
    Attacker one = Attacker::greeted(node->unix_socket());
    const OpenedSpace handle = one.open(record);
    const std::uint32_t region = one.lent(memory->fd(), memory->bytes().size());
    for (std::uint64_t id = 10; id < 30; ++id) {
      one.send(FrameType::kGet, 2 * id, get_request(handle, chain, region, spread(kBlock)));
      one.send(FrameType::kPut, 2 * id + 1, put_request(handle, e2e::make_chain(900 + id, 4), region, Offsets(4)));
    }
  }
  expect_bystanders_served();
}

}  // namespace
}  // namespace kv::attack
