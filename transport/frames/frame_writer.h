// transport/frames/frame_writer.h: frames -> stream. Payload goes to the socket straight from its source.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/event.h"
#include "base/owner.h"
#include "transport/frames/frame.h"
#include "transport/stream.h"

namespace kv {

/// A queue of outgoing frames. Small frames are gathered in one buffer, so that many answers leave in one call; large
/// payloads are borrowed. The owner bounds the queue with wait_below() or queued_bytes(). Thread safety: none.
class FrameWriter {
 public:
  FrameWriter(Stream& stream, const asio::any_io_executor& executor)
      : stream_(stream), wake_(executor), room_(executor) {}
  ~FrameWriter() { disown(owned_bytes_); }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// Queues a frame; table_bytes and payload_bytes of `header` are computed here. `payload` is borrowed until `done` is
  /// called: done(true) once the stream has taken every byte, done(false) if it broke or close() came first. A payload
  /// of up to kCopyBytes in all is copied instead, and `done` called before send() returns. `fd` >= 0 goes with the
  /// frame's first byte. It is duplicated, since the caller may close it, and its number be reused, long before the
  /// frame leaves. `owner` names the lender for withdraw() and take_back(). Never writes; call flush() after a batch.
  void send(FrameHeader header, std::span<const std::byte> table,
            std::span<const std::span<const std::byte>> payload = {}, std::function<void(bool sent)> done = nullptr,
            int fd = -1, OwnerId owner = {});

  /// Drops the borrowing frames of `owner` that have not begun to leave, and calls their done(false). A begun frame
  /// goes on: without its rest, the peer would read the next frame as that rest.
  void withdraw(OwnerId owner);

  /// Writes the bytes that the stream takes now; run() writes the rest.
  void flush();
  /// Writes the rest after flush() until close() or the stream breaks. Run it as a coroutine beside the reader.
  asio::awaitable<void> run();
  /// Suspends while more than `bytes` are queued. Returns at once when closed.
  asio::awaitable<void> wait_below(std::size_t bytes);
  /// Suspends until some bytes have left, were withdrawn, or the writer is closed; may be spurious.
  asio::awaitable<void> wait_for_room();
  /// Releases the payloads of `owner` at once, without `done`. Unbegun frames are dropped; the rest of the begun one is
  /// copied. False: that rest is more than `bytes_max` and still borrowed, and the stream has to be ended.
  bool take_back(OwnerId owner, std::size_t bytes_max);
  /// Drops the queue, calling every pending done(false); later frames are dropped likewise.
  void close();

  /// Adds this queue's own (not borrowed) bytes to a shared total. `total` outlives this.
  void count_in(std::atomic<std::uint64_t>& total) { total_ = &total; }

  std::size_t queued_bytes() const { return queued_bytes_ + stream_.held_bytes(); }
  std::uint64_t bytes_written() const { return bytes_written_; }
  bool is_closed() const { return closed_; }

  static constexpr std::size_t kCopyBytes = 16 * 1024;

 private:
  struct Piece {
    std::vector<std::byte> owned;         ///< Headers, tables and small payloads; or
    std::span<const std::byte> borrowed;  ///< a part of a large payload.
    std::function<void(bool)> done;       ///< On the last piece of a frame that borrows.
    Descriptor fd;
    OwnerId owner;              ///< Of a frame that may be taken back or withdrawn.
    bool begins_frame = false;  ///< This piece is the header and table of such a frame.
    std::span<const std::byte> bytes() const { return borrowed.empty() ? std::span<const std::byte>(owned) : borrowed; }
  };
  void own(std::size_t bytes) {
    owned_bytes_ += bytes;
    if (total_ != nullptr) *total_ += bytes;
  }
  void disown(std::size_t bytes) {
    owned_bytes_ -= bytes;
    if (total_ != nullptr) *total_ -= bytes;
  }
  bool write_some();  ///< False if the queue is empty, or the stream would block or broke.
  bool is_empty() const { return pieces_.empty() && stream_.held_bytes() == 0; }
  std::size_t begun_count(OwnerId owner) const;
  std::vector<std::function<void(bool)>> drop_unbegun(OwnerId owner);

  Stream& stream_;
  Event wake_, room_;
  std::deque<Piece> pieces_;
  std::size_t offset_ = 0;  ///< Bytes of the first piece already written.
  std::size_t queued_bytes_ = 0;
  std::size_t owned_bytes_ = 0;  ///< Of all pieces, whole: this object's memory.
  std::atomic<std::uint64_t>* total_ = nullptr;
  std::uint64_t bytes_written_ = 0;
  bool closed_ = false;
};

}  // namespace kv
