#include "transport/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace kv {
namespace {

using testing::HasSubstr;

std::size_t descriptor_count() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

Descriptor make_memfd(std::size_t bytes, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  Descriptor fd(::memfd_create("kvstore-test", MFD_CLOEXEC | flags));
  EXPECT_TRUE(fd);
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

void expect_refused(const Descriptor& fd, std::uint64_t bytes, const std::string& reason) {
  std::string why;
  const auto region = MappedRegion::map(fd, bytes, &why);
  ASSERT_FALSE(region) << reason;
  EXPECT_EQ(region.error(), Errc::kNoRegion);
  EXPECT_THAT(why, HasSubstr(reason));
}

TEST(SharedMemoryTest, WhatOneSideWritesTheOtherReads) {
  const auto memory = SharedMemory::create(3 * 4096 + 5).value();
  Descriptor passed(::dup(memory->fd()));
  std::string why;
  const auto region = MappedRegion::map(passed, memory->bytes().size(), &why);
  ASSERT_TRUE(region) << why;
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
    std::string why;
    const auto region = MappedRegion::map(Descriptor(::dup(memory->fd())), 1 << 20, &why);
    EXPECT_TRUE(region);
  }
  EXPECT_EQ(descriptor_count(), before);
}

TEST(MappedRegionTest, ShrinkSealAloneIsEnough) {
  std::string why;
  EXPECT_TRUE(MappedRegion::map(make_memfd(4096, F_SEAL_SHRINK), 4096, &why)) << why;
  EXPECT_TRUE(MappedRegion::map(make_memfd(8192, F_SEAL_SHRINK), 4096, &why)) << "a part may be lent: " << why;
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
  expect_refused(fd, 2 << 20, "ordinary pages");
}

TEST(MappedRegionTest, MemoryMapOutlivesItsDescriptor) {
  auto memory = SharedMemory::create(4096).value();
  memory->bytes()[17] = std::byte{42};
  std::string why;
  const auto region = MappedRegion::map(Descriptor(::dup(memory->fd())), 4096, &why);
  ASSERT_TRUE(region);
  memory.reset();
  EXPECT_EQ((*region)->bytes()[17], std::byte{42});
}

}  // namespace
}  // namespace kv
