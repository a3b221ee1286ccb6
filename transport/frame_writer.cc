#include "transport/frame_writer.h"

#include <array>
#include <utility>

#include "base/assert.h"

namespace kv {

void FrameWriter::send(FrameHeader header, std::span<const std::byte> table,
                       std::span<const std::span<const std::byte>> payload, std::function<void(bool)> done, int fd) {
  if (closed_) {
    if (done) done(false);
    return;
  }
  header.payload_bytes = 0;
  for (const auto& part : payload) header.payload_bytes += part.size();
  const bool copies = header.payload_bytes <= kCopyBytes;

  // A small frame joins the last piece, unless that one borrows, carries a descriptor, is being written or is large
  // already.
  const bool joins = fd < 0 && !pieces_.empty() && pieces_.back().borrowed.empty() && pieces_.back().fd < 0 &&
                     !pieces_.back().done && (pieces_.size() > 1 || offset_ == 0) &&
                     pieces_.back().owned.size() < 4 * kCopyBytes;
  if (!joins) pieces_.emplace_back();
  std::vector<std::byte>& bytes = pieces_.back().owned;
  pieces_.back().fd = fd;
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
    pieces_.emplace_back().borrowed = part;
    queued_bytes_ += part.size();
  }
  pieces_.back().done = std::move(done);
}

bool FrameWriter::write_some() {
  if (closed_ || pieces_.empty()) return false;
  std::array<asio::const_buffer, 32> buffers;
  std::size_t count = 0;
  for (const Piece& piece : pieces_) {
    if (count == buffers.size() || (count > 0 && piece.fd >= 0))
      break;  // a descriptor goes with the first byte of a call
    const auto bytes = piece.bytes();
    const std::size_t skip = count == 0 ? offset_ : 0;
    buffers[count++] = asio::const_buffer(bytes.data() + skip, bytes.size() - skip);
  }
  if (pieces_.front().fd >= 0 && offset_ == 0) stream_.send_descriptor(pieces_.front().fd);
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
  while (write_some()) {
  }
  if (!pieces_.empty()) {
    wake_.set();
  } else {
    room_.set();
  }
}

asio::awaitable<void> FrameWriter::run() {
  while (!closed_) {
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
