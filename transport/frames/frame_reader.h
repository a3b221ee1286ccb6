// transport/frames/frame_reader.h: stream -> frames. A payload goes straight from the socket into its destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/frames/frame.h"
#include "transport/stream.h"

namespace kv {

class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  /// Fills `buffers` from the front with the destinations of the next bytes and returns their count: at least 1, each
  /// non-empty. Called before every read, so a sink may redirect the rest at any time.
  virtual std::size_t next(std::span<asio::mutable_buffer> buffers) = 0;
  /// The first `bytes` bytes of the last next()'s buffers now hold data.
  virtual void filled(std::size_t bytes) = 0;
};

/// Grants a reader memory for tables that are longer than its read-ahead.
class TableRoom {
 public:
  virtual ~TableRoom() = default;
  /// The reader holds `bytes` bytes from now on. False: over the budget, unchanged. Shrinking always succeeds.
  virtual bool resize(std::size_t bytes) = 0;
};

/// Reads frames one after the other. Holds at most one table and a read-ahead; starts with 4 KiB, grows within its
/// limits. Thread safety: none; one coroutine at a time.
class FrameReader {
 public:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> table;  ///< 8-byte aligned; valid until the next call of next().
    bool is_skipped = false;           ///< TableRoom had no room: the table was read and discarded.
  };

  explicit FrameReader(Stream& stream) : stream_(stream) {}

  void set_limits(const FrameLimits& limits) { limits_ = limits; }
  void set_room(TableRoom* room) { room_ = room; }  ///< Outlives the reader; nullptr: unlimited room.

  /// The next frame, its checksum checked. Requires that the payload of the one before was read or skipped. Errors: of
  /// decode_frame_header and Stream; kBadFrame for a bad checksum or an end within a frame; asio::error::eof between
  /// frames. Then why() has the words, and the session is over.
  Async<Frame> next();
  /// Whether next() would complete at once. A session reads all such frames, then answers them together.
  bool has_frame() const;
  /// Moves exactly the frame's payload into `sink`, which lives until completion.
  Async<void> read_payload(PayloadSink& sink);
  Async<void> skip_payload();

  /// Overwrites the table of the frame that next() returned last, after it carried a secret.
  void wipe_table(const Frame& frame);

  const std::string& why() const { return why_; }             ///< Of the last error, in words.
  const FrameHeader& last_header() const { return header_; }  ///< Of the frame that next() returned or refused.
  /// Frees the read-ahead of an idle session except for 4 KiB.
  void shrink();
  bool holds_room() const { return room_ != nullptr && capacity_ > kReadAheadBytes; }
  std::uint64_t frame_count() const { return frame_count_; }  ///< Frames whose header has arrived.
  bool in_table() const { return in_table_; }                 ///< The last of them is still incomplete.
  /// Bytes ever read. A watchdog checks by it that a partial frame makes progress.
  std::uint64_t bytes_read() const { return bytes_read_; }
  /// The part of bytes_read() that belongs to whole headers with their tables, or to payload. After damage to a length
  /// field, frames never complete: bytes are still read, but this count stops.
  std::uint64_t bytes_taken() const { return bytes_read_ - (end_ - begin_); }
  /// Whether a frame has begun to arrive and is not complete, payload included.
  bool in_frame() const { return payload_left_ > 0 || begin_ < end_ || in_table_; }

 private:
  static constexpr std::size_t kReadAheadBytes = 64 * 1024;  ///< One read then takes in a batch of small requests.

  Async<void> fill(std::size_t want);  ///< Returns once `want` bytes from begin_ on are buffered.
  Async<void> skip(std::size_t bytes);
  void reserve(std::size_t want);
  error_code ended_within(const std::string& part, error_code why);

  Stream& stream_;
  FrameLimits limits_;
  FrameHeader header_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0;  ///< Unconsumed bytes of buffer_ are begin_..end_.
  std::uint64_t payload_left_ = 0;
  std::uint64_t bytes_read_ = 0;
  bool in_table_ = false;
  TableRoom* room_ = nullptr;
  std::uint64_t frame_count_ = 0;
  bool is_drained_ = false;  ///< The last read emptied the stream.
  std::string why_;
};

}  // namespace kv
