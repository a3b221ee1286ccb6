// Files that are written behind: every byte in its place, every error told before a file could count, never more than
// two buffers, whatever the file below does and whenever.
#include "store/node/disk/rocks/write_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <random>
#include <string>

namespace kv {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kBufferBytes = 4 * kAlignment;

/// What lies below: outlives its file, so that a test can look.
struct Below {
  std::mutex mutex;
  std::string bytes;
  std::size_t synced_bytes = 0;
  int calls = 0, failing_call = -1;  ///< Counts writes, truncations, syncs and the close.
  bool is_closed = false, is_destroyed = false;
  std::function<void(std::uint64_t offset)> before_write = [](std::uint64_t) {};

  IOStatus count_call() { return calls++ == failing_call ? IOStatus::NoSpace("told to fail") : IOStatus(); }
};

class BelowFile final : public rocksdb::FSWritableFile {
 public:
  explicit BelowFile(Below& below) : below_(below) {}
  ~BelowFile() override { below_.is_destroyed = true; }

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    below_.bytes.append(data.data(), data.size());
    return {};
  }
  IOStatus PositionedAppend(const Slice& data, std::uint64_t offset, const IOOptions&, IODebugContext*) override {
    below_.before_write(offset);
    const std::lock_guard lock(below_.mutex);
    EXPECT_FALSE(below_.is_closed || below_.is_destroyed);
    EXPECT_EQ(offset % kAlignment, 0u);
    EXPECT_EQ(data.size() % kAlignment, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data.data()) % kAlignment, 0u);
    if (IOStatus status = below_.count_call(); !status.ok()) return status;
    below_.bytes.resize(std::max<std::size_t>(below_.bytes.size(), offset + data.size()), 'x');
    std::memcpy(below_.bytes.data() + offset, data.data(), data.size());
    return {};
  }
  IOStatus Truncate(std::uint64_t bytes, const IOOptions&, IODebugContext*) override {
    if (IOStatus status = below_.count_call(); !status.ok()) return status;
    below_.bytes.resize(bytes, 'x');
    return {};
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return {}; }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    if (IOStatus status = below_.count_call(); !status.ok()) return status;
    below_.synced_bytes = below_.bytes.size();
    return {};
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override {
    below_.is_closed = true;
    return below_.count_call();
  }
  std::uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return below_.bytes.size(); }
  bool use_direct_io() const override { return true; }
  std::size_t GetRequiredBufferAlignment() const override { return kAlignment; }

 private:
  Below& below_;
};

class BelowFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit BelowFileSystem(Below& below) : FileSystemWrapper(rocksdb::FileSystem::Default()), below_(below) {}
  const char* Name() const override { return "below"; }
  IOStatus NewWritableFile(const std::string&, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* file, IODebugContext*) override {
    *file = std::make_unique<BelowFile>(below_);
    return {};
  }

 private:
  Below& below_;
};

class WriteBehindTest : public testing::Test {
 protected:
  std::unique_ptr<rocksdb::FSWritableFile> open(bool direct = true) {
    rocksdb::FileOptions options;
    options.use_direct_writes = direct;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    EXPECT_TRUE(system->NewWritableFile("file", options, &file, nullptr).ok());
    return file;
  }
  static std::string random_bytes(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string bytes(count, '\0');
    for (char& each : bytes) each = static_cast<char>(random());
    return bytes;
  }

  Below below;
  std::shared_ptr<rocksdb::FileSystem> system =
      write_behind(std::make_shared<BelowFileSystem>(below), {.buffer_bytes = kBufferBytes});
  const IOOptions none;
};

TEST_F(WriteBehindTest, EveryByteArrivesInItsPlaceHoweverItIsAppendedAndSynced) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::string bytes = random_bytes(random() % (6 * kBufferBytes), seed);
    below.bytes.clear();
    below.is_closed = below.is_destroyed = false;
    auto file = open();
    EXPECT_FALSE(file->use_direct_io());
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t most = random() % 4 == 0 ? 3 * kBufferBytes : random() % 2 == 0 ? 10 : kAlignment;
      const std::size_t count = std::min<std::size_t>(1 + random() % most, bytes.size() - at);
      ASSERT_TRUE(file->Append(Slice(bytes.data() + at, count), none, nullptr).ok());
      at += count;
      EXPECT_EQ(file->GetFileSize(none, nullptr), at);
      if (random() % 8 == 0) {
        ASSERT_TRUE((random() % 2 == 0 ? file->Sync(none, nullptr) : file->Fsync(none, nullptr)).ok());
        ASSERT_TRUE(below.bytes == bytes.substr(0, at)) << "what is synced is there, and nothing else";
        ASSERT_EQ(below.synced_bytes, at);
      }
      if (random() % 8 == 0) {
        ASSERT_TRUE(file->Flush(none, nullptr).ok());
      }
    }
    ASSERT_TRUE(file->Close(none, nullptr).ok());
    ASSERT_TRUE(below.bytes == bytes);
    ASSERT_TRUE(below.is_closed);
  }
}

