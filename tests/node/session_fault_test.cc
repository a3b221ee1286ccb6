// Clients that are slow, die or change their minds; a node that drains. TearDown sees that nothing is left behind.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/node/limits_change.h"
#include "tests/node/node_world.h"

namespace kv {
namespace {

using testing::HasSubstr;

class SessionFaultTest : public NodeTest {
 protected:
  /// Sends `bytes`, `step` of them every second; false once the node ended the session.
  bool trickle(RawClient& client, std::span<const std::byte> bytes, std::size_t step) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(step, bytes.size());
      if (!client.send_bytes(bytes.first(n), 1s)) return false;
      bytes = bytes.subspan(n);
      world.run_for(1s);
    }
    return true;
  }
  double ended(const std::string& reason) const {
    return metric("kvstore_sessions_closed_total{reason=\"" + reason + "\"}");
  }
};

// -- too slow

TEST_F(SessionFaultTest, AConnectionThatSaysNothingEndsAfterTheHelloTimeout) {
  const auto client = connect();
  const TimePoint began = world.clock.now();
  world.run_for(9s);
  EXPECT_EQ(session_count, 1u);
  EXPECT_TRUE(client->ended());
  EXPECT_LE(world.clock.now() - began, 12s);
  EXPECT_EQ(ended("hello_timeout"), 1);
}

TEST_F(SessionFaultTest, AHelloOfOneByteASecondEndsTheSession) {
  const auto client = connect();
  EXPECT_FALSE(trickle(*client, frame_bytes(FrameType::kHello, 1, hello_request()), 1));
  EXPECT_EQ(session_count, 0u);
  EXPECT_EQ(ended("slow_frame") + ended("hello_timeout"), 1);
}

TEST_F(SessionFaultTest, AHeaderOrTableOfOneByteASecondEndsTheSessionAndNobodyElses) {
  const Bytes frame = frame_bytes(FrameType::kMatch, 7, match_request(chain(1, 3)));
  for (const std::size_t sent_at_once : {std::size_t{0}, std::size_t{20}, kFrameHeaderBytes, kFrameHeaderBytes + 60}) {
    const auto client = greet();
    const auto other = greet();
    ASSERT_TRUE(client->send_bytes(std::span(frame).first(sent_at_once)));
    const TimePoint began = world.clock.now();
    EXPECT_FALSE(trickle(*client, std::span(frame).subspan(sent_at_once), 1));
    EXPECT_LE(world.clock.now() - began, 9s);
    EXPECT_FALSE(other->ask(FrameType::kPing, 1, ping()).is_error());
  }
  EXPECT_EQ(ended("slow_frame"), 4);
}

