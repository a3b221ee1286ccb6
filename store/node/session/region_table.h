// store/node/session/region_table.h: the memory that a client lends to its session.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "store/node/rdma/remote_memory.h"
#include "store/node/session/lent_regions.h"
#include "store/node/session/session_core.h"
#include "store/node/session/session_rdma.h"

namespace kv {

class RegionTable;

/// Memory that the client lent: a memfd mapped here, or memory that is reached by RDMA. Whoever copies into or out of
/// the region holds it by shared_ptr, and holds the session too. When the last has let go of a region that was removed,
/// the client is answered: from then on the memory is the client's again.
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
  /// Whether memory was taken out of a memfd since it was lent: what is touched there would become the node's.
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
  TimePoint looked_{};                            ///< For holes that were punched since it was lent.
  std::optional<std::uint64_t> removal_request_;  ///< Answered when the region has gone.
};

/// By number, as the client speaks of them.
///   1. At most region_count_max regions, counted with those being prepared; at most region_bytes_max in all, counted
///      with those being removed: their memory is still mapped.
///   2. A number is never used again within the session.
///   3. A region that was removed is found by no request; moves that had begun end first.
/// Thread safety: none; on the session's executor. Lives as long as the session.
class RegionTable {
 public:
  using Frame = SessionCore::Frame;
  RegionTable(SessionCore& session, SessionRdma& rdma) : session_(session), rdma_(rdma) {}

  void on_add(const Frame& frame);
  /// Takes the region out, for the caller to end what uses it; or nullptr after refusing the request.
  std::shared_ptr<Region> on_remove(const Frame& frame);
  /// Checks what get and put say of a region; `block_bytes` is of every block, where the target has no lengths. nullopt
  /// after refusing the request; nullptr: none is meant.
  std::optional<std::shared_ptr<Region>> find(const Frame& frame, const RegionTarget& target, std::size_t hash_count,
                                              std::uint64_t block_bytes);

  bool empty() const { return regions_.empty() && coming_count_ == 0; }
  void abandon() { *abandoned_ = true; }  ///< What is being prepared is not waited for.
  void clear() { regions_.clear(); }

  SessionCore& session() const { return session_; }
  void add_bytes(std::int64_t bytes);  ///< By regions alone.

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
