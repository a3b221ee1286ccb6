#include "transport/frames/frame_writer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>

#include "tests/transport/memory_stream.h"
#include "tests/transport/sim_world.h"
#include "transport/frames/frame_reader.h"

namespace kv {
namespace {

class FrameWriterTest : public testing::Test {
 protected:
  SimWorld world;
  MemoryStream stream;
  FrameWriter writer{stream, world.io.get_executor()};

  static constexpr std::size_t kLarge = FrameWriter::kCopyBytes + 1;

  void send(std::uint64_t id, std::span<const std::byte> table = {}, std::span<const std::byte> payload = {},
            std::function<void(bool)> done = nullptr, int fd = -1, OwnerId owner = {}) {
    FrameHeader header;
    header.type = FrameType::kGet;
    header.request_id = id;
    const std::span<const std::byte> parts[] = {payload};
    writer.send(header, table, parts, std::move(done), fd, owner);
  }
  void spawn_run() { asio::co_spawn(world.io, writer.run(), asio::detached); }

  struct Message {
    std::uint64_t id;
    std::vector<std::byte> table, payload;
    friend bool operator==(const Message&, const Message&) = default;
  };
  class VectorSink final : public PayloadSink {
   public:
    explicit VectorSink(std::vector<std::byte>& to) : to_(to) {}
    std::size_t next(std::span<asio::mutable_buffer> buffers) override {
      buffers[0] = asio::buffer(to_.data() + at_, to_.size() - at_);
      return 1;
    }
    void filled(std::size_t bytes) override { at_ += bytes; }

   private:
    std::vector<std::byte>& to_;
    std::size_t at_ = 0;
  };
  static asio::awaitable<std::vector<Message>> decode(FrameReader& reader) {
    std::vector<Message> messages;
    while (const auto frame = co_await reader.next()) {
      Message message{frame->header.request_id, {frame->table.begin(), frame->table.end()}, {}};
      message.payload.resize(frame->header.payload_bytes);
      VectorSink sink(message.payload);
      const auto read = co_await reader.read_payload(sink);
      if (!read) break;
      messages.push_back(std::move(message));
    }
    co_return messages;
  }
  std::vector<Message> written() {
    MemoryStream back;
    back.input = stream.output;
    FrameReader reader(back);
    reader.set_limits({1 << 30, 1 << 30});
    return world.await(decode(reader)).value();
  }
};

TEST_F(FrameWriterTest, NothingIsWrittenBeforeFlush) {
  send(1);
  world.poll();
  EXPECT_EQ(stream.write_count, 0u);
  writer.flush();
  EXPECT_EQ(written().size(), 1u);
  EXPECT_EQ(writer.queued_bytes(), 0u);
}

TEST_F(FrameWriterTest, ABatchOfSmallFramesLeavesInOneCall) {
  for (std::uint64_t i = 0; i < 100; ++i) send(i, pattern(40, i), pattern(100, i));
  writer.flush();
  EXPECT_EQ(stream.write_count, 1u);
  EXPECT_EQ(written().size(), 100u);
}

TEST_F(FrameWriterTest, ASmallPayloadIsCopiedAndItsMemoryIsFreeAtOnce) {
  bool sent = false;
  auto payload = pattern(FrameWriter::kCopyBytes, 1);
  const auto original = payload;
  send(1, {}, payload, [&](bool whole) { sent = whole; });
  EXPECT_TRUE(sent);
  std::fill(payload.begin(), payload.end(), std::byte{0xDD});
  writer.flush();
  EXPECT_EQ(written().at(0).payload, original);
}

TEST_F(FrameWriterTest, ALargePayloadIsBorrowedUntilItsLastByteIsTaken) {
  const auto payload = pattern(kLarge, 1);
  int calls = 0;
  bool sent = false;
  send(1, {}, payload, [&](bool whole) { ++calls, sent = whole; });
  bool block = true;
  stream.write_bytes_max = [&]() -> std::size_t {
    if (block) return 0;
    return kFrameHeaderBytes + kLarge - 1 - stream.output.size();  // all but one byte, then blocked
  };
  writer.flush();
  EXPECT_EQ(calls, 0);
  block = false;
  writer.flush();
  EXPECT_EQ(stream.output.size(), kFrameHeaderBytes + kLarge - 1);
  EXPECT_EQ(calls, 0) << "one byte is still to come";
  EXPECT_EQ(writer.queued_bytes(), 1u);
  stream.write_bytes_max = [] { return SIZE_MAX; };
  writer.flush();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(sent);
}

TEST_F(FrameWriterTest, CloseGivesBorrowedMemoryBackUnsentOnce) {
  const auto payload = pattern(kLarge, 1);
  std::vector<bool> results;
  send(1, {}, payload, [&](bool whole) { results.push_back(whole); });
  send(2, {}, payload, [&](bool whole) { results.push_back(whole); });
  writer.close();
  writer.close();
  EXPECT_EQ(results, (std::vector<bool>{false, false}));
  EXPECT_EQ(writer.queued_bytes(), 0u);
  send(3, {}, payload, [&](bool whole) { results.push_back(whole); });
  EXPECT_EQ(results.size(), 3u) << "later frames are dropped at once";
  EXPECT_FALSE(results.back());
  send(4, {}, pattern(1, 1), [&](bool whole) { results.push_back(whole); });
  EXPECT_FALSE(results.back());
  writer.flush();
  EXPECT_TRUE(stream.output.empty());
}

TEST_F(FrameWriterTest, ABrokenStreamGivesBorrowedMemoryBackUnsent) {
  const auto payload = pattern(3 * kLarge, 1);
  std::vector<bool> results;
  send(1, {}, payload, [&](bool whole) { results.push_back(whole); });
  send(2, {}, payload, [&](bool whole) { results.push_back(whole); });
  int calls = 0;
  stream.write_bytes_max = [&]() -> std::size_t {
    if (++calls == 2) stream.closed = true;
    return kLarge;
  };
  spawn_run();
  writer.flush();
  stream.write_breaks = true;
  writer.flush();
  world.poll();
  EXPECT_EQ(results, (std::vector<bool>{false, false}));
  EXPECT_TRUE(writer.is_closed());
}

TEST_F(FrameWriterTest, RunSendsWhatFlushLeft) {
  bool block = false;
  stream.write_bytes_max = [&]() -> std::size_t { return (block = !block) ? 0 : 1000; };
  spawn_run();
  world.poll();
  const auto payload = pattern(10 * kLarge, 5);
  send(1, pattern(10, 1), payload);
  send(2, pattern(10, 2));
  writer.flush();
  EXPECT_GT(writer.queued_bytes(), 0u);
  world.poll();
  EXPECT_EQ(writer.queued_bytes(), 0u);
  const auto messages = written();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].payload, payload);
}