TEST_F(SessionFaultTest, APayloadOfOneByteASecondEndsTheSessionAndFreesItsSlots) {
  const auto client = greet();
  const auto hashes = chain(1, 3);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  const Bytes frame = frame_bytes(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes));
  ASSERT_TRUE(client->send_bytes(std::span(frame).first(100'000)));
  EXPECT_FALSE(trickle(*client, std::span(frame).subspan(100'000, 1000), 1));
  EXPECT_EQ(stats().incoming_count, 0u);
  EXPECT_EQ(ended("slow_frame"), 1);
}

TEST_F(SessionFaultTest, APayloadThatKeepsUpIsServedHoweverLongItTakes) {
  change(node->limits)->put_timeout = 1h;
  const auto client = greet();
  const auto hashes = chain(1, 3);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  const Bytes frame = frame_bytes(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes));
  EXPECT_TRUE(trickle(*client, frame, 20'000));
  EXPECT_EQ(client->answer().as<wire::PutResponse>().stored(), 3u);
}

TEST_F(SessionFaultTest, SmallRequestsThatComeSteadilyAreNeverTooSlow) {
  const auto client = greet();
  for (int i = 0; i < 120; ++i) {
    EXPECT_FALSE(client->ask(FrameType::kPing, 1, ping()).is_error());
    world.run_for(500ms);
  }
}

TEST_F(SessionFaultTest, AnIdleSessionStaysAndWorksOn) {
  const auto client = greet();
  const auto hashes = chain(1, 3);
  put(*client, hashes);  // makes its buffers grow
  world.run_for(1h);
  EXPECT_EQ(session_count, 1u);
  EXPECT_TRUE(get(*client, hashes).bytes == blocks(hashes));
  world.run_for(1h);
  EXPECT_EQ(matched(*client, hashes), 3u);
}

TEST_F(SessionFaultTest, AThousandIdleConnectionsDoNotHinderOne) {
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(greet());
  world.run_for(10s);
  EXPECT_EQ(session_count, 1000u);
  EXPECT_EQ(metric("kvstore_sessions"), 1000);
  expect_others_served();
}

TEST_F(SessionFaultTest, AClientThatDoesNotReadEndsAfterTheWriteTimeoutAndItsPinsGo) {
  const auto filler = greet();
  const auto hashes = chain(1, 30);
  put(*filler, hashes);
  const auto client = greet();
  client->close();
  const auto mute = connect();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kOpen, 1, open_request(record))));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 2, get_request(hashes))));
  world.run_for(20s);
  EXPECT_EQ(session_count, 2u);
  expect_others_served();
  world.run_for(13s);
  EXPECT_EQ(session_count, 1u);
  EXPECT_EQ(ended("slow_reader"), 1);
  for (std::uint32_t salt = 10; salt < 18; ++salt) EXPECT_EQ(put(*filler, chain(salt, 8)), 8u);
}

TEST_F(SessionFaultTest, AClientThatDoesNotReadIsNotReadFromBeyondTheQueueLimit) {
  change(node->limits)->queued_bytes_max = 1 << 20;
  const auto filler = greet();
  const auto hashes = chain(1, 30);
  put(*filler, hashes);
  const auto mute = connect();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kOpen, 1, open_request(record))));
  Bytes many;
  for (std::uint64_t id = 2; id < 3000; ++id) {
    const Bytes one = frame_bytes(FrameType::kGet, id, get_request(hashes));
    many.insert(many.end(), one.begin(), one.end());
  }
  EXPECT_FALSE(mute->send_bytes(many, 5s)) << "the node stopped reading";
  EXPECT_LT(metric("kvstore_request_seconds_count{op=\"get\"}"), 100);
  world.run_for(40s);
  EXPECT_EQ(session_count, 1u);
}

