// client/link/session/link_requests.h: the requests of a session that have no last frame yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/link/lent_memory.h"
#include "transport/frame.h"

namespace kv {

class Call;

/// One entry per request, from its sending to its last frame, whether anybody still waits for it or not.
///   1. A request id names one request of the session's life: an entry that is taken again has another generation.
///   2. in_flight() counts the entries in use, call_count() those whose call waits, message_count() those whose request
///      went by SEND, load_bytes() what all of them move.
///   3. A quarantine belongs to an entry that no call waits for, and ends with it. What is left when the table is
///      destroyed stays quarantined until the memory is freed: nobody heard that the node is through with it.
/// Entries keep their places and their memory: no allocation per request. Thread safety: none.
class LinkRequests {
 public:
  struct Entry {
    bool in_use = false;
    bool is_message = false;  ///< The request went by SEND.
    FrameType type{};
    std::uint32_t generation = 0;
    Call* call = nullptr;  ///< nullptr: nobody waits for it any more.
    std::size_t load_bytes = 0;
    std::optional<LentMemory::QuarantineId> quarantine;
  };

  /// `memory` outlives the table.
  explicit LinkRequests(LentMemory& memory) : memory_(memory) {}

  /// Returns the request's id. `call`: nullptr if nobody waits for the answer.
  std::uint64_t take(FrameType type, Call* call, std::size_t load_bytes);
  /// nullptr: no such request, or its last frame has come. Valid until the next take().
  const Entry* find(std::uint64_t request_id) const;
  void free(const Entry& entry);  ///< Its last frame has come, or the node can write nothing any more.
  void free_all();

  void went_by_send(const Entry& entry);
  void let_go(const Entry& entry);  ///< Its call waits no longer.
  /// The same, and the node may still write to `ranges`, perhaps none.
  void abandon(const Entry& entry, std::vector<std::span<const std::byte>> ranges);

  /// An answer came by SEND.
  void message_came() { messages_are_late_ = false; }
  /// One that went by SEND has missed its deadline, and nothing has come by SEND since.
  bool messages_are_late() const { return messages_are_late_; }

  /// Those in use. They may be let go meanwhile, but none taken.
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
