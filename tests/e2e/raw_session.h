// tests/e2e/raw_session.h: a session that says what a client never would.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/frame.h"
#include "transport/wire_generated.h"

namespace kv::e2e {

/// A blocking socket to a node. Reads give up after half a minute, so that a test fails instead of hanging.
class RawSession {
 public:
  explicit RawSession(const std::string& endpoint);
  ~RawSession();
  RawSession(RawSession&& other) noexcept;
  RawSession& operator=(RawSession&&) = delete;

  bool send_bytes(std::span<const std::byte> bytes);
  /// A whole frame with a right checksum; `builder` is finished.
  bool send_frame(FrameType type, std::uint64_t request_id, const flatbuffers::FlatBufferBuilder& builder,
                  std::uint64_t payload_bytes = 0);
  bool send_hello();

  struct Answer {
    FrameHeader header;
    std::vector<std::byte> table;
    bool is_error() const { return (header.flags & kFrameError) != 0; }
    std::string error_text() const;  ///< Message of an error frame, else empty.
    Errc error_code() const;
  };
  /// The next frame, its payload thrown away; nothing once the node has closed.
  std::optional<Answer> read_answer();
  bool is_closed();  ///< Reads to the end: whether the node closes.

 private:
  bool read_exactly(void* to, std::size_t bytes);
  int fd_ = -1;
};

}  // namespace kv::e2e
