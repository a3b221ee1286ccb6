// transport/frame_reader.h: stream -> frames. A payload goes straight from the socket to where it belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/frame.h"
#include "transport/stream.h"

namespace kv {

/// Takes payload bytes as they arrive.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  /// Where the next bytes go: fills `buffers` from the front and returns how many it filled: at least 1, none of them
  /// empty. Called before every read, so a sink may send the rest elsewhere at any time.
  virtual std::size_t next(std::span<asio::mutable_buffer> buffers) = 0;
  /// The first `bytes` bytes of what the last next() gave now hold data.
  virtual void filled(std::size_t bytes) = 0;
};

/// Who gives a reader memory for tables that are longer than its read-ahead.
class TableRoom {
 public:
  virtual ~TableRoom() = default;
  /// The reader holds so many bytes from now on; 0: none. False: more than there is, and nothing changes. Less is
  /// always granted.
  virtual bool resize(std::size_t bytes) = 0;
};

/// Reads frames one after the other. Holds at most one table and a read-ahead; starts with 4 KiB, grows within its
/// limits. Thread safety: none; one coroutine at a time.
class FrameReader {
 public:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> table;  ///< 8-byte aligned; valid until the next call of next().
    bool is_skipped = false;           ///< TableRoom had no room: the table has come and is gone.
  };

  explicit FrameReader(Stream& stream) : stream_(stream) {}

  void set_limits(const FrameLimits& limits) { limits_ = limits; }
  void set_room(TableRoom* room) { room_ = room; }  ///< Outlives the reader; nullptr: there is always room.

  /// The next frame, its checksum checked. Requires the payload of the one before to be read or skipped.
  /// Errors: of decode_frame_header and Stream; kBadFrame for a bad checksum or an end within a frame; asio::error::eof
  /// between frames. Then why() has the words, and the session is over.
  Async<Frame> next();
  /// Whether a whole header and table lie in the buffer: then next() completes at once. A session reads all of these
  /// before it answers, and answers them together.
  bool has_frame() const;
  /// Moves exactly the frame's payload into `sink`, which lives until completion.
  Async<void> read_payload(PayloadSink& sink);
  Async<void> skip_payload();

  /// Overwrites the table of the frame that next() returned last: it held a secret.
  void wipe_table(const Frame& frame);

  const std::string& why() const { return why_; }             ///< Of the last error, in words.
  const FrameHeader& last_header() const { return header_; }  ///< Of the frame that next() returned or refused.
  /// Gives the read-ahead of an idle session back; keeps 4 KiB.
  void shrink();
  bool holds_room() const { return room_ != nullptr && capacity_ > kReadAheadBytes; }
  std::uint64_t frame_count() const { return frame_count_; }  ///< Whose header has come.
  bool in_table() const { return in_table_; }                 ///< Of the last of them, not all has.
  /// Bytes ever read; a watchdog sees by it whether a partial frame makes progress.
  std::uint64_t bytes_read() const { return bytes_read_; }
  /// Those of them that belong to whole headers with their tables, or to payload. After a length was damaged on its
  /// way, no frame comes to its end: what arrives then is read, but counts for nothing here.
  std::uint64_t bytes_taken() const { return bytes_read_ - (end_ - begin_); }
  /// Whether a frame has begun to arrive and is not complete, payload included.
  bool in_frame() const { return payload_left_ > 0 || begin_ < end_ || in_table_; }

 private:
  static constexpr std::size_t kReadAheadBytes = 64 * 1024;  ///< One read then takes in a batch of small requests.

  Async<void> fill(std::size_t want);  ///< Until `want` bytes from begin_ on are buffered.
  Async<void> skip(std::size_t bytes);
  void reserve(std::size_t want);

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
  bool is_drained_ = false;  ///< The last read took all that had come.
  std::string why_;
};

}  // namespace kv
