// store/node/session/tables/lent_regions.h: all memory that clients lend to the node as memfds.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/node/metrics.h"
#include "transport/shared_memory.h"

namespace kv {

namespace asio = boost::asio;

struct LentRegionsConfig {
  std::uint64_t bytes_max = UINT64_MAX;  ///< Of all sessions together.
  std::size_t count_max = 16384;         ///< Each keeps a descriptor.
  bool in_place = true;                  ///< Without a thread: for tests and simulation.
};

/// Bounds the memory that clients can make the node touch, and runs slow steps on a thread of its own: finding holes,
/// entering pages, unmapping. 2 GiB took an I/O thread 0.4 s, and a sparse memfd became the node's memory.
///   1. bytes() <= bytes_max, count() <= count_max. A file lent several times counts once, with its longest region:
///      clients lend one memory to each of their sessions.
///   2. A region is ready only when it was found free of holes.
///   3. Regions being prepared or unmapped take turns, some megabytes each: large ones do not delay small ones.
/// Thread safety: all calls from any thread.
class LentRegions {
 public:
  explicit LentRegions(const LentRegionsConfig& config = {});
  ~LentRegions();

  /// A region's share of the bounds, until it is gone.
  class Loan {
   public:
    Loan(LentRegions& lent, std::unique_ptr<MappedRegion> region) : lent_(lent), region_(std::move(region)) {}
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    MappedRegion& region() { return *region_; }
    const MappedRegion& region() const { return *region_; }
    std::span<std::byte> bytes() const { return region_->bytes(); }

   private:
    LentRegions& lent_;
    std::unique_ptr<MappedRegion> region_;
  };

  /// Errors: kBusy at a bound; the text names it.
  Result<std::shared_ptr<Loan>, Failure> admit(std::unique_ptr<MappedRegion> region);
  /// Looks for holes and enters the pages; then calls `then` on `executor` with the first hole's offset, if any. Ends
  /// early, without a result on holes, once `*abandoned` is true.
  void prepare(std::shared_ptr<Loan> loan, std::shared_ptr<const std::atomic<bool>> abandoned,
               const asio::any_io_executor& executor, std::function<void(std::optional<std::uint64_t> hole)> then);
  /// Unmaps the region piece by piece. Requires that all copies have ended.
  void give_back(std::shared_ptr<Loan> loan);
  /// Joins the thread; regions given back from now on are unmapped by the caller.
  void finish();

  std::uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void count_hole() { ++holes_; }  ///< A region or transfer was refused for a hole.
  std::vector<NodeMetrics::Value> stats() const;

 private:
  struct Preparation;
  bool prepare_some(Preparation& work);
  /// Calls `some` on the thread until it returns false, in turn with others.
  void work_off(std::function<bool()> some);
  void end_loan(const MappedRegion::File& file, std::uint64_t bytes);

  LentRegionsConfig config_;
  mutable std::mutex mutex_;
  std::map<MappedRegion::File, std::map<std::uint64_t, std::size_t>> files_;  ///< Lengths lent, and how often each.
  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
  std::atomic<std::uint64_t> holes_{0}, refused_{0};
  std::atomic<bool> is_finished_{false};
  std::unique_ptr<asio::thread_pool> thread_;  ///< nullptr: in place. Last: its end drops work that has not begun.
};

}  // namespace kv