TEST_F(WriteBehindTest, WhateverCallFailsBelowIsToldBeforeTheFileCouldCount) {
  const std::string bytes = random_bytes(5 * kBufferBytes + 100, 1);
  int failed_calls = 0;
  for (int failing = 0;; ++failing) {
    SCOPED_TRACE("call " + std::to_string(failing));
    below.calls = 0;
    below.failing_call = failing;
    below.bytes.clear();
    below.is_closed = below.is_destroyed = false;
    auto file = open();
    bool is_told = false;
    const auto see = [&](const IOStatus& status, const char* what) {
      if (is_told) {
        EXPECT_FALSE(status.ok()) << what << ": and from then on";
      }
      if (!status.ok()) {
        EXPECT_TRUE(status.IsNoSpace()) << what << ": as it was below";
        is_told = true;
      }
      return status.ok();
    };
    for (std::size_t at = 0; at < bytes.size(); at += 1000)
      see(file->Append(Slice(bytes.data() + at, std::min<std::size_t>(1000, bytes.size() - at)), none, nullptr),
          "append");
    const bool is_synced = see(file->Sync(none, nullptr), "sync");
    EXPECT_TRUE(!is_synced || below.bytes == bytes);
    see(file->Flush(none, nullptr), "flush");
    const bool is_closed = see(file->Close(none, nullptr), "close");
    EXPECT_TRUE(below.is_closed) << "closed whatever happened";
    EXPECT_NE(is_closed, is_told);
    if (failing >= below.calls) break;  // nothing failed
    ++failed_calls;
    EXPECT_TRUE(is_told);
  }
  EXPECT_EQ(failed_calls, 5 + 2 + 1 + 1) << "five buffers, a tail and its cut, a sync, a close";
}

TEST_F(WriteBehindTest, ACloseWithoutASyncTellsErrorsToo) {
  below.failing_call = 0;
  auto file = open();
  file->Append(std::string(kBufferBytes, 'a'), none, nullptr).PermitUncheckedError();
  EXPECT_TRUE(file->Close(none, nullptr).IsNoSpace());
}

TEST_F(WriteBehindTest, TheNextBufferIsFilledWhileTheDeviceIsBusy) {
  std::promise<void> let_go;
  below.before_write = [gate = let_go.get_future().share()](std::uint64_t) { gate.wait(); };
  auto file = open();
  EXPECT_TRUE(file->Append(std::string(kBufferBytes, 'a'), none, nullptr).ok());
  EXPECT_TRUE(file->Append(std::string(kBufferBytes - 1, 'b'), none, nullptr).ok()) << "hangs here otherwise";
  EXPECT_TRUE(file->Flush(none, nullptr).ok());
  EXPECT_EQ(file->GetFileSize(none, nullptr), 2 * kBufferBytes - 1);
  let_go.set_value();
  EXPECT_TRUE(file->Sync(none, nullptr).ok());
  EXPECT_EQ(below.bytes, std::string(kBufferBytes, 'a') + std::string(kBufferBytes - 1, 'b'));
}

TEST_F(WriteBehindTest, NeverMoreThanTwoBuffersAreHeld) {
  std::atomic<std::uint64_t> given = 0;
  below.before_write = [&](std::uint64_t offset) {
    EXPECT_LE(given, offset + 2 * kBufferBytes + 1) << "with what waits to be taken";
  };
  auto file = open();
  for (int i = 0; i < 20 * static_cast<int>(kBufferBytes); ++i) {
    ++given;
    ASSERT_TRUE(file->Append("x", none, nullptr).ok());
  }
  EXPECT_TRUE(file->Close(none, nullptr).ok());
}

TEST_F(WriteBehindTest, AFileThatIsGivenUpWaitsForItsWriteAndNoMore) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{10}, kBufferBytes, 3 * kBufferBytes - 1}) {
    below.is_destroyed = false;
    auto file = open();
    ASSERT_TRUE(file->Append(std::string(bytes, 'a'), none, nullptr).ok());
    file.reset();
    EXPECT_TRUE(below.is_destroyed);
  }
  EXPECT_EQ(below.calls, 0 + 0 + 1 + 2);
}

TEST_F(WriteBehindTest, FilesThatGoThroughThePageCacheAreLeftAlone) {
  auto file = open(/*direct=*/false);
  EXPECT_TRUE(file->Append("at once", none, nullptr).ok());
  EXPECT_EQ(below.bytes, "at once");
}

TEST_F(WriteBehindTest, WhatWouldNotBeAppendingIsRefused) {
  auto file = open();
  EXPECT_TRUE(file->Append("abc", none, nullptr).ok());
  EXPECT_TRUE(file->PositionedAppend("x", 0, none, nullptr).IsNotSupported());
  EXPECT_TRUE(file->Truncate(1, none, nullptr).IsNotSupported());
  EXPECT_TRUE(file->Truncate(3, none, nullptr).ok());
}

}  // namespace
}  // namespace kv