TEST_F(SessionFaultTest, WaitingForASlowReaderIsNotASlowSender) {
  change(node->limits)->queued_bytes_max = 1 << 20;
  const auto client = greet();
  const auto hashes = chain(1, 30);
  put(*client, hashes);
  const auto other = connect();
  ASSERT_TRUE(other->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
  ASSERT_TRUE(other->send_bytes(frame_bytes(FrameType::kOpen, 1, open_request(record))));
  const Bytes frame = frame_bytes(FrameType::kGet, 2, get_request(hashes));
  Bytes two = frame;
  two.insert(two.end(), frame.begin(), frame.end());
  const Bytes tail(frame.begin() + 50, frame.end());
  two.resize(two.size() - tail.size());  // the second request ends within itself
  ASSERT_TRUE(other->send_bytes(two));
  world.run_for(20s);  // the first answer is not taken, so nobody reads the second request
  ASSERT_TRUE(other->send_bytes(tail));
  std::size_t lasts = 0;
  for (int i = 0; i < 100 && lasts < 4; ++i) {
    const auto answer = other->next();
    ASSERT_TRUE(answer.has_value()) << "after " << lasts << " answers";
    lasts += answer->is_last();
  }
  EXPECT_EQ(lasts, 4u) << "hello, open and two gets";
}

// -- gets whose reader is slow: small windows, so that a small arena shows what they do

class SlowReaderTest : public SessionFaultTest {
 protected:
  void SetUp() override {
    change(node->limits)->inline_frame_bytes = 2 * kBlockBytes;
    change(node->limits)->inline_ahead_bytes = 3 * kBlockBytes;
    change(node->limits)->inline_window_bytes = 4 * kBlockBytes;
    filler = greet();
    put(*filler, hashes);
    reader = greet();
  }
  /// Takes `bytes` from the stream at most, as they are.
  std::size_t take(std::size_t bytes) {
    Bytes scratch(bytes);
    const asio::mutable_buffer buffer = asio::buffer(scratch);
    const auto count = raw->try_read(std::span(&buffer, 1));
    return count ? *count : 0;
  }
  /// A connection that nobody reads from, but take().
  void open_raw() {
    mute = connect();
    raw = &mute->stream();
    ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
    ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kOpen, 2, [&](FlatBufferBuilder& b) {
      return wire::CreateOpenRequestDirect(b, record.text().c_str());
    })));
  }
  struct Read {
    std::size_t block_count = 0;
    std::optional<Answer> last;
    Bytes bytes;
  };
  Read read_answer(RawClient& client, std::uint64_t id) {
    Read read;
    for (auto answer = client.next(); answer; answer = client.next()) {
      if (answer->header.request_id != id) continue;
      if (answer->is_last()) {
        read.last = std::move(*answer);
        break;
      }
      read.block_count += answer->as<wire::GetPart>().block_count();
      read.bytes.insert(read.bytes.end(), answer->payload.begin(), answer->payload.end());
    }
    return read;
  }
  const std::vector<BlockHash> hashes = chain(1, 30);
  std::unique_ptr<RawClient> filler, reader, mute;
  Stream* raw = nullptr;
};

TEST_F(SlowReaderTest, PinsOnlyWhatIsBeingSentAndTheAnswerEndsWhereBlocksAreGone) {
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  world.run_for(1s);
  EXPECT_EQ(put(*filler, chain(2, 16)), 16u) << "what is not being sent may be evicted";
  const Read read = read_answer(*mute, 9);
  ASSERT_TRUE(read.last);
  ASSERT_FALSE(read.last->is_error()) << read.last->message();
  EXPECT_EQ(read.last->as<wire::GetResponse>().block_count(), read.block_count) << "the answer says so";
  EXPECT_GE(read.block_count, 4u);
  EXPECT_LE(read.block_count, 16u);
  EXPECT_TRUE(read.bytes == blocks(std::span(hashes).first(read.block_count)));
}

TEST_F(SlowReaderTest, AReaderThatKeepsUpGetsAllOfItInWindows) {
  const Got got = get(*reader, hashes);
  EXPECT_EQ(got.block_count, 30u);
  EXPECT_TRUE(got.bytes == blocks(hashes));
  EXPECT_EQ(stats().get_hit_blocks, 30u) << "counted once, not with each window";
}

/// A socket whose peer reads a little all the time. A write takes little and fails as often, at random; and whoever
/// waits for room learns of it late, so that others, a flush say, find it first.
class DripStream final : public Stream {
 public:
  DripStream(std::unique_ptr<Stream> inner, asio::any_io_executor executor)
      : inner_(std::move(inner)), executor_(std::move(executor)) {}
  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override { return inner_->try_read(to); }
  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override {
    if (random_() % 2 == 0) return error_code(asio::error::would_block);
    const asio::const_buffer first(from[0].data(), std::min<std::size_t>(from[0].size(), kBytes));
    return inner_->try_write(std::span(&first, 1));
  }
  Async<void> wait_readable() override { return inner_->wait_readable(); }
  Async<void> wait_writable() override {
    for (int turn = 0; turn < 4; ++turn) co_await asio::post(executor_, asio::use_awaitable);
    co_return co_await inner_->wait_writable();
  }
  void close() override { inner_->close(); }
  std::string peer() const override { return inner_->peer(); }

