#include "store/node/session/tables/lent_regions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/assert.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

// A step locks the process's memory map against I/O threads that need more memory: about 1 ms each.
constexpr std::uint64_t kPopulateBytes = 2 << 20;
constexpr std::uint64_t kUnmapBytes = 8 << 20;

}  // namespace

struct LentRegions::Preparation {
  std::shared_ptr<Loan> loan;
  std::shared_ptr<const std::atomic<bool>> abandoned;
  asio::any_io_executor executor;
  std::function<void(std::optional<std::uint64_t>)> then;
  std::uint64_t populated = 0;
  bool is_checked = false;
};

LentRegions::LentRegions(const LentRegionsConfig& config)
    : config_(config), thread_(config.in_place ? nullptr : std::make_unique<asio::thread_pool>(1)) {}

LentRegions::~LentRegions() { finish(); }

void LentRegions::finish() {
  is_finished_ = true;
  if (thread_) thread_->join();
}

LentRegions::Loan::~Loan() {
  // Unmap first: until then the pages can be touched. Releasing the bytes earlier could let the node exceed its bound.
  const MappedRegion::File file = region_->file();
  const std::uint64_t bytes = region_->lent_bytes();
  region_.reset();
  lent_.end_loan(file, bytes);
}

Result<std::shared_ptr<LentRegions::Loan>, Failure> LentRegions::admit(std::unique_ptr<MappedRegion> region) {
  const std::uint64_t bytes = region->lent_bytes();
  const std::lock_guard lock(mutex_);
  const auto known = files_.find(region->file());
  // Several sessions of one client lend the same file, each its own length: the longest counts, once.
  const std::uint64_t before = known == files_.end() ? 0 : known->second.rbegin()->first;
  const std::uint64_t added = bytes > before ? bytes - before : 0;
  // As a difference, which neither overflows nor goes below 0.
  if (added > config_.bytes_max - std::min(bytes_, config_.bytes_max)) {
    ++refused_;
    return Failure(Errc::kBusy,
                   fmt::format("region bytes: {}, all sessions lend {} already, at most {} (region-bytes-max-node)",
                               bytes, bytes_, config_.bytes_max));
  }
  if (count_ >= config_.count_max) {
    ++refused_;
    return Failure(Errc::kBusy, fmt::format("regions: all sessions lend {}, the most that this node takes", count_));
  }
  ++files_[region->file()][bytes];
  bytes_ += added;
  ++count_;
  return std::make_shared<Loan>(*this, std::move(region));
}

void LentRegions::end_loan(const MappedRegion::File& file, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto known = files_.find(file);
  KV_ASSERT(known != files_.end());
  auto& lengths = known->second;
  const std::uint64_t before = lengths.rbegin()->first;
  const auto length = lengths.find(bytes);
  KV_ASSERT(length != lengths.end());
  if (--length->second == 0) lengths.erase(length);
  bytes_ -= before - (lengths.empty() ? 0 : lengths.rbegin()->first);
  --count_;
  if (lengths.empty()) files_.erase(known);
}

void LentRegions::work_off(std::function<bool()> some) {
  // In simulation there is no thread; at the node's end the queue is idle.
  if (!thread_ || is_finished_) {
    while (some()) {
    }
    return;
  }
  asio::post(*thread_, [this, some = std::move(some)]() mutable {
    bool is_more = false;
    within_border(NodeThread::kIo, [&] { is_more = some(); });
    if (is_more) work_off(std::move(some));  // behind the waiting ones
  });
}

void LentRegions::prepare(std::shared_ptr<Loan> loan, std::shared_ptr<const std::atomic<bool>> abandoned,
                          const asio::any_io_executor& executor,
                          std::function<void(std::optional<std::uint64_t>)> then) {
  const auto work = std::make_shared<Preparation>();
  work->loan = std::move(loan);
  work->abandoned = std::move(abandoned);
  work->executor = executor;
  work->then = std::move(then);
  work_off([this, work] { return prepare_some(*work); });
}

bool LentRegions::prepare_some(Preparation& work) {
  const MappedRegion& region = work.loan->region();
  std::optional<std::uint64_t> hole;
  bool goes_on = !*work.abandoned && !is_finished_;
  // First, once: touching a hole would fill it with the node's own memory.
  if (goes_on && !std::exchange(work.is_checked, true)) hole = region.find_hole();
  goes_on = goes_on && !hole && work.populated < region.bytes().size();
  if (goes_on) {
    // Entering a page removed meanwhile would allocate node memory; the transfers check again.
    if (!region.has_lost_memory()) region.populate(work.populated, kPopulateBytes);
    work.populated += kPopulateBytes;
    return true;
  }
  // Everything it holds is released on the executor.
  asio::post(work.executor, [then = std::move(work.then), loan = std::move(work.loan), hole]() mutable {
    loan.reset();
    then(hole);
  });
  return false;
}

void LentRegions::give_back(std::shared_ptr<Loan> loan) {
  // All transfers have released it: unmapping under a copy would be a fault.
  KV_ASSERT(loan.use_count() == 1);
  work_off([loan = std::move(loan)] { return loan->region().unmap_some(kUnmapBytes); });
}

std::vector<NodeMetrics::Value> LentRegions::stats() const {
  return {{"region_node_bytes", bytes(), false,
           "Bytes of memfds lent by all sessions, each file once: what region-bytes-max-node bounds"},
          {"region_node_bytes_max", config_.bytes_max, false, "region-bytes-max-node"},
          {"regions_refused", refused_, true, "Regions refused at a limit of the whole node"},
          {"region_holes", holes_, true, "Regions and transfers refused since memory was missing in the memfd"}};
}

}  // namespace kv
