// store/node/session/requests/drops.h: removal of blocks at a client's request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/tables/space_handles.h"

namespace kv {

/// Dropped blocks are unfindable at once. Freeing many takes several turns, and with a disk tier the answer waits for
/// the disk to keep the drop, so that it holds after a restart too.
///   1. Each drop is answered once: when it is kept, or after drop_wait, saying that it holds until the next start.
///   2. At most requests_max drops are being freed, and as many wait for the disk.
/// Thread safety: none; on the session's executor.
class Drops {
 public:
  using Frame = SessionCore::Frame;
  explicit Drops(SessionCore& session) : session_(session) {}

  void drop(const Frame& frame, const OpenSpace& space, std::span<const BlockHash> hashes);

 private:
  struct Pending {
    std::uint64_t request_id;
    std::size_t count;
    std::unique_ptr<Alarm> alarm;
    std::vector<DiskDrop> drops;  ///< For one or several blocks.
    std::size_t told = 0;         ///< Drops handed to the disk, first to last,
    std::size_t waiting = 0;      ///< and those among them without an answer.
    bool is_kept = true;          ///< True while all answers are positive.
  };
  asio::awaitable<void> free_rest(std::shared_ptr<SessionCore> session, std::uint64_t request_id, std::size_t count,
                                  std::vector<DiskDrop> drops, SessionJob job);
  asio::awaitable<void> erase(std::shared_ptr<SessionCore> session, std::uint64_t request_id, SpaceId set,
                              std::vector<BlockHash> hashes, SessionJob job);
  void keep(std::uint64_t request_id, std::size_t count, std::vector<DiskDrop> drops);
  void tell_disk(std::uint64_t number, Pending& drop);
  void end(std::uint64_t number, bool is_kept);
  void one_ended(std::uint64_t number, bool is_kept);

  SessionCore& session_;
  std::size_t freeing_count_ = 0;
  std::map<std::uint64_t, Pending> pending_;  ///< Waiting for the disk, by the session's own number.
  std::uint64_t last_ = 0;
};

}  // namespace kv