 private:
  static constexpr std::size_t kBytes = 4000;
  std::unique_ptr<Stream> inner_;
  asio::any_io_executor executor_;
  std::minstd_rand random_{1};
};

TEST_F(SlowReaderTest, AFlushThatMakesRoomDoesNotEndTheAnswer) {
  wrap_accepted = [this](std::unique_ptr<Stream> inner) {
    return std::make_unique<DripStream>(std::move(inner), world.io.get_executor());
  };
  const auto dripping = greet();
  for (std::size_t count = 1; count <= 30; ++count) {
    const Got got = get(*dripping, std::span(hashes).first(count));
    ASSERT_EQ(got.block_count, count);
    ASSERT_TRUE(got.bytes == blocks(std::span(hashes).first(count))) << "what was sent is what the answer says";
  }
}

TEST_F(SlowReaderTest, AFrameThatIsReadWhileTheSessionEndsEndsNothingASecondTime) {
  const auto others = chain(2, 2);
  const std::vector<Bytes> last_frames = {
      frame_bytes(FrameType::kCancel, 11, [](FlatBufferBuilder& b) { return wire::CreateCancelRequest(b, 10); }),
      frame_bytes(FrameType::kPutData, 10, put_data(1, {}))};  // malformed
  for (const Bytes& last_frame : last_frames) {
    const std::size_t count = session_count;
    open_raw();
    ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));  // keeps the stream open
    ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kPut, 10, put_request(others))));
    world.run_for(1s);
    ASSERT_TRUE(mute->send_bytes(last_frame));
    world.clock.advance(1ms);  // the frame arrives, and the session ends before the reader is resumed
    asio::post(world.io, [session = sessions_.back().lock()] { session->terminate(SessionEnd::kBroken); });
    world.run_for(1s);
    EXPECT_EQ(session_count, count) << "it has ended";
  }
}

TEST_F(SlowReaderTest, BlocksDroppedMeanwhileEndTheAnswer) {
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  world.run_for(1s);
  filler->ask(FrameType::kDrop, 7, prefix_request(std::span(hashes).first(1)));
  const auto other = greet();
  put(*other, chain(3, 20));
  const Read read = read_answer(*mute, 9);
  ASSERT_TRUE(read.last && !read.last->is_error());
  EXPECT_EQ(read.last->as<wire::GetResponse>().block_count(), read.block_count);
  EXPECT_LT(read.block_count, 30u);
  EXPECT_TRUE(read.bytes == blocks(std::span(hashes).first(read.block_count)));
}

TEST_F(SlowReaderTest, CancelStopsAGetWhoseBytesAreQueuedAndFreesItsBlocks) {
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 10, get_request(hashes))));
  world.run_for(1s);
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kCancel, 11, cancel(10))));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kCancel, 12, cancel(9))));
  world.run_for(1s);
  EXPECT_EQ(metric("kvstore_request_seconds_count{op=\"get\"}"), 1) << "the one of which no byte has left is over";
  const Read read = read_answer(*mute, 9);
  ASSERT_TRUE(read.last);
  EXPECT_EQ(read.last->error(), Errc::kCancelled);
  EXPECT_LE(read.block_count, 6u) << "what had left, and the frame that was begun";
  EXPECT_TRUE(read.bytes == blocks(std::span(hashes).first(read.block_count)));
  EXPECT_FALSE(mute->ask(FrameType::kPing, 13, ping()).is_error());
  EXPECT_EQ(put(*filler, chain(2, 31)), 31u) << "nothing of it is pinned any more";
}

