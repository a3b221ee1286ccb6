#include "transport/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/transport/descriptor_count.h"

namespace kv {
namespace {

using testing::HasSubstr;

Descriptor make_memfd(std::size_t bytes, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  Descriptor fd(::memfd_create("kvstore-test", MFD_CLOEXEC | flags));
  EXPECT_TRUE(fd);
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  const std::vector<char> touched(bytes);
  EXPECT_EQ(::pwrite(fd.get(), touched.data(), bytes, 0), static_cast<ssize_t>(bytes));
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

void expect_refused(const Descriptor& fd, std::uint64_t bytes, const std::string& reason) {
  const auto region = MappedRegion::map(fd, bytes);
  ASSERT_FALSE(region) << reason;
  EXPECT_EQ(region.error(), Errc::kNoRegion);
  EXPECT_THAT(region.error().text, HasSubstr(reason));
}

TEST(SharedMemoryTest, WhatOneSideWritesTheOtherReads) {
  const auto memory = SharedMemory::create(3 * 4096 + 5).value();
  Descriptor passed(::dup(memory->fd()));
  const auto region = MappedRegion::map(passed, memory->bytes().size());
  ASSERT_TRUE(region) << region.error();
  ASSERT_EQ((*region)->bytes().size(), memory->bytes().size());
  std::memset(memory->bytes().data(), 0x5A, memory->bytes().size());
  EXPECT_EQ(std::memcmp((*region)->bytes().data(), memory->bytes().data(), memory->bytes().size()), 0);
  (*region)->bytes().back() = std::byte{0xA5};
  EXPECT_EQ(memory->bytes().back(), std::byte{0xA5});
}

TEST(SharedMemoryTest, CannotChangeItsSize) {
  const auto memory = SharedMemory::create(8192).value();
  EXPECT_NE(::ftruncate(memory->fd(), 4096), 0);
  EXPECT_NE(::ftruncate(memory->fd(), 16384), 0);
}

TEST(SharedMemoryTest, ZeroBytesAreRefused) { EXPECT_EQ(SharedMemory::create(0).error(), Errc::kBadRequest); }

TEST(SharedMemoryTest, BothSidesGiveTheirDescriptorsAndMappingsBack) {
  const std::size_t before = descriptor_count();
  for (int i = 0; i < 10; ++i) {
    const auto memory = SharedMemory::create(1 << 20).value();
    const auto region = MappedRegion::map(Descriptor(::dup(memory->fd())), 1 << 20);
    EXPECT_TRUE(region);
  }
  EXPECT_EQ(descriptor_count(), before);
}

TEST(MappedRegionTest, ShrinkSealAloneIsEnough) {
  EXPECT_TRUE(MappedRegion::map(make_memfd(4096, F_SEAL_SHRINK), 4096));
  EXPECT_TRUE(MappedRegion::map(make_memfd(8192, F_SEAL_SHRINK), 4096)) << "a part may be lent";
}

TEST(MappedRegionTest, MemoryThatCouldShrinkIsRefused) {
  expect_refused(make_memfd(4096, 0), 4096, "not sealed against shrinking");
  expect_refused(make_memfd(4096, F_SEAL_GROW), 4096, "not sealed against shrinking");
}

TEST(MappedRegionTest, AMemfdSmallerThanPromisedIsRefused) {
  expect_refused(make_memfd(4096, F_SEAL_SHRINK), 4097, "bytes: 4097, the memfd holds 4096");
  expect_refused(make_memfd(0, F_SEAL_SHRINK), 4096, "the memfd holds 0");
  expect_refused(make_memfd(4096, F_SEAL_SHRINK), UINT64_MAX, "18446744073709551615");
  expect_refused(make_memfd(4096, F_SEAL_SHRINK), 0, "bytes: 0");
}

TEST(MappedRegionTest, MemoryThatCannotBeWrittenIsRefused) {
  expect_refused(make_memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 4096, "mmap");
  const Descriptor writable = make_memfd(4096, F_SEAL_SHRINK);
  const std::string path = "/proc/self/fd/" + std::to_string(writable.get());
  expect_refused(Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), 4096, "mmap");
}

// -- holes: whoever touches one is charged for the page

void punch(const Descriptor& fd, std::size_t at, std::size_t bytes) {
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                        static_cast<off_t>(bytes)),
            0);
}
std::uint64_t memory_of(const Descriptor& fd) {
  struct stat status;
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(MappedRegionTest, AMemfdWithLessMemoryThanPromisedIsRefused) {
  Descriptor sparse(::memfd_create("kvstore-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(sparse.get(), off_t{1} << 40), 0);
  ASSERT_EQ(::fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  expect_refused(sparse, 1 << 20, "only 0 of the memfd have memory");
  const Descriptor holed = make_memfd(8 * 4096, F_SEAL_SHRINK);
  punch(holed, 4096, 4096);
  expect_refused(holed, 8 * 4096, "bytes: 32768, but only 28672");
  EXPECT_EQ(memory_of(holed), 7 * 4096u) << "and nobody touched it";
}

TEST(MappedRegionTest, AHoleIsFoundBehindMemoryOutsideTheRegion) {
  const Descriptor fd = make_memfd(8 * 4096, F_SEAL_SHRINK);
  punch(fd, 2 * 4096, 4096);
  const auto region = MappedRegion::map(fd, 4 * 4096);
  ASSERT_TRUE(region) << region.error();
  EXPECT_EQ((*region)->find_hole(), 2 * 4096u);
  const auto before = MappedRegion::map(fd, 2 * 4096);
  ASSERT_TRUE(before) << before.error();
  EXPECT_EQ((*before)->find_hole(), std::nullopt) << "the hole begins at its end";
}

TEST(MappedRegionTest, AHolePunchedLaterIsNoticedAndNeverFilled) {
  const Descriptor fd = make_memfd(8 * 4096, F_SEAL_SHRINK);
  const auto region = MappedRegion::map(fd, 8 * 4096);
  ASSERT_TRUE(region) << region.error();
  EXPECT_FALSE((*region)->has_lost_memory());
  punch(fd, 7 * 4096, 4096);
  EXPECT_TRUE((*region)->has_lost_memory());
  EXPECT_EQ(memory_of(fd), 7 * 4096u);
}

TEST(MappedRegionTest, MappingEntersNoPage) {
  constexpr std::size_t kBytes = 64 << 20;
  const auto memory = SharedMemory::create(kBytes).value();
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const long before = faults();
  const auto region = MappedRegion::map(Descriptor(::dup(memory->fd())), kBytes);
  ASSERT_TRUE(region) << region.error();
  EXPECT_LT(faults() - before, 1000) << "of 16,384 pages";
}

TEST(MappedRegionTest, IsUnmappedInPieces) {
  const Descriptor fd = make_memfd(10 * 4096 + 5, F_SEAL_SHRINK);
  const auto region = MappedRegion::map(fd, 10 * 4096 + 5);
  ASSERT_TRUE(region) << region.error();
  EXPECT_EQ((*region)->lent_bytes(), 10 * 4096 + 5u);
  std::size_t pieces = 1;
  for (; (*region)->unmap_some(3 * 4096); ++pieces) (*region)->bytes().back() = std::byte{1};
  EXPECT_EQ(pieces, 4u);
  EXPECT_FALSE((*region)->unmap_some(4096));
}

TEST(MappedRegionTest, OtherKindsOfDescriptorsAreRefused) {
  expect_refused(Descriptor(), 4096, "no descriptor");
  expect_refused(Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096, "memfd");
  expect_refused(Descriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4096, "not a memfd");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor out(ends[1]);
  expect_refused(Descriptor(ends[0]), 4096, "not a memfd");
  expect_refused(Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), 4096, "not a memfd");
}

TEST(MappedRegionTest, HugePagesAreRefusedSinceAMissingOneWouldKillTheNode) {
  const Descriptor fd(::memfd_create("kvstore-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd) GTEST_SKIP() << "no huge pages in this kernel";
  if (::ftruncate(fd.get(), 2 << 20) != 0) GTEST_SKIP() << "no huge page of 2 MiB";
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  expect_refused(fd, 2 << 20, "huge pages");
}

TEST(MappedRegionTest, MemoryMapOutlivesItsDescriptor) {
  auto memory = SharedMemory::create(4096).value();
  memory->bytes()[17] = std::byte{42};
  const auto region = MappedRegion::map(Descriptor(::dup(memory->fd())), 4096);
  ASSERT_TRUE(region);
  memory.reset();
  EXPECT_EQ((*region)->bytes()[17], std::byte{42});
}

}  // namespace
}  // namespace kv
