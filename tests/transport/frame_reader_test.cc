#include "transport/frames/frame_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>

#include "base/event.h"
#include "tests/transport/memory_stream.h"
#include "tests/transport/sim_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

void append_frame(std::vector<std::byte>& to, std::uint64_t id, std::span<const std::byte> table,
                  std::span<const std::byte> payload) {
  FrameHeader header;
  header.type = FrameType::kPutData;
  header.request_id = id;
  header.payload_bytes = payload.size();
  std::array<std::byte, kFrameHeaderBytes> head{};
  encode_frame_header(header, table, head);
  to.insert(to.end(), head.begin(), head.end());
  to.insert(to.end(), table.begin(), table.end());
  to.insert(to.end(), payload.begin(), payload.end());
}

/// Takes a payload in buffers of uneven sizes.
class CollectingSink final : public PayloadSink {
 public:
  std::vector<std::byte> bytes;
  std::size_t buffer_count = 3, buffer_bytes = 1000;

  std::size_t next(std::span<asio::mutable_buffer> buffers) override {
    scratch_.resize(buffer_count * buffer_bytes);
    const std::size_t count = std::min(buffer_count, buffers.size());
    for (std::size_t i = 0; i < count; ++i) buffers[i] = asio::buffer(scratch_.data() + i * buffer_bytes, buffer_bytes);
    return count;
  }
  void filled(std::size_t count) override {
    ASSERT_LE(count, scratch_.size());
    bytes.insert(bytes.end(), scratch_.begin(), scratch_.begin() + static_cast<std::ptrdiff_t>(count));
  }

 private:
  std::vector<std::byte> scratch_;
};

struct Message {
  std::uint64_t id = 0;
  std::vector<std::byte> table, payload;
  friend bool operator==(const Message&, const Message&) = default;
};

constexpr FrameLimits kLimits = {.table_bytes_max = 1 << 20, .payload_bytes_max = 1 << 30};

struct Reading {
  std::vector<Message> messages;
  error_code end;
  std::string why;
};

asio::awaitable<Reading> read_all(FrameReader& reader, std::size_t buffer_bytes = 1000) {
  Reading reading;
  while (true) {
    auto frame = co_await reader.next();
    if (!frame) {
      reading.end = frame.error();
      break;
    }
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame->table.data()) % 8, 0u);
    Message message{frame->header.request_id, {frame->table.begin(), frame->table.end()}, {}};
    CollectingSink sink;
    sink.buffer_bytes = buffer_bytes;
    const auto read = co_await reader.read_payload(sink);
    if (!read) {
      reading.end = read.error();
      break;
    }
    // Still readable: the read-ahead went behind the table.
    EXPECT_EQ(message.table, std::vector<std::byte>(frame->table.begin(), frame->table.end()));
    message.payload = std::move(sink.bytes);
    reading.messages.push_back(std::move(message));
  }
  reading.why = reader.why();
  co_return reading;
}

class FrameReaderTest : public testing::Test {
 protected:
  SimWorld world;
  MemoryStream stream;

  std::vector<Message> three_messages() {
    std::vector<Message> messages = {
        {1, pattern(13, 1), pattern(5, 2)}, {2, {}, {}}, {UINT64_MAX, pattern(40, 3), pattern(33, 4)}};
    for (const auto& each : messages) append_frame(stream.input, each.id, each.table, each.payload);
    return messages;
  }
  Reading read(MemoryStream& from, std::size_t buffer_bytes = 1000) {
    FrameReader reader(from);
    reader.set_limits(kLimits);
    auto reading = world.await(read_all(reader, buffer_bytes));
    EXPECT_TRUE(reading.has_value());
    return reading ? std::move(*reading) : Reading();
  }
};

TEST_F(FrameReaderTest, FramesAreTheSameForEveryPairOfSplitPoints) {
  const auto messages = three_messages();
  const std::size_t size = stream.input.size();
  for (std::size_t first = 0; first <= size; ++first) {
    for (std::size_t second = first; second <= size; second += first % 7 + 1) {
      MemoryStream split;
      split.input = stream.input;
      bool blocked = false;
      split.read_bytes_max = [&]() -> std::size_t {
        const std::size_t at = split.read_count();
        if (!blocked && (at == first || at == second)) {  // nothing there yet, the first time it is asked
          blocked = true;
          return 0;
        }
        blocked = false;
        return at < first ? first - at : at < second ? second - at : SIZE_MAX;
      };
      const Reading reading = read(split, first % 5 + 1);
      ASSERT_EQ(reading.end, asio::error::eof);
      ASSERT_EQ(reading.messages, messages) << first << ", " << second;
    }
  }
}