TEST_F(SlowReaderTest, AReaderBelowTheLeastRateLosesItsSession) {
  change(node->limits)->read_rate_min = 50'000;
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  for (int second = 0; second < 100 && session_count > 2; ++second) {
    take(5'000);
    world.run_for(1s);
  }
  EXPECT_EQ(session_count, 2u);
  EXPECT_EQ(ended("slow_reader"), 1);
}

TEST_F(SlowReaderTest, AReaderAboveTheLeastRateKeepsItsSession) {
  change(node->limits)->read_rate_min = 50'000;
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  for (int second = 0; second < 70; ++second) {
    take(55'000);
    world.run_for(1s);
  }
  EXPECT_EQ(session_count, 3u);
}

TEST_F(SlowReaderTest, AGetThatTakesTooLongIsEnded) {
  change(node->limits)->read_rate_min = 0;
  change(node->limits)->get_timeout = 20s;
  open_raw();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 9, get_request(hashes))));
  world.run_for(25s);
  EXPECT_EQ(metric("kvstore_deadline_misses_total"), 1);
  const Read read = read_answer(*mute, 9);
  ASSERT_TRUE(read.last);
  EXPECT_EQ(read.last->error(), Errc::kStaleLease);
  EXPECT_THAT(read.last->message(), HasSubstr("get-seconds"));
  EXPECT_LT(read.block_count, 30u);
}

// -- puts that do not come to their end

TEST_F(SessionFaultTest, APutThatNeverSendsItsBytesIsEndedAndItsMemoryFreed) {
  const auto client = greet();
  const auto hashes = chain(1, 20);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  EXPECT_EQ(stats().incoming_count, 20u);
  const TimePoint began = world.clock.now();
  const auto answer = client->answer();
  EXPECT_GE(world.clock.now() - began, 29s);
  EXPECT_LE(world.clock.now() - began, 32s);
  EXPECT_EQ(answer.error(), Errc::kStaleLease);
  EXPECT_THAT(answer.message(), HasSubstr("did not come in time"));
  EXPECT_EQ(stats().incoming_count, 0u);
  EXPECT_EQ(metric("kvstore_deadline_misses_total"), 1);
  client->send(FrameType::kPutData, 9, put_data(20, sums(hashes)), blocks(hashes));
  EXPECT_FALSE(client->ask(FrameType::kPing, 10, ping()).is_error()) << "bytes that come late are swallowed";
  EXPECT_EQ(matched(*client, hashes), 0u);
  EXPECT_EQ(put(*client, hashes), 20u);
}

