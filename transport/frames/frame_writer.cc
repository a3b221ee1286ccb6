#include "transport/frames/frame_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

/// Most bytes written at once to a fast peer; then other coroutines of the thread get a turn.
constexpr std::uint64_t kTurnBytes = 4 << 20;

}  // namespace

/// Only queues: flush() hands many frames to the kernel in one call. Small payloads are copied, since a copy costs less
/// than a separate piece; larger ones are borrowed until `done`.
void FrameWriter::send(FrameHeader header, std::span<const std::byte> table,
                       std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done, int fd,
                       OwnerId owner) {
  if (closed_) {
    if (done) done(false);
    return;
  }
  header.payload_bytes = 0;
  for (const auto& part : payload) header.payload_bytes += part.size();
  const bool copies = header.payload_bytes <= kCopyBytes;
  const bool may_be_taken_back = owner && !copies;

  // A small frame joins the last piece, so that many leave in one call, unless that piece borrows, carries a
  // descriptor, may be taken back, is being written (its vector must not move) or is large already.
  const bool joins = fd < 0 && !may_be_taken_back && !pieces_.empty() && pieces_.back().borrowed.empty() &&
                     !pieces_.back().fd && !pieces_.back().owner && !pieces_.back().done &&
                     (pieces_.size() > 1 || offset_ == 0) && pieces_.back().owned.size() < 4 * kCopyBytes;
  if (!joins) pieces_.emplace_back();
  std::vector<std::byte>& bytes = pieces_.back().owned;
  // If this process is out of descriptors, the frame goes without: the peer notices and says so.
  if (fd >= 0) pieces_.back().fd = Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (may_be_taken_back) {
    pieces_.back().owner = owner;
    pieces_.back().begins_frame = true;
  }
  const std::size_t before = bytes.size();
  const std::size_t added =
      kFrameHeaderBytes + table.size() + (copies ? static_cast<std::size_t>(header.payload_bytes) : 0);
  if (bytes.capacity() < before + added) bytes.reserve(std::max(before + added, 2 * bytes.capacity()));
  bytes.resize(before + kFrameHeaderBytes);
  encode_frame_header(header, table, std::span<std::byte, kFrameHeaderBytes>(bytes.data() + before, kFrameHeaderBytes));
  bytes.insert(bytes.end(), table.begin(), table.end());
  queued_bytes_ += added;
  own(added);
  if (copies) {
    for (const auto& part : payload) bytes.insert(bytes.end(), part.begin(), part.end());
    if (done) done(true);
    return;
  }
  for (const auto& part : payload) {
    if (part.empty()) continue;
    Piece& piece = pieces_.emplace_back();
    piece.borrowed = part;
    piece.owner = owner;
    queued_bytes_ += part.size();
  }
  pieces_.back().done = std::move(done);
}

/// Count of leading pieces of a begun frame of `owner`. Its first piece, if sent, is no longer among them.
std::size_t FrameWriter::begun_count(OwnerId owner) const {
  std::size_t count = 0;
  for (; count < pieces_.size() && pieces_[count].owner == owner; ++count) {
    if (pieces_[count].begins_frame && (count > 0 || offset_ == 0)) break;
  }
  return count;
}

/// Drops unbegun frames of `owner`. Returns their pending calls, which may re-enter this writer.
std::vector<std::function<void(bool)>> FrameWriter::drop_unbegun(OwnerId owner) {
  KV_ASSERT(owner);  // frames that borrow no memory have no owner
  std::vector<std::function<void(bool)>> pending;
  const auto is_lent = [&](const Piece& piece) { return piece.owner == owner; };
  const auto first = pieces_.begin() + static_cast<std::ptrdiff_t>(begun_count(owner));
  for (auto piece = first; piece != pieces_.end(); ++piece) {
    if (!is_lent(*piece)) continue;
    KV_ASSERT(queued_bytes_ >= piece->bytes().size());
    queued_bytes_ -= piece->bytes().size();
    disown(piece->owned.size());
    if (piece->done) pending.push_back(std::move(piece->done));
  }
  pieces_.erase(std::remove_if(first, pieces_.end(), is_lent), pieces_.end());
  room_.set();
  return pending;
}

void FrameWriter::withdraw(OwnerId owner) {
  const auto pending = drop_unbegun(owner);
  for (const auto& done : pending) done(false);
}

