// A stream of frames in pieces. Where the input says so, magic, version and checksum of a frame are made right, so that
// what is behind them is reached.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "tests/fuzz/input.h"
#include "tests/transport/memory_stream.h"
#include "transport/frames/frame_reader.h"

namespace kv {
namespace {

class CheckingSink final : public PayloadSink {
 public:
  explicit CheckingSink(std::size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  std::size_t next(std::span<asio::mutable_buffer> buffers) override {
    scratch_ = std::make_unique<std::byte[]>(2 * buffer_bytes_);  // afresh: a write after its time is seen
    buffers[0] = asio::buffer(scratch_.get(), buffer_bytes_);
    buffers[1] = asio::buffer(scratch_.get() + buffer_bytes_, buffer_bytes_);
    return 2;
  }
  void filled(std::size_t bytes) override {
    KV_ASSERT(bytes <= 2 * buffer_bytes_);
    total += bytes;
  }
  std::size_t total = 0;

 private:
  std::size_t buffer_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
};

asio::awaitable<void> read_all(FrameReader& reader, std::size_t buffer_bytes, bool shrinks) {
  while (true) {
    const auto frame = co_await reader.next();
    if (!frame) {
      KV_ASSERT(!reader.why().empty());
      co_return;
    }
    KV_ASSERT(frame->table.size() == frame->header.table_bytes);
    const std::vector<std::byte> table(frame->table.begin(), frame->table.end());
    if (buffer_bytes == 0) {
      const auto skipped = co_await reader.skip_payload();
      if (!skipped) co_return;
    } else {
      CheckingSink sink(buffer_bytes);
      const auto read = co_await reader.read_payload(sink);
      if (!read) co_return;
      KV_ASSERT(sink.total == frame->header.payload_bytes);
    }
    KV_ASSERT(std::equal(table.begin(), table.end(), frame->table.begin()));  // the read-ahead left it alone
    if (shrinks) reader.shrink();
  }
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  Input input(data, size);
  const std::size_t step = 1 + input.below(1024), buffer_bytes = input.below(300);
  const bool shrinks = input.flag();
  MemoryStream stream;
  while (!input.empty()) {
    if (input.below(4) == 0) {
      const auto raw = input.bytes(input.below(100));
      stream.input.insert(stream.input.end(), raw.begin(), raw.end());
      continue;
    }
    FrameHeader header;
    header.type = static_cast<FrameType>(1 + input.below(kFrameTypeMax));
    header.request_id = input.number(2);
    const auto table = input.bytes(input.below(300));
    header.payload_bytes = input.below(5000);
    std::vector<std::byte> head(kFrameHeaderBytes);
    encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(head.data(), kFrameHeaderBytes));
    stream.input.insert(stream.input.end(), head.begin(), head.end());
    stream.input.insert(stream.input.end(), table.begin(), table.end());
    stream.input.resize(stream.input.size() + header.payload_bytes);
  }
  bool block = false;
  stream.read_bytes_max = [&]() -> std::size_t { return (block = !block) ? 0 : step; };
  FrameReader reader(stream);
  reader.set_limits({.table_bytes_max = 1000, .payload_bytes_max = 6000});
  asio::io_context io{1};
  bool done = false;
  asio::co_spawn(io, read_all(reader, buffer_bytes, shrinks), [&](std::exception_ptr error) {
    KV_ASSERT(!error);
    done = true;
  });
  io.poll();
  KV_ASSERT(done);
  return 0;
}
