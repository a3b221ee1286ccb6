#include "transport/frame_writer.h"

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

constexpr std::uint64_t kTurnBytes = 4 << 20;  ///< To a peer that takes all at once; then others get a turn.

}  // namespace

void FrameWriter::send(FrameHeader header, std::span<const std::byte> table,
                       std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done, int fd,
                       const void* owner) {
  if (closed_) {
    if (done) done(false);
    return;
  }
  header.payload_bytes = 0;
  for (const auto& part : payload) header.payload_bytes += part.size();
  const bool copies = header.payload_bytes <= kCopyBytes;
  const bool may_be_taken_back = owner != nullptr && !copies;

  // A small frame joins the last piece, unless that one borrows, carries a descriptor, is being written or is large
  // already.
  const bool joins = fd < 0 && !may_be_taken_back && !pieces_.empty() && pieces_.back().borrowed.empty() &&
                     !pieces_.back().fd && pieces_.back().owner == nullptr && !pieces_.back().done &&
                     (pieces_.size() > 1 || offset_ == 0) && pieces_.back().owned.size() < 4 * kCopyBytes;
  if (!joins) pieces_.emplace_back();
  std::vector<std::byte>& bytes = pieces_.back().owned;
  // Without one, should there be no more descriptors: the peer misses it then, and says so.
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

void FrameWriter::withdraw(const void* owner) {
  std::vector<std::function<void(bool)>> dropped;
  std::deque<Piece> kept;
  bool drops = false;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    if (piece.owner != owner) {
      drops = false;
    } else if (piece.begins_frame) {
      drops = i > 0 || offset_ == 0;
    }
    if (!drops) {
      kept.push_back(std::move(piece));
      continue;
    }
    queued_bytes_ -= piece.bytes().size();
    if (piece.done) dropped.push_back(std::move(piece.done));
  }
  pieces_ = std::move(kept);
  for (const auto& done : dropped) done(false);
  room_.set();
}

bool FrameWriter::write_some() {
  if (closed_ || pieces_.empty()) return false;
  std::array<asio::const_buffer, 32> buffers;
  std::size_t count = 0;
  for (const Piece& piece : pieces_) {
    if (count == buffers.size() || (count > 0 && piece.fd)) break;  // a descriptor goes with the first byte of a call
    const auto bytes = piece.bytes();
    const std::size_t skip = count == 0 ? offset_ : 0;
    buffers[count++] = asio::const_buffer(bytes.data() + skip, bytes.size() - skip);
  }
  if (pieces_.front().fd && offset_ == 0) stream_.send_descriptor(pieces_.front().fd.get());
  const auto written = stream_.try_write(std::span(buffers).first(count));
  if (!written) {
    if (written.error() != asio::error::would_block) close();
    return false;
  }
  bytes_written_ += *written;
  queued_bytes_ -= *written;
  offset_ += *written;
  while (!pieces_.empty() && offset_ >= pieces_.front().bytes().size()) {
    offset_ -= pieces_.front().bytes().size();
    const auto done = std::move(pieces_.front().done);
    pieces_.pop_front();
    if (done) done(true);
  }
  return true;
}

void FrameWriter::flush() {
  const std::uint64_t turn_end = bytes_written_ + kTurnBytes;
  while (bytes_written_ < turn_end && write_some()) {
  }
  if (!pieces_.empty()) {
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
    if (pieces_.empty()) {
      wake_.reset();
      co_await wake_.wait();
      continue;
    }
    if (write_some()) {
      room_.set();
      continue;
    }
    if (closed_ || pieces_.empty()) continue;
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

void FrameWriter::own_borrowed() {
  for (Piece& piece : pieces_) {
    if (!piece.borrowed.empty()) {
      piece.owned.assign(piece.borrowed.begin(), piece.borrowed.end());
      piece.borrowed = {};
    }
  }
  std::vector<std::function<void(bool)>> done;
  for (Piece& piece : pieces_) {
    if (piece.done) done.push_back(std::exchange(piece.done, nullptr));
  }
  for (const auto& call : done) call(true);
}

bool FrameWriter::take_back(const void* owner, std::size_t bytes_max) {
  // Pieces at the front without a beginning are of a frame that has begun.
  std::size_t kept = 0, rest_bytes = 0;
  for (; kept < pieces_.size() && pieces_[kept].owner == owner; ++kept) {
    const Piece& piece = pieces_[kept];
    if (piece.begins_frame && (kept > 0 || offset_ == 0)) break;
    if (!piece.borrowed.empty()) rest_bytes += piece.borrowed.size() - (kept == 0 ? offset_ : 0);
  }
  const auto is_lent = [&](const Piece& piece) { return piece.owner == owner; };
  for (auto it = pieces_.begin() + static_cast<std::ptrdiff_t>(kept); it != pieces_.end(); ++it) {
    if (is_lent(*it)) queued_bytes_ -= it->bytes().size();
  }
  pieces_.erase(std::remove_if(pieces_.begin() + static_cast<std::ptrdiff_t>(kept), pieces_.end(), is_lent),
                pieces_.end());
  if (rest_bytes > bytes_max) return false;
  for (std::size_t i = 0; i < kept; ++i) {
    Piece& piece = pieces_[i];
    piece.done = nullptr;
    if (piece.borrowed.empty()) continue;
    const auto rest = piece.borrowed.subspan(i == 0 ? std::exchange(offset_, 0) : 0);
    piece.owned.assign(rest.begin(), rest.end());
    piece.borrowed = {};
  }
  if (pieces_.empty()) room_.set();
  return true;
}

void FrameWriter::close() {
  if (closed_) return;
  closed_ = true;
  const auto pieces = std::move(pieces_);
  pieces_.clear();
  queued_bytes_ = 0;
  for (const Piece& piece : pieces) {
    if (piece.done) piece.done(false);
  }
  wake_.set();
  room_.set();
}

}  // namespace kv