/// A begun frame must be completed, or the peer would read the next frame as its payload: copies up to `bytes_max`.
bool FrameWriter::take_back(OwnerId owner, std::size_t bytes_max) {
  static_cast<void>(drop_unbegun(owner));
  const std::size_t begun = begun_count(owner);
  std::size_t rest_bytes = 0;
  for (std::size_t i = 0; i < begun; ++i) {
    if (!pieces_[i].borrowed.empty()) rest_bytes += pieces_[i].borrowed.size() - (i == 0 ? offset_ : 0);
  }
  if (rest_bytes > bytes_max) return false;
  for (std::size_t i = 0; i < begun; ++i) {
    Piece& piece = pieces_[i];
    piece.done = nullptr;
    if (piece.borrowed.empty()) continue;
    const auto rest = piece.borrowed.subspan(i == 0 ? std::exchange(offset_, 0) : 0);
    own(rest.size());
    piece.owned.assign(rest.begin(), rest.end());
    piece.borrowed = {};
  }
  return true;
}

/// One system call. The kernel may take any part; offset_ records the progress in the first piece.
bool FrameWriter::write_some() {
  if (closed_ || is_empty()) return false;
  if (pieces_.empty()) {
    const auto flushed = stream_.try_flush();
    if (!flushed && flushed.error() != asio::error::would_block) close();
    return flushed.has_value();
  }
  std::array<asio::const_buffer, 32> buffers;
  std::size_t count = 0;
  for (const Piece& piece : pieces_) {
    // A descriptor goes with the first byte of a call: its piece begins the next call.
    if (count == buffers.size() || (count > 0 && piece.fd)) break;
    const auto bytes = piece.bytes();
    const std::size_t skip = count == 0 ? offset_ : 0;
    KV_ASSERT(skip <= bytes.size());
    buffers[count++] = asio::const_buffer(bytes.data() + skip, bytes.size() - skip);
  }
  if (pieces_.front().fd && offset_ == 0) stream_.send_descriptor(pieces_.front().fd.get());
  const auto written = stream_.try_write(std::span(buffers).first(count));
  if (!written) {
    if (written.error() != asio::error::would_block) close();  // the reader notices by itself
    return false;
  }
  KV_ASSERT(*written <= queued_bytes_);
  bytes_written_ += *written;
  queued_bytes_ -= *written;
  offset_ += *written;
  // Sent pieces leave the queue before the first call: a call may send, withdraw or close, and must not find pieces
  // there whose bytes have all left. A frame sent in the same write would pass for one not begun.
  std::vector<std::function<void(bool)>> done;
  while (!pieces_.empty() && offset_ >= pieces_.front().bytes().size()) {
    offset_ -= pieces_.front().bytes().size();
    if (pieces_.front().done) done.push_back(std::move(pieces_.front().done));
    disown(pieces_.front().owned.size());
    pieces_.pop_front();
  }
  for (const auto& call : done) call(true);
  return true;
}

/// Writes one turn's bytes at most; run() writes the rest, between other coroutines of the thread.
void FrameWriter::flush() {
  const std::uint64_t turn_end = bytes_written_ + kTurnBytes;
  while (bytes_written_ < turn_end && write_some()) {
  }
  if (!is_empty()) {
    wake_.set();
  } else {
    room_.set();
  }
}

asio::awaitable<void> FrameWriter::run() {
  std::uint64_t turn_end = bytes_written_ + kTurnBytes;
  while (!closed_) {
    if (bytes_written_ >= turn_end) {
      turn_end = bytes_written_ + kTurnBytes;
      co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
      continue;
    }
    if (is_empty()) {
      wake_.reset();
      co_await wake_.wait();
      continue;
    }
    if (write_some()) {
      room_.set();
      continue;
    }
    if (closed_ || is_empty()) continue;
    const auto ready = co_await stream_.wait_writable();  // named: GCC 12 miscompiles `if (!co_await ...)` in a loop
    if (!ready) close();
  }
}

asio::awaitable<void> FrameWriter::wait_below(std::size_t bytes) {
  while (!closed_ && queued_bytes_ > bytes) {
    room_.reset();
    co_await room_.wait();
  }
}

asio::awaitable<void> FrameWriter::wait_for_room() {
  if (closed_) co_return;
  room_.reset();
  co_await room_.wait();
}

void FrameWriter::close() {
  if (closed_) return;
  closed_ = true;  // first: calls made below find a writer that drops new frames
  const auto pieces = std::move(pieces_);
  pieces_.clear();
  queued_bytes_ = 0;
  disown(owned_bytes_);
  for (const Piece& piece : pieces) {
    if (piece.done) piece.done(false);
  }
  wake_.set();
  room_.set();
}

}  // namespace kv