TEST_F(FrameWriterTest, RunReturnsOnClose) {
  bool returned = false;
  asio::co_spawn(world.io, writer.run(), [&](std::exception_ptr) { returned = true; });
  world.poll();
  EXPECT_FALSE(returned);
  writer.close();
  world.poll();
  EXPECT_TRUE(returned);
}

TEST_F(FrameWriterTest, WaitBelowReturnsWhenTheQueueIsShortOrClosed) {
  const auto payload = pattern(100'000, 1);
  for (const bool closes : {false, true}) {
    stream.write_bytes_max = [] { return 0; };
    send(1, {}, payload);
    bool returned = false;
    asio::co_spawn(world.io, writer.wait_below(50'000), [&](std::exception_ptr) { returned = true; });
    world.poll();
    EXPECT_FALSE(returned);
    stream.write_bytes_max = [&] { return std::size_t{60'000}; };
    closes ? writer.close() : writer.flush();
    world.poll();
    EXPECT_TRUE(returned);
  }
}

/// A file that can be told from others.
struct TestFile {
  TestFile() : fd(::memfd_create("test", MFD_CLOEXEC)) {
    struct stat status;
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
    inode = status.st_ino;
  }
  Descriptor fd;
  ino_t inode = 0;
};

TEST_F(FrameWriterTest, ADescriptorGoesWithTheFirstByteOfItsFrame) {
  std::vector<TestFile> files(4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    send(10 * i, pattern(20, i));
    send(10 * i + 1, pattern(8, i), {}, nullptr, files[i].fd.get());
    send(10 * i + 2, pattern(9, i));
  }
  std::mt19937_64 random(3);
  stream.write_bytes_max = [&] { return static_cast<std::size_t>(random() % 64); };
  for (int i = 0; i < 1000; ++i) writer.flush();
  EXPECT_EQ(written().size(), 12u);
  ASSERT_EQ(stream.descriptors.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t three = 3 * kFrameHeaderBytes + 20 + 8 + 9;
    EXPECT_EQ(stream.descriptors[i], std::pair(i * three + kFrameHeaderBytes + 20, files[i].inode));
  }
}

TEST_F(FrameWriterTest, AFileThatGotTheNumberOfOneThatIsToBeSentStaysHere) {
  std::vector<TestFile> files(1);
  const int number = files[0].fd.get();
  const ino_t meant = files[0].inode;
  send(1, pattern(8, 1), {}, nullptr, number);
  files.clear();         // the caller is through with it, and closes it
  const TestFile other;  // which gets its number
  ASSERT_EQ(other.fd.get(), number);
  writer.flush();
  ASSERT_EQ(stream.descriptors.size(), 1u);
  EXPECT_EQ(stream.descriptors[0].second, meant);
}

TEST_F(FrameWriterTest, WhatIsTakenBackIsCompletedIfItHasBegunAndElseNotSentAtAll) {
  const int mine = 0, others = 0;
  for (const std::size_t taken : {0ul, 1ul, kFrameHeaderBytes + 9, kFrameHeaderBytes + 10, kFrameHeaderBytes + 11,
                                  kFrameHeaderBytes + 10 + kLarge - 1, kFrameHeaderBytes + 10 + kLarge}) {
    SCOPED_TRACE(taken);
    stream.output.clear();
    std::vector<std::vector<std::byte>> memory{pattern(kLarge, 1), pattern(kLarge, 2), pattern(kLarge, 3)};
    const auto before = memory;
    const auto never = [](bool) { FAIL() << "it was taken back"; };
    int done = 0;
    send(1, pattern(10, 1), memory[0],
         taken >= kFrameHeaderBytes + 10 + kLarge ? [&](bool) { ++done; } : std::function<void(bool)>(never), -1,
         OwnerId(&mine));
    send(2, pattern(11, 2), memory[1], never, -1, OwnerId(&mine));
    send(
        3, pattern(12, 3), memory[2], [&](bool whole) { done += whole; }, -1, OwnerId(&others));
    send(4, pattern(13, 4));
    std::size_t left = taken;
    stream.write_bytes_max = [&] { return std::exchange(left, 0); };
    writer.flush();
    EXPECT_TRUE(writer.take_back(OwnerId(&mine), kLarge));
    for (std::size_t i = 0; i < 2; ++i) std::fill(memory[i].begin(), memory[i].end(), std::byte{0xA5});
    EXPECT_TRUE(writer.take_back(OwnerId(&mine), 0)) << "there is nothing left to take back";
    stream.write_bytes_max = [] { return SIZE_MAX; };
    writer.flush();
    EXPECT_EQ(writer.queued_bytes(), 0u);
    const bool has_begun = taken > 0;
    const auto messages = written();
    ASSERT_EQ(messages.size(), has_begun ? 3u : 2u);
    if (has_begun) {
      EXPECT_EQ(messages[0], (Message{1, pattern(10, 1), before[0]}));
    }
    EXPECT_EQ(messages[messages.size() - 2].payload, before[2]);
    EXPECT_EQ(messages.back().id, 4u);
    EXPECT_EQ(done, taken >= kFrameHeaderBytes + 10 + kLarge ? 2 : 1);
  }
}

TEST_F(FrameWriterTest, ARestThatIsTooLargeToBeCopiedIsLeftToTheEndOfTheStream) {
  const int mine = 0;
  const auto payload = pattern(kLarge, 1);
  int ended = 0;
  send(
      1, {}, payload, [&](bool whole) { ended += !whole; }, -1, OwnerId(&mine));
  std::size_t left = kFrameHeaderBytes + 100;
  stream.write_bytes_max = [&] { return std::exchange(left, 0); };
  writer.flush();
  EXPECT_FALSE(writer.take_back(OwnerId(&mine), kLarge - 101));
  EXPECT_EQ(ended, 0);
  writer.close();
  EXPECT_EQ(ended, 1);
}

TEST_F(FrameWriterTest, RandomFramesThroughARandomStreamComeOutWholeAndInOrder) {
  const std::uint64_t seed = seed_or(42);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    MemoryStream each;
    each.write_bytes_max = [&] { return static_cast<std::size_t>(random() % (std::size_t{1} << (random() % 18))); };
    FrameWriter to(each, world.io.get_executor());
    std::vector<Message> messages;
    std::size_t sent = 0;
    for (std::uint64_t i = 0; i < 60; ++i) {
      messages.push_back(
          {i, pattern(random() % 200, i), pattern(random() % 3 == 0 ? random() % 90'000 : random() % 99, i)});
    }
    for (const auto& message : messages) {
      FrameHeader header;
      header.type = FrameType::kGet;
      header.request_id = message.id;
      const std::size_t cut = random() % (message.payload.size() + 1);
      const auto whole = std::span<const std::byte>(message.payload);
      const std::span<const std::byte> parts[] = {whole.first(cut), whole.subspan(cut), {}};
      to.send(header, message.table, parts, [&](bool ok) { sent += ok; });
      if (random() % 4 == 0) to.flush();
    }
    while (to.queued_bytes() > 0) to.flush();
    EXPECT_EQ(sent, messages.size());
    EXPECT_EQ(to.bytes_written(), each.output.size());
    stream.output = each.output;
    ASSERT_EQ(written(), messages) << "round " << round;
  }
}

/// A get that is given up within the call for its first part, while later parts left in the same write.
TEST_F(FrameWriterTest, ACallMayWithdrawWithoutHarmToWhatLeftInTheSameWrite) {
  const int owner = 0;
  const auto payload = pattern(kLarge, 1);
  std::vector<bool> ends;
  send(
      1, pattern(24, 1), payload,
      [&](bool sent) {
        ends.push_back(sent);
        writer.withdraw(OwnerId(&owner));
      },
      -1, OwnerId(&owner));
  for (const std::uint64_t id : {2, 3}) {
    send(
        id, pattern(24, id), payload, [&](bool sent) { ends.push_back(sent); }, -1, OwnerId(&owner));
  }
  send(4, pattern(16, 4));
  writer.flush();
  EXPECT_EQ(ends, std::vector<bool>(3, true));
  EXPECT_EQ(writer.queued_bytes(), 0u);
  const auto messages = written();
  ASSERT_EQ(messages.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(messages[i].payload == payload);
  EXPECT_EQ(messages[3].table, pattern(16, 4));
}

TEST_F(FrameWriterTest, FramesThatWereNotBegunCanBeWithdrawn) {
  const int one = 0, two = 0;
  const auto payload = pattern(kLarge, 1);
  const std::span<const std::byte> parts[] = {payload};
  std::vector<int> kept, dropped;
  const auto queue = [&](std::uint64_t id, const int* owner) {
    FrameHeader header;
    header.type = FrameType::kGet;
    header.request_id = id;
    const auto number = static_cast<int>(id);
    writer.send(
        header, pattern(24, id), parts, [&, number](bool sent) { (sent ? kept : dropped).push_back(number); }, -1,
        OwnerId(owner));
  };
  queue(1, &one);
  queue(2, &two);
  queue(3, &one);
  send(4, pattern(16, 4));
  queue(5, &one);
  send(6, pattern(16, 6));
  const std::size_t queued = writer.queued_bytes();
  writer.withdraw(OwnerId(&two));
  EXPECT_EQ(dropped, (std::vector<int>{2}));
  EXPECT_EQ(queued - writer.queued_bytes(), kFrameHeaderBytes + 24 + kLarge);
  stream.write_bytes_max = [&]() -> std::size_t { return stream.output.empty() ? 10 : 0; };
  writer.flush();  // the first is begun
  writer.withdraw(OwnerId(&one));
  EXPECT_EQ(dropped, (std::vector<int>{2, 3, 5}));
  stream.write_bytes_max = [] { return SIZE_MAX; };
  writer.flush();
  EXPECT_EQ(kept, (std::vector<int>{1}));
  EXPECT_EQ(writer.queued_bytes(), 0u);
  writer.withdraw(OwnerId(&one));
  const auto messages = written();
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].id, 1u);
  EXPECT_TRUE(messages[0].payload == payload);
  EXPECT_EQ(messages[1].id, 4u);
  EXPECT_EQ(messages[2].id, 6u);
}

TEST_F(FrameWriterTest, WhatItHoldsInMemoryIsCountedWithThatOfOthers) {
  std::atomic<std::uint64_t> total = 1000;
  const auto small = pattern(100, 1), large = pattern(kLarge, 2);
  int lender = 0;
  {
    FrameWriter own(stream, world.io.get_executor());
    own.count_in(total);
    const auto queue = [&](std::span<const std::byte> payload, OwnerId owner) {
      const std::span<const std::byte> parts[] = {payload};
      own.send(
          {.type = FrameType::kGet}, {}, parts, [](bool) {}, -1, owner);
    };
    queue(small, {});
    EXPECT_EQ(total, 1000 + kFrameHeaderBytes + 100);
    queue(large, OwnerId(&lender));
    EXPECT_EQ(total, 1000 + 2 * kFrameHeaderBytes + 100) << "what is borrowed is somebody else's";
    own.withdraw(OwnerId(&lender));
    EXPECT_EQ(total, 1000 + kFrameHeaderBytes + 100);
    queue(large, {});
    own.flush();
    EXPECT_EQ(total, 1000u);
    queue(small, {});
    own.close();
    EXPECT_EQ(total, 1000u);
  }
  {
    FrameWriter own(stream, world.io.get_executor());
    own.count_in(total);
    own.send({.type = FrameType::kGet}, small);
  }
  EXPECT_EQ(total, 1000u) << "one that goes with its queue takes that along";
}

}  // namespace
}  // namespace kv
