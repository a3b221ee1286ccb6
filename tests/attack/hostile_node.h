// tests/attack/hostile_node.h: a node that lies, over real sockets. It answers honestly but for one request, to which
// it does what its script says; each connection is a thread that reads and writes as slowly, as little or as wrongly as
// it likes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "index/block_hash.h"
#include "index/namespace_record.h"
#include "tests/transport/frame_bytes.h"
#include "transport/shared_memory.h"
#include "transport/wire_generated.h"

namespace kv::attack {

enum class Misdeed {
  kNone,
  // -- of any answer
  kSilence,
  kClose,
  kError,
  kErrorOfNoCode,
  kLastFirst,  ///< A last frame at once, and then the answer.
  kTwice,
  kNeverLast,  ///< More is to follow, and does not.
  kOtherId,
  kOtherType,
  kRequestFlags,  ///< As if it were a request.
  kUnasked,       ///< Answers to requests that were never made.
  kEmptyTable,
  kGarbageTable,
  kTableOfAnotherRequest,
  kChangedWords,
  kHugeTableBytes,
  kHugePayloadBytes,
  kPayload,       ///< More than is due, or some where none is.
  kShortPayload,  ///< Less, and the header says so.
  kCutPayload,    ///< Less, and the header does not say so; then silence.
  kNoise,
  kWrongChecksum,  ///< Of the frame.
  kDrip,
  kStopsReading,      ///< Answers, and reads nothing for a while.
  kErrorWhileUnread,  ///< Answers, reads nothing, then says that there is no such namespace, then reads on.
  kCloseWhileUnread,
  // -- of what the request means; for others as kNone
  kWrongSums,    ///< GetPart: checksums of other bytes.
  kOthersBytes,  ///< GetPart: the bytes of another block, with its checksums.
  kBeyond,       ///< More blocks than were asked for, in any count there is.
  kHugeNumbers,  ///< Counts, handles, sizes and times of all bits one.
  kZeroes,       ///< The same, of none.
  kNotLanded,    ///< Says that blocks landed in lent memory and writes nothing there.
  kLast = kNotLanded,
};
inline constexpr int kMisdeedCount = static_cast<int>(Misdeed::kLast) + 1;

struct Script {
  FrameType type = FrameType::kPing;
  Misdeed misdeed = Misdeed::kNone;
  bool is_random = false;                  ///< Instead: one frame in three, any misdeed.
  std::size_t cut_after_bytes = SIZE_MAX;  ///< Then every connection closes.
  std::uint64_t seed = 1;
};

class HostileNode {
 public:
  /// On a loopback port, or on a Unix socket. Blocks are those of `record`, with the bytes of fill_block().
  HostileNode(bool is_tcp, NamespaceRecord record, Script script);
  ~HostileNode();
  HostileNode(const HostileNode&) = delete;
  HostileNode& operator=(const HostileNode&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  /// Blocks that came with a put and did not hold what their names say: memory that the caller had got back.
  std::size_t wrong_block_count() const { return wrong_block_count_; }
  /// Whether some connection is not being read, on purpose.
  bool is_unread() const { return unread_count_ > 0; }

 private:
  struct Frame;
  struct Reply;
  struct Connection;

  void accept_all();
  void serve(Connection& connection);
  std::vector<Reply> honest(Connection& connection, const Frame& frame);
  std::vector<Reply> get(Connection& connection, const Frame& frame, Misdeed misdeed);
  std::vector<Reply> lie(Connection& connection, const Frame& frame, Misdeed misdeed);
  /// False once the connection is over.
  bool answer(Connection& connection, const Frame& frame, Misdeed misdeed);
  bool write(Connection& connection, const Reply& reply, std::size_t piece_bytes = SIZE_MAX);
  bool write_bytes(Connection& connection, std::span<const std::byte> bytes, std::size_t piece_bytes);
  bool read_frame(Connection& connection, Frame& frame);
  bool read_exactly(Connection& connection, std::byte* to, std::size_t bytes);
  bool is_over() const { return is_over_; }
  /// A moment, less if the node ends. False then.
  bool pause(std::chrono::milliseconds time) const;

  NamespaceRecord record_;
  Script script_;
  std::string endpoint_, directory_;
  int listener_ = -1;
  std::atomic<bool> is_over_{false};
  std::atomic<std::size_t> wrong_block_count_{0}, unread_count_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::thread acceptor_;
};

}  // namespace kv::attack
