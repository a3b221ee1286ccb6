#include "transport/frames/frame_reader.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transport/frames/block_sink.h"

namespace kv {
namespace {

constexpr std::size_t kIdleBytes = 4 * 1024;
constexpr std::size_t kBytesPerTurn = 2 << 20;  ///< Of payload: half a millisecond with its checksums, then a pause.

}  // namespace

/// Makes room for `want` bytes from begin_ on; moves buffered bytes to the front if that is enough. The buffer grows by
/// doubling up to the read-ahead, and beyond that only as far as a table needs.
void FrameReader::reserve(std::size_t want) {
  KV_ASSERT(begin_ <= end_ && end_ <= capacity_);
  if (begin_ == end_) begin_ = end_ = 0;
  if (capacity_ - begin_ >= want) return;
  if (capacity_ < want) {
    const std::size_t capacity = std::max({want, kIdleBytes, std::min(2 * capacity_, kReadAheadBytes)});
    auto bigger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (end_ > begin_) std::memcpy(bigger.get(), buffer_.get() + begin_, end_ - begin_);
    buffer_ = std::move(bigger);
    capacity_ = capacity;
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
  }
  end_ -= begin_;
  begin_ = 0;
}

/// An idle session keeps 4 KiB at most: buffers of a large table in thousands of sessions would add up to GiB.
void FrameReader::shrink() {
  if (begin_ != end_ || capacity_ <= kIdleBytes) return;
  if (holds_room()) room_->resize(0);
  buffer_.reset();
  capacity_ = begin_ = end_ = 0;
}

void FrameReader::wipe_table(const Frame& frame) {
  const std::span<std::byte> buffer(buffer_.get(), capacity_);
  const auto at = static_cast<std::size_t>(frame.table.data() - buffer.data());
  KV_ASSERT(at + frame.table.size() <= buffer.size());
  ::explicit_bzero(buffer.data() + at, frame.table.size());
}

/// Reads until `want` bytes are buffered, and keeps any bytes that came along. Invalidates pointers into the buffer.
Async<void> FrameReader::fill(std::size_t want) {
  while (end_ - begin_ < want) {
    // A read that returned less than its room has emptied the stream: another one now would waste a system call.
    if (std::exchange(is_drained_, false)) {
      const auto ready = co_await stream_.wait_readable();
      if (!ready) co_return ready.error();
    }
    reserve(want);  // each time: an idle reader may have been shrunk while it waited
    const asio::mutable_buffer room(buffer_.get() + end_, capacity_ - end_);
    const auto count = stream_.try_read(std::span(&room, 1));
    if (count) {
      KV_ASSERT(*count > 0 && *count <= room.size());
      is_drained_ = *count < room.size();
      end_ += *count;
      bytes_read_ += *count;
    } else if (count.error() == asio::error::would_block) {
      const auto ready = co_await stream_.wait_readable();
      if (!ready) co_return ready.error();
    } else {
      co_return count.error();
    }
  }
  // A full buffer means that the peer sends faster than we read: grow it for larger reads.
  if (end_ == capacity_ && capacity_ < kReadAheadBytes) reserve(std::min(2 * capacity_, kReadAheadBytes));
  co_return Result<void>();
}

/// Uses table_bytes unchecked: an absurd value only means "not whole", and next() refuses it.
bool FrameReader::has_frame() const {
  if (end_ - begin_ < kFrameHeaderBytes) return false;
  std::uint32_t table_bytes;
  std::memcpy(&table_bytes, buffer_.get() + begin_ + 16, sizeof table_bytes);
  return end_ - begin_ - kFrameHeaderBytes >= table_bytes;
}

Async<FrameReader::Frame> FrameReader::next() {
  KV_ASSERT(payload_left_ == 0);  // else payload bytes would be read as a header
  in_table_ = false;
  if (!has_frame()) {
    const auto filled = co_await fill(kFrameHeaderBytes);
    if (!filled) {
      if (filled.error() == asio::error::eof && begin_ != end_) {
        why_ = "the connection ended within a frame header";
        co_return error_code(Errc::kBadFrame);
      }
      why_ = filled.error().message();
      co_return filled.error();
    }
  }
  in_table_ = true;
  ++frame_count_;
  KV_ASSERT(end_ - begin_ >= kFrameHeaderBytes);
  const std::span<const std::byte, kFrameHeaderBytes> head(buffer_.get() + begin_, kFrameHeaderBytes);
  // A refusal names the request's id and type, which are taken from the header even if it proves bad.
  header_ = FrameHeader();
  const auto type = static_cast<std::uint8_t>(head[5]);
  header_.type = type >= 1 && type <= kFrameTypeMax ? static_cast<FrameType>(type) : FrameType::kHello;
  std::memcpy(&header_.request_id, head.data() + 8, sizeof header_.request_id);
  const auto header = decode_frame_header(head, limits_);
  if (!header) {
    why_ = header.error().text;
    co_return header.error().code;
  }
  header_ = *header;
  const std::size_t frame_bytes = kFrameHeaderBytes + header->table_bytes;
  if (frame_bytes > std::max(capacity_, kReadAheadBytes) && room_ != nullptr && !room_->resize(frame_bytes)) {
    const auto skipped = co_await skip(frame_bytes);
    if (!skipped) co_return ended_within("a frame", skipped.error());
    payload_left_ = header->payload_bytes;
    in_table_ = false;
    co_return Frame{*header, {}, /*is_skipped=*/true};
  }
  if (end_ - begin_ < frame_bytes) {
    const auto filled = co_await fill(frame_bytes);
    if (!filled) co_return ended_within("a frame", filled.error());
  }
  if (begin_ % 8 != 0) {  // FlatBuffers reads its fields in place, aligned to 8 bytes
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  KV_ASSERT(end_ - begin_ >= frame_bytes);  // fill() may have moved the bytes: earlier pointers are stale
  const std::byte* const frame = buffer_.get() + begin_;
  const std::span<const std::byte> table(frame + kFrameHeaderBytes, header->table_bytes);
  if (!frame_checksum_ok(std::span<const std::byte, kFrameHeaderBytes>(frame, kFrameHeaderBytes), table)) {
    why_ = "checksum: header and table do not match it";
    co_return error_code(Errc::kBadFrame);
  }
  begin_ += frame_bytes;
  payload_left_ = header->payload_bytes;
  in_table_ = false;
  co_return Frame{*header, table};
}

error_code FrameReader::ended_within(const std::string& part, error_code why) {
  why_ = "the connection ended within " + part + ": " + why.message();
  return why == asio::error::eof ? error_code(Errc::kBadFrame) : why;
}

Async<void> FrameReader::skip(std::size_t bytes) {
  while (bytes > 0) {
    if (begin_ == end_) {
      const auto filled = co_await fill(1);
      if (!filled) co_return filled.error();
    }
    const std::size_t count = std::min(bytes, end_ - begin_);
    begin_ += count;
    bytes -= count;
  }
  co_return Result<void>();
}

/// Payload bytes go straight from the socket into the sink's memory. Bytes of the next frame must never land there:
/// buffers are cut to payload_left_, and only the read-ahead behind them takes more.
Async<void> FrameReader::read_payload(PayloadSink& sink) {
  // 16 for the sink and one behind them for the read-ahead.
  std::array<asio::mutable_buffer, 17> buffers;
  std::size_t turn_bytes = 0;
  while (payload_left_ > 0) {
    if (turn_bytes >= kBytesPerTurn) {  // else a peer as fast as this thread would monopolise it
      turn_bytes = 0;
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
      continue;
    }
    std::size_t count = sink.next(std::span(buffers).first(16));
    KV_ASSERT(count > 0 && count < buffers.size());
    std::size_t room = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t left = static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_ - room, SIZE_MAX));
      if (buffers[i].size() >= left) {
        buffers[i] = asio::buffer(buffers[i], left);
        room += left;
        count = i + 1;
        break;
      }
      room += buffers[i].size();
    }
    KV_ASSERT(room > 0 && room <= payload_left_);
    if (begin_ < end_) {  // read ahead with the table: at most one buffer's worth is copied twice
      std::size_t taken = 0;
      for (std::size_t i = 0; i < count && begin_ < end_; ++i) {
        const std::size_t n = std::min(buffers[i].size(), end_ - begin_);
        std::memcpy(buffers[i].data(), buffer_.get() + begin_, n);
        begin_ += n;
        taken += n;
      }
      payload_left_ -= taken;
      sink.filled(taken);
      continue;
    }
    // The payload's end and the next header often come together: read ahead, behind the table still in use.
    std::size_t room_ahead = 0;
    if (room == payload_left_ && capacity_ > end_) {
      room_ahead = capacity_ - end_;
      buffers[count++] = asio::mutable_buffer(buffer_.get() + end_, room_ahead);
    }
    const auto got = stream_.try_read(std::span(buffers).first(count));
    if (!got) {
      if (got.error() == asio::error::would_block) {
        const auto ready = co_await stream_.wait_readable();
        if (!ready) co_return ready.error();
        turn_bytes = 0;
        continue;
      }
      co_return ended_within("a payload", got.error());
    }
    bytes_read_ += *got;
    is_drained_ = false;  // more bytes have come by the time the sink is done
    const std::size_t mine = std::min(*got, room);
    KV_ASSERT(*got - mine <= capacity_ - end_);
    end_ += *got - mine;
    payload_left_ -= mine;
    turn_bytes += mine;
    sink.filled(mine);
  }
  co_return Result<void>();
}

Async<void> FrameReader::skip_payload() {
  BlockSink nowhere{std::span<const BlockTarget>()};
  nowhere.cancel();
  co_return co_await read_payload(nowhere);
}

}  // namespace kv
