// client/link/session/link_requests.h: a session's requests without a last frame yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/link/lent_memory.h"
#include "transport/frames/frame.h"

namespace kv {

class Call;

/// One entry per request, from its sending to its last frame, with or without a waiting call.
///   1. A request id names one request in the session's life: a reused entry has another generation.
///   2. in_flight() counts the entries in use, call_count() those with a waiting call, message_count() those whose
///      request went by SEND, load_bytes() the bytes that all of them move.
///   3. A quarantine belongs to an entry without a call, and ends with it. Quarantines left at the table's destruction
///      last until the memory is freed, because the node never confirmed that it is done.
/// Entries keep their places and their memory, so a request does not allocate. Thread safety: none.
class LinkRequests {
 public:
  struct Entry {
    bool in_use = false;
    bool is_message = false;  ///< The request went by SEND.
    FrameType type{};
    std::uint32_t generation = 0;
    Call* call = nullptr;  ///< nullptr: the call no longer waits.
    std::size_t load_bytes = 0;
    std::optional<LentMemory::QuarantineId> quarantine;
  };

  /// `memory` outlives the table.
  explicit LinkRequests(LentMemory& memory) : memory_(memory) {}

  /// Returns the request's id. `call`: nullptr if the answer is not awaited.
  std::uint64_t take(FrameType type, Call* call, std::size_t load_bytes);
  /// nullptr: unknown request, or its last frame has come. Valid until the next take().
  const Entry* find(std::uint64_t request_id) const;
  void free(const Entry& entry);  ///< After its last frame, or once the node cannot write any more.
  void free_all();

  void went_by_send(const Entry& entry);
  void let_go(const Entry& entry);  ///< Its call stops waiting.
  /// The same, while the node may still write to `ranges`, which may be empty.
  void abandon(const Entry& entry, std::vector<std::span<const std::byte>> ranges);

  /// An answer came by SEND.
  void message_came() { messages_are_late_ = false; }
  /// A request sent by SEND has missed its deadline, and no message has come since.
  bool messages_are_late() const { return messages_are_late_; }

  /// Visits the entries in use. `f` may let entries go, but not take new ones.
  template <class F>
  void for_each(F f) const {
    for (const Entry& entry : entries_) {
      if (entry.in_use) f(entry);
    }
  }

  std::size_t in_flight() const { return in_flight_; }
  std::size_t call_count() const { return call_count_; }
  std::size_t message_count() const { return message_count_; }
  std::size_t quarantine_count() const { return quarantine_count_; }
  std::size_t load_bytes() const { return load_bytes_; }

 private:
  Entry& at(const Entry& entry);

  LentMemory& memory_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::size_t in_flight_ = 0, call_count_ = 0, message_count_ = 0, quarantine_count_ = 0, load_bytes_ = 0;
  bool messages_are_late_ = false;
};

}  // namespace kv