TEST_F(SessionFaultTest, APutThatTimesOutWithinItsPayloadNeverTouchesItsSlotsAgain) {
  change(node->limits)->put_timeout = 4s;
  const auto client = greet();
  const auto hashes = chain(1, 30);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  const Bytes frame = frame_bytes(FrameType::kPutData, 9, put_data(30, sums(hashes)), blocks(hashes));
  ASSERT_TRUE(trickle(*client, std::span(frame).first(600'000), 100'000));
  EXPECT_EQ(client->answer().error(), Errc::kStaleLease);
  EXPECT_EQ(stats().incoming_count, 0u);
  // The slots belong to others now; what still comes of the payload must not land in them.
  const auto other = greet();
  const auto others = chain(2, 30);
  EXPECT_EQ(put(*other, others), 30u);
  ASSERT_TRUE(client->send_bytes(std::span(frame).subspan(600'000)));
  EXPECT_FALSE(client->ask(FrameType::kPing, 10, ping()).is_error());
  EXPECT_TRUE(get(*other, others).bytes == blocks(others));
}

TEST_F(SessionFaultTest, AClientThatDiesWithinAPutLeavesNothingBehind) {
  const auto hashes = chain(1, 3);
  const Bytes request = [&] {
    const auto client = greet();
    return frame_bytes(FrameType::kPut, 9, put_request(hashes));
  }();
  Bytes all = request;
  const Bytes data = frame_bytes(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes));
  all.insert(all.end(), data.begin(), data.end());
  for (std::size_t cut = 0; cut < all.size(); cut += cut < 2000 ? 61 : 50'001) {
    for (const bool breaks : {false, true}) {
      const auto client = greet();
      ASSERT_TRUE(client->send_bytes(std::span(all).first(cut)));
      if (cut % 2 == 0) world.run_for(1ms);
      breaks ? world.network.kill("node") : client->close();
      world.network.revive("node");
      world.run_for(10ms);
      EXPECT_EQ(session_count, 0u) << "cut at " << cut;
      EXPECT_EQ(stats().incoming_count, 0u) << "cut at " << cut;
    }
  }
  expect_others_served();
}

TEST_F(SessionFaultTest, AClientThatDiesWhileItsPutWaitsForMemoryLeavesNothingBehind) {
  const auto keeper = greet();
  const auto kept = chain(1, 30);
  put(*keeper, kept);
  keeper->ask(FrameType::kMatch, 5, match_request(kept, true));
  const auto client = greet();
  client->send(FrameType::kPut, 9, put_request(chain(2, 10), 0, {}, 5'000'000));
  world.run_for(100ms);
  EXPECT_EQ(stats().incoming_count, 2u);
  client->close();
  world.run_for(100ms);
  EXPECT_EQ(session_count, 1u);
  EXPECT_EQ(stats().incoming_count, 0u);
}

TEST_F(SessionFaultTest, APutIsCancelledWhileItWaitsAndWhileItsBlocksCome) {
  const auto client = greet();
  const auto kept = chain(1, 30);
  put(*client, kept);
  client->ask(FrameType::kMatch, 5, match_request(kept, true));
  for (const std::uint64_t deadline_us : {5'000'000, 0}) {
    client->send(FrameType::kPut, 9, put_request(chain(2, 10), 0, {}, deadline_us));
    if (deadline_us == 0) {
      EXPECT_EQ(client->answer().as<wire::PutWant>().block_count(), 2u);
    }
    world.run_for(10ms);
    EXPECT_EQ(stats().incoming_count, 2u);
    const auto answer = client->ask(FrameType::kCancel, 10, cancel(9));
    EXPECT_EQ(answer.header.request_id, 9u);
    EXPECT_EQ(answer.error(), Errc::kCancelled);
    EXPECT_EQ(stats().incoming_count, 0u);
    world.run_for(6s);
  }
  EXPECT_FALSE(client->ask(FrameType::kPing, 10, ping()).is_error());
}

// -- gets that do not come to their end

class RegionGetTest : public SessionFaultTest {
 protected:
  static constexpr std::size_t kCount = 120;
  RegionGetTest() { start(kCount + 40); }

  void SetUp() override {
    client = greet();
    hashes = chain(1, kCount);
    put(*client, hashes);
    memory = SharedMemory::create(kCount * kBlockBytes).value();
    region = lend(*client, *memory);
    for (std::size_t i = 0; i < kCount; ++i) offsets.push_back(i * kBlockBytes);
  }
  /// From now on a byte that changes in the lent memory fails the test.
  void expect_untouched() {
    std::memset(memory->bytes().data(), 0x11, memory->bytes().size());
    world.run_for(3s);
    for (const std::byte each : memory->bytes()) ASSERT_EQ(each, std::byte{0x11});
  }

  std::unique_ptr<RawClient> client;
  std::vector<BlockHash> hashes;
  std::unique_ptr<SharedMemory> memory;
  std::uint32_t region = 0;
  std::vector<std::uint64_t> offsets;
};

TEST_F(RegionGetTest, ACancelledGetTouchesNothingAfterItsLastFrame) {
  Bytes both = frame_bytes(FrameType::kGet, 9, get_request(hashes, region, offsets));
  const Bytes stop = frame_bytes(FrameType::kCancel, 10, cancel(9));
  both.insert(both.end(), stop.begin(), stop.end());
  ASSERT_TRUE(client->send_bytes(both));
  std::uint32_t landed = 0;
  while (true) {
    const auto answer = client->answer();
    EXPECT_EQ(answer.header.request_id, 9u) << "a cancel has no answer of its own";
    if (answer.is_last()) {
      ASSERT_TRUE(answer.is_error());
      EXPECT_EQ(answer.error(), Errc::kCancelled);
      break;
    }
    landed += answer.as<wire::GetPart>().block_count();
  }
  EXPECT_LT(landed, kCount) << "it was seen before the end";
  expect_untouched();
  EXPECT_FALSE(client->ask(FrameType::kPing, 11, ping()).is_error());
}

TEST_F(RegionGetTest, ARegionIsRemovedOnlyWhenItsGetsHaveStopped) {
  Bytes both = frame_bytes(FrameType::kGet, 9, get_request(hashes, region, offsets));
  const Bytes remove = frame_bytes(FrameType::kRegionRemove, 10, region_remove(region));
  both.insert(both.end(), remove.begin(), remove.end());
  ASSERT_TRUE(client->send_bytes(both));
  bool get_over = false;
  while (true) {
    const auto answer = client->answer();
    if (answer.header.type == FrameType::kRegionRemove) {
      EXPECT_FALSE(answer.is_error());
      EXPECT_EQ(answer.header.request_id, 10u);
      break;
    }
    get_over |= answer.is_last();
  }
  EXPECT_TRUE(get_over) << "the get's last frame comes first";
  expect_untouched();
  EXPECT_EQ(metric("kvstore_region_bytes"), 0);
  EXPECT_TRUE(client->ask(FrameType::kGet, 11, get_request(hashes, region, offsets)).is_error());
}

TEST_F(RegionGetTest, ARegionWithAPutIsRemovedWhenThePutEnds) {
  const auto other = chain(2, 2);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(other, region, {0, kBlockBytes})).is_last());
  client->send(FrameType::kRegionRemove, 10, region_remove(region));
  const auto refused = client->ask(FrameType::kGet, 11, get_request(hashes, region, offsets));
  EXPECT_EQ(refused.error(), Errc::kNoRegion) << "it is not lent any more";
  const auto cancelled = client->ask(FrameType::kCancel, 12, cancel(9));
  std::set<std::uint64_t> ids = {cancelled.header.request_id, client->answer().header.request_id};
  EXPECT_EQ(ids, (std::set<std::uint64_t>{9, 10}));
  expect_untouched();
}

TEST_F(RegionGetTest, TheStreamEndsOnlyAfterTheLastCopy) {
  for (int round = 0; round < 3; ++round) {
    if (round > 0) client = greet(), region = lend(*client, *memory);
    client->send(FrameType::kGet, 9, get_request(hashes, region, offsets));
    Bytes bad(kFrameHeaderBytes);  // breaks the rules while the get runs
    ASSERT_TRUE(client->send_bytes(bad));
    EXPECT_FALSE(client->ended(0s));
    while (client->next()) {
    }
    EXPECT_TRUE(client->ended());
    expect_untouched();
  }
  expect_others_served();
}

TEST_F(RegionGetTest, AClientThatDiesWithinAGetLeavesNothingBehind) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) client = greet(), region = lend(*client, *memory);
    const Bytes request = frame_bytes(FrameType::kGet, 9, get_request(hashes, region, offsets));
    ASSERT_TRUE(client->send_bytes(request));
    if (round % 2 == 0) world.run_for(round * 20us);
    round % 3 == 0 ? world.network.kill("node") : client->close();
    world.network.revive("node");
    world.run_for(10ms);
    EXPECT_EQ(session_count, 0u);
    EXPECT_EQ(metric("kvstore_region_bytes"), 0);
  }
  expect_others_served();
}

