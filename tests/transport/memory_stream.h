// tests/transport/memory_stream.h: a stream over bytes in memory, in pieces as small as a test wants them.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/stream.h"

namespace kv {

/// Bytes that differ from place to place and from salt to salt.
inline std::vector<std::byte> pattern(std::size_t count, std::size_t salt) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 131 + salt * 17) >> 2);
  return bytes;
}

/// Reads `input`, then what `at_end` says; collects what is written. Waiting costs one turn and no time, so coroutines
/// over it complete in one io_context::poll().
class MemoryStream : public Stream {
 public:
  std::vector<std::byte> input;
  error_code at_end = asio::error::eof;
  std::function<std::size_t()> read_bytes_max = [] { return SIZE_MAX; };  ///< Of each read; 0: would block once.

  std::vector<std::byte> output;
  std::function<std::size_t()> write_bytes_max = [] { return SIZE_MAX; };  ///< Of each write; 0: would block once.
  bool write_breaks = false;
  std::size_t write_count = 0;  ///< Calls that took bytes.
  bool closed = false;
  std::vector<std::pair<std::size_t, ino_t>> descriptors;  ///< Sent: at which byte, which file.

  Result<std::size_t> try_read(std::span<const asio::mutable_buffer> to) override {
    if (closed) return error_code(asio::error::operation_aborted);
    const std::size_t limit = std::min(read_bytes_max(), input.size() - read_);
    if (limit == 0) return read_ == input.size() ? at_end : error_code(asio::error::would_block);
    std::size_t total = 0;
    for (const auto& buffer : to) {
      const std::size_t n = std::min(buffer.size(), limit - total);
      if (n > 0) std::memcpy(buffer.data(), input.data() + read_ + total, n);
      total += n;
    }
    if (total == 0) return error_code(asio::error::eof);  // what a socket makes of a read into no memory
    read_ += total;
    return total;
  }
  Result<std::size_t> try_write(std::span<const asio::const_buffer> from) override {
    if (closed) return error_code(asio::error::operation_aborted);
    if (write_breaks) return error_code(asio::error::broken_pipe);
    const std::size_t limit = write_bytes_max();
    if (limit == 0) return error_code(asio::error::would_block);
    struct stat file;
    if (to_send_ >= 0 && ::fstat(std::exchange(to_send_, -1), &file) == 0)
      descriptors.emplace_back(output.size(), file.st_ino);
    ++write_count;
    std::size_t total = 0;
    for (const auto& buffer : from) {
      const std::size_t n = std::min(buffer.size(), limit - total);
      const auto* const bytes = static_cast<const std::byte*>(buffer.data());
      output.insert(output.end(), bytes, bytes + n);
      total += n;
    }
    return total;
  }
  Async<void> wait_readable() override {
    if (on_wait_readable) on_wait_readable();
    if (closed) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }
  Async<void> wait_writable() override {
    if (on_wait_writable) on_wait_writable();
    if (closed) co_return error_code(asio::error::operation_aborted);
    co_return Result<void>();
  }
  void close() override { closed = true; }
  bool can_pass_descriptors() const override { return true; }
  void send_descriptor(int fd) override { to_send_ = fd; }
  std::string peer() const override { return "memory"; }

  std::function<void()> on_wait_readable, on_wait_writable;
  std::size_t read_count() const { return read_; }  ///< Bytes of input taken.

 private:
  std::size_t read_ = 0;
  int to_send_ = -1;
};

}  // namespace kv
