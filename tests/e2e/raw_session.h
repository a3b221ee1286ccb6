// tests/e2e/raw_session.h: a session that says what a client never would.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/frames/frame.h"
#include "transport/wire_generated.h"

namespace kv::e2e {

/// A blocking socket to a node. Reads give up after half a minute, so that a test fails instead of hanging.
class RawSession {
 public:
  explicit RawSession(const std::string& endpoint);
  ~RawSession();
  RawSession(RawSession&& other) noexcept;
  RawSession& operator=(RawSession&&) = delete;

  int fd() const { return fd_; }
  bool send_bytes(std::span<const std::byte> bytes);
  /// Over a Unix socket: `descriptor` travels with the first byte. At least one byte.
  bool send_with_descriptor(std::span<const std::byte> bytes, int descriptor);
  /// A whole frame with a right checksum; `builder` is finished.
  bool send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  std::uint64_t payload_bytes = 0);
  bool send_hello(std::uint8_t version_max = kWireVersion, const std::string& token = "");

  struct Answer {
    FrameHeader header;
    std::vector<std::byte> table, payload;
    bool is_last() const { return (header.flags & kFrameMore) == 0; }
    bool is_error() const { return (header.flags & kFrameError) != 0; }
    std::string error_text() const;  ///< Message of an error frame, else empty.
    Errc error_code() const;
  };
  /// The next frame; nothing once the node has closed.
  std::optional<Answer> read_answer();
  bool is_closed();  ///< Reads to the end: whether the node closes.

 private:
  bool read_exactly(void* to, std::size_t bytes);
  int fd_ = -1;
};

}  // namespace kv::e2e