TEST_F(SessionFaultTest, AClientThatDiesWithinAnInlineGetLeavesNothingBehind) {
  const auto hashes = chain(1, 30);
  put(*greet(), hashes);
  for (int round = 0; round < 20; ++round) {
    const auto client = greet();
    client->send(FrameType::kGet, 9, get_request(hashes));
    if (round % 2 == 0) {
      EXPECT_TRUE(client->next().has_value());
    }
    if (round % 3 == 0) world.run_for(round * 100us);
    round % 4 == 0 ? world.network.kill("node") : client->close();
    world.network.revive("node");
    world.run_for(10ms);
    EXPECT_EQ(session_count, 0u);
  }
  const auto filler = greet();
  for (std::uint32_t salt = 10; salt < 18; ++salt) EXPECT_EQ(put(*filler, chain(salt, 8)), 8u) << "all can be evicted";
}

TEST_F(SessionFaultTest, WhatIsBeingSentKeepsItsMemoryThoughItIsDropped) {
  const auto filler = greet();
  const auto hashes = chain(1, 30);
  put(*filler, hashes);
  const auto mute = connect();
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kHello, 1, hello_request())));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kOpen, 1, open_request(record))));
  ASSERT_TRUE(mute->send_bytes(frame_bytes(FrameType::kGet, 2, get_request(hashes))));
  world.run_for(1ms);
  filler->ask(FrameType::kDrop, 5, prefix_request({}));
  EXPECT_LT(put(*filler, chain(2, 32)), 32u) << "only what is not being sent is free";
}