TEST_F(FrameReaderTest, FramesAreTheSameOneByteAtATime) {
  const auto messages = three_messages();
  bool block = false;
  stream.read_bytes_max = [&]() -> std::size_t { return (block = !block) ? 0 : 1; };
  EXPECT_EQ(read(stream).messages, messages);
}

TEST_F(FrameReaderTest, AThousandSmallFramesInOneReadComeOutWholeAndInOrder) {
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 1000; ++i) {
    messages.push_back({i, pattern(i % 61, i), pattern(i % 3 == 0 ? i % 101 : 0, i)});
    append_frame(stream.input, i, messages.back().table, messages.back().payload);
  }
  EXPECT_EQ(read(stream).messages, messages);
}

TEST_F(FrameReaderTest, RandomFramesInRandomPiecesComeOutWholeAndInOrder) {
  const std::uint64_t seed = seed_or(20260101);
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    MemoryStream pieces;
    std::vector<Message> messages;
    for (std::size_t i = 0; i < 30; ++i) {
      const auto size = [&](std::size_t small, std::size_t large) {
        return static_cast<std::size_t>(random() % (random() % 8 == 0 ? large : small));
      };
      messages.push_back({random(), pattern(size(100, 100'000), i), pattern(size(200, 300'000), i + 1)});
      append_frame(pieces.input, messages.back().id, messages.back().table, messages.back().payload);
    }
    const std::size_t piece_max = std::size_t{1} << (random() % 20);
    pieces.read_bytes_max = [&] { return static_cast<std::size_t>(random() % (piece_max + 1)); };
    ASSERT_EQ(read(pieces, 1 + random() % 70'000).messages, messages) << "round " << round;
  }
}

TEST_F(FrameReaderTest, APayloadLargerThanAnyBufferGoesToItsSinkAndTheNextFrameIsNotLost) {
  const std::vector<Message> messages = {{1, pattern(100, 1), pattern(5 << 20, 2)}, {2, pattern(8, 3), {}}};
  for (const auto& each : messages) append_frame(stream.input, each.id, each.table, each.payload);
  stream.read_bytes_max = [] { return std::size_t{100'000}; };
  EXPECT_EQ(read(stream, 1 << 20).messages, messages);
}

TEST_F(FrameReaderTest, SkippedPayloadsLeaveTheNextFrameInPlace) {
  const auto messages = three_messages();
  append_frame(stream.input, 9, {}, pattern(100'000, 1));
  append_frame(stream.input, 10, {}, {});
  FrameReader reader(stream);
  reader.set_limits(kLimits);
  const auto skip_all = [](FrameReader& from) -> asio::awaitable<std::vector<std::uint64_t>> {
    std::vector<std::uint64_t> ids;
    while (const auto frame = co_await from.next()) {
      ids.push_back(frame->header.request_id);
      const auto skipped = co_await from.skip_payload();
      if (!skipped) break;
    }
    co_return ids;
  };
  EXPECT_EQ(world.await(skip_all(reader)).value(), (std::vector<std::uint64_t>{1, 2, UINT64_MAX, 9, 10}));
}

TEST_F(FrameReaderTest, AnEndBetweenFramesIsAnEndAndWithinOneIsABadFrame) {
  const auto messages = three_messages();
  std::vector<std::size_t> ends = {0};
  for (const auto& each : messages) {
    ends.push_back(ends.back() + kFrameHeaderBytes + each.table.size() + each.payload.size());
  }
  for (std::size_t cut = 0; cut <= stream.input.size(); ++cut) {
    MemoryStream truncated;
    truncated.input.assign(stream.input.begin(), stream.input.begin() + static_cast<std::ptrdiff_t>(cut));
    const Reading reading = read(truncated);
    const bool between = std::find(ends.begin(), ends.end(), cut) != ends.end();
    EXPECT_EQ(reading.end, between ? error_code(asio::error::eof) : error_code(Errc::kBadFrame)) << "cut at " << cut;
    if (!between) {
      EXPECT_THAT(reading.why, HasSubstr("ended within")) << "cut at " << cut;
    }
  }
}

TEST_F(FrameReaderTest, ABrokenStreamIsReportedAsItIs) {
  three_messages();
  stream.at_end = asio::error::connection_reset;
  EXPECT_EQ(read(stream).end, asio::error::connection_reset);
}

TEST_F(FrameReaderTest, AFlippedBitInTheTableIsABadFrame) {
  three_messages();
  stream.input[kFrameHeaderBytes + 3] ^= std::byte{4};
  const Reading reading = read(stream);
  EXPECT_EQ(reading.end, Errc::kBadFrame);
  EXPECT_THAT(reading.why, HasSubstr("checksum"));
}

TEST_F(FrameReaderTest, LimitsAreCheckedBeforeAnythingFurtherIsRead) {
  append_frame(stream.input, 4711, {}, {});
  const std::uint32_t table_bytes = UINT32_MAX;
  std::memcpy(stream.input.data() + 16, &table_bytes, sizeof table_bytes);
  stream.at_end = asio::error::would_block;  // nothing more will ever come
  FrameReader reader(stream);
  const auto next = [](FrameReader& from) -> asio::awaitable<error_code> {
    const auto frame = co_await from.next();
    co_return frame ? error_code() : frame.error();
  };
  EXPECT_EQ(world.await(next(reader)).value(), Errc::kTooLarge);
  EXPECT_EQ(reader.last_header().request_id, 4711u) << "so that the refusal can be addressed";
  EXPECT_EQ(reader.last_header().type, FrameType::kPutData);
}

TEST_F(FrameReaderTest, ARefusedHeaderStillNamesItsRequestAndATypeThatExists) {
  append_frame(stream.input, 4711, {}, {});
  stream.input[5] = std::byte{200};
  FrameReader reader(stream);
  const auto next = [](FrameReader& from) -> asio::awaitable<error_code> {
    const auto frame = co_await from.next();
    co_return frame ? error_code() : frame.error();
  };
  EXPECT_EQ(world.await(next(reader)).value(), Errc::kUnsupported);
  EXPECT_EQ(reader.last_header().request_id, 4711u);
  EXPECT_STRNE(frame_type_name(reader.last_header().type), "unknown");
}

/// Blocks until a test lets it go on.
class PausingStream final : public Stream {
 public:
  explicit PausingStream(const asio::any_io_executor& executor) : ready_(executor) {}
  void give(std::span<const std::byte> bytes) {
    inner.input.insert(inner.input.end(), bytes.begin(), bytes.end());
    ready_.set();
  }
  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override {
    inner.at_end = asio::error::would_block;
    return inner.try_read(to);
  }
  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override { return inner.try_write(from); }
  Async<void> wait_readable() override {
    ready_.reset();
    co_await ready_.wait();
    if (inner.closed) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }
  Async<void> wait_writable() override { return inner.wait_writable(); }
  void close() override {
    inner.close();
    ready_.set();
  }
  std::string peer() const override { return "pausing"; }

  MemoryStream inner;

 private:
  Event ready_;
};

TEST_F(FrameReaderTest, AReaderThatGaveItsReadAheadBackWhileIdleReadsOn) {
  PausingStream pausing(world.io.get_executor());
  FrameReader reader(pausing);
  reader.set_limits(kLimits);
  const auto reading = std::make_shared<std::optional<Reading>>();
  asio::co_spawn(world.io, read_all(reader), [reading](std::exception_ptr, Reading result) { *reading = result; });
  std::vector<std::byte> bytes;
  append_frame(bytes, 1, pattern(20'000, 1), {});  // makes the buffer grow
  pausing.give(bytes);
  world.poll();
  EXPECT_FALSE(reader.in_frame());
  reader.shrink();
  pausing.give(bytes);
  world.poll();
  pausing.close();
  world.poll();
  ASSERT_TRUE(reading->has_value());
  EXPECT_EQ((*reading)->end, asio::error::operation_aborted);
  EXPECT_EQ((*reading)->messages.size(), 2u);
}

TEST_F(FrameReaderTest, OthersGetTheirTurnWhileALargePayloadComesAsFastAsItIsRead) {
  constexpr std::size_t kPayload = 64 << 20;
  FrameHeader header;
  header.type = FrameType::kGet;
  header.request_id = 1;
  header.payload_bytes = kPayload;
  MemoryStream endless;
  endless.input.resize(kFrameHeaderBytes);
  encode_frame_header(header, {}, std::span<std::byte, kFrameHeaderBytes>(endless.input.data(), kFrameHeaderBytes));
  endless.input.resize(kFrameHeaderBytes + kPayload);
  FrameReader from(endless);
  from.set_limits({.table_bytes_max = 4096, .payload_bytes_max = kPayload});
  bool is_read = false;
  const auto read = [](FrameReader& each, bool& done) -> asio::awaitable<void> {
    const auto frame = co_await each.next();
    EXPECT_TRUE(frame);
    const auto skipped = co_await each.skip_payload();
    EXPECT_TRUE(skipped);
    done = true;
  };
  asio::co_spawn(world.io, read(from, is_read), asio::detached);
  std::size_t turns = 0;
  const std::function<void()> other = [&] {
    ++turns;
    if (!is_read) asio::post(world.io, other);
  };
  asio::post(world.io, other);
  world.poll();
  EXPECT_TRUE(is_read);
  EXPECT_GE(turns, 16u);
}

TEST_F(FrameReaderTest, InFrameTellsAPartFromARest) {
  PausingStream pausing(world.io.get_executor());
  FrameReader reader(pausing);
  reader.set_limits(kLimits);
  asio::co_spawn(world.io, read_all(reader), [](std::exception_ptr, Reading) {});
  world.poll();
  EXPECT_FALSE(reader.in_frame());
  std::vector<std::byte> bytes;
  append_frame(bytes, 1, pattern(100, 1), pattern(100, 2));
  for (const std::byte& each : bytes) {
    pausing.give(std::span(&each, 1));
    world.poll();
    EXPECT_EQ(reader.in_frame(), &each != &bytes.back());
  }
  EXPECT_EQ(reader.bytes_read(), bytes.size());
  pausing.close();
  world.poll();
}

class BoundedRoom final : public TableRoom {
 public:
  std::size_t bytes = 0, bytes_max = 0;
  bool resize(std::size_t wanted) override {
    if (wanted > bytes && wanted > bytes_max) return false;
    bytes = wanted;
    return true;
  }
};

TEST_F(FrameReaderTest, ATableWithoutRoomIsSkippedAndTheNextFrameIsRead) {
  constexpr std::size_t kLarge = 200 << 10;
  append_frame(stream.input, 1, pattern(kLarge, 1), pattern(1000, 2));
  append_frame(stream.input, 2, pattern(13, 3), {});
  append_frame(stream.input, 3, pattern(kLarge, 4), {});
  append_frame(stream.input, 4, pattern(60 << 10, 5), {});
  stream.read_bytes_max = [] { return std::size_t{7777}; };
  BoundedRoom room;
  FrameReader reader(stream);
  reader.set_limits({1 << 20, 1 << 20});
  reader.set_room(&room);
  const auto next = [&] { return world.await(reader.next()).value().value(); };
  FrameReader::Frame frame = next();
  EXPECT_TRUE(frame.is_skipped);
  EXPECT_EQ(frame.header.request_id, 1u);
  EXPECT_EQ(frame.table.size(), 0u);
  EXPECT_TRUE(reader.in_frame()) << "its payload is still to come";
  EXPECT_TRUE(world.await(reader.skip_payload()).value());
  frame = next();
  EXPECT_FALSE(frame.is_skipped);
  EXPECT_EQ(frame.table.size(), 13u);
  room.bytes_max = 1 << 20;
  frame = next();
  EXPECT_FALSE(frame.is_skipped);
  EXPECT_TRUE(std::ranges::equal(frame.table, pattern(kLarge, 4)));
  EXPECT_EQ(room.bytes, kFrameHeaderBytes + kLarge);
  EXPECT_TRUE(reader.holds_room());
  frame = next();
  EXPECT_EQ(frame.table.size(), 60u << 10);
  reader.shrink();
  EXPECT_EQ(room.bytes, 0u);
  EXPECT_FALSE(reader.holds_room());
}

}  // namespace
}  // namespace kv
