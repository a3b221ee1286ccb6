// store/node/session/core/region_table.h: the memory that a client lends to its session.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "store/node/rdma/remote_memory.h"
#include "store/node/session/core/session_core.h"
#include "store/node/session/core/session_rdma.h"
#include "store/node/session/tables/lent_regions.h"

namespace kv {

class RegionTable;

/// Memory lent by the client: a memfd mapped here, or reached by RDMA. Copies hold it by shared_ptr, and the session
/// too. When the last reference to a removed region ends, the removal is answered: the client may reuse the memory.
class Region {
 public:
  Region(RegionTable& table, std::uint64_t byte_count);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  bool is_mapped() const { return loan_ != nullptr; }
  std::span<std::byte> mapped() const { return loan_->bytes(); }  ///< Requires is_mapped().
  const RemoteMemory& remote() const { return remote_; }          ///< Requires !is_mapped().
  /// Whether memory was removed from a memfd since it was lent: touching it would allocate node memory.
  bool has_hole(LentRegions& lent, TimePoint now);

  void map(std::shared_ptr<LentRegions::Loan> loan) { loan_ = std::move(loan); }
  void reach(RemoteMemory remote) { remote_ = std::move(remote); }
  void was_looked_at(TimePoint when) { looked_ = when; }
  void answer_when_gone(std::uint64_t request_id) { removal_request_ = request_id; }
  const std::shared_ptr<LentRegions::Loan>& loan() const { return loan_; }

 private:
  RegionTable& table_;
  const std::uint64_t bytes_;
  std::shared_ptr<LentRegions::Loan> loan_;  ///< nullptr: reached by RDMA.
  RemoteMemory remote_;
  TimePoint looked_{};                            ///< Last check for holes punched since it was lent.
  std::optional<std::uint64_t> removal_request_;  ///< Answered when the region has gone.
};

/// Regions by number, as clients refer to them.
///   1. At most region_count_max regions, including those being prepared; at most region_bytes_max in total, including
///      those being removed, whose memory is still mapped.
///   2. A number is never reused within the session.
///   3. Requests cannot find a removed region; moves under way end first.
/// Thread safety: none; on the session's executor. Lives as long as the session.
class RegionTable {
 public:
  using Frame = SessionCore::Frame;
  RegionTable(SessionCore& session, SessionRdma& rdma) : session_(session), rdma_(rdma) {}

  void on_add(const Frame& frame);
  /// Takes the region out, so that the caller ends its transfers; or nullptr after refusing the request.
  std::shared_ptr<Region> on_remove(const Frame& frame);
  /// Checks a get's or put's region; `block_bytes` is each block's size, where the target has no lengths. nullopt after
  /// refusing the request; nullptr: the request uses the stream.
  std::optional<std::shared_ptr<Region>> find(const Frame& frame, const RegionTarget& target, std::size_t hash_count,
                                              std::uint64_t block_bytes);

  bool empty() const { return regions_.empty() && coming_count_ == 0; }
  void abandon() { *abandoned_ = true; }  ///< Gives up regions being prepared.
  void clear() { regions_.clear(); }

  SessionCore& session() const { return session_; }
  void add_bytes(std::int64_t bytes);  ///< For regions only.

 private:
  void is_ready(std::uint64_t request_id, std::shared_ptr<Region> region, std::optional<std::uint64_t> hole);

  SessionCore& session_;
  SessionRdma& rdma_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Region>> regions_;
  std::uint32_t last_ = 0;
  std::size_t coming_count_ = 0;  ///< Being prepared.
  std::uint64_t bytes_ = 0;
  std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace kv