TEST_F(SessionFaultTest, BlocksDroppedWhileTheyAreSentArriveWhole) {
  const auto hashes = chain(1, 30);
  const auto client = greet();
  put(*client, hashes);
  const auto reader = greet();
  reader->send(FrameType::kGet, 9, get_request(hashes));
  world.run_for(1ms);
  client->ask(FrameType::kDrop, 5, prefix_request({}));
  EXPECT_GE(put(*client, chain(2, 2)), 2u);
  Bytes got;
  while (true) {
    const auto answer = reader->answer();
    if (answer.is_last()) break;
    got.insert(got.end(), answer.payload.begin(), answer.payload.end());
  }
  EXPECT_TRUE(got == blocks(hashes));
}

TEST_F(SessionFaultTest, AFrozenClientCostsItsMemoryForABoundedTime) {
  const auto client = greet();
  const auto hashes = chain(1, 10);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  world.network.freeze("node");
  world.run_for(40s);
  EXPECT_EQ(stats().incoming_count, 0u);
  world.network.thaw("node");
  EXPECT_EQ(client->answer().error(), Errc::kStaleLease);
}

TEST_F(SessionFaultTest, ASessionsLeasesEndWithIt) {
  auto client = greet();
  const auto hashes = chain(1, 10);
  put(*client, hashes);
  client->ask(FrameType::kMatch, 5, match_request(hashes, true));
  EXPECT_EQ(stats().lease_count, 1u);
  client.reset();
  world.run_for(10ms);
  EXPECT_EQ(stats().lease_count, 0u);
}

// -- draining

TEST_F(SessionFaultTest, ADrainingNodeTakesNoNewWorkAndFinishesTheOld) {
  const auto client = greet();
  const auto hashes = chain(1, 3);
  ASSERT_FALSE(client->ask(FrameType::kPut, 9, put_request(hashes)).is_last());
  node->draining = true;
  for (const auto& frame : {frame_bytes(FrameType::kMatch, 10, match_request(hashes)),
                            frame_bytes(FrameType::kGet, 10, get_request(hashes)),
                            frame_bytes(FrameType::kPut, 10, put_request(chain(2, 2)))}) {
    ASSERT_TRUE(client->send_bytes(frame));
    const auto answer = client->answer();
    EXPECT_EQ(answer.error(), Errc::kDraining);
    EXPECT_THAT(answer.message(), HasSubstr("shutting down"));
  }
  EXPECT_FALSE(client->ask(FrameType::kPing, 11, ping()).is_error());
  EXPECT_EQ(
      client->ask(FrameType::kPutData, 9, put_data(3, sums(hashes)), blocks(hashes)).as<wire::PutResponse>().stored(),
      3u);
  node->draining = false;
}

}  // namespace
}  // namespace kv
