// store/node/session/tables/table_budget.h: bounds the whole node's memory for large requests being received.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/frames/frame_reader.h"

namespace kv {

/// A session has 64 KiB for input. A larger table takes memory before its last byte has come, and its sender may
/// withhold that byte: 1,000 sessions with 4 MiB each would fill a node's memory.
///   1. All sessions together have bytes_max for such tables; one peer alone kShareMax of that, and less as others come
///      (as in SessionTable).
///   2. Without room, the request is refused as busy, and sessions of the largest peer (at its own share: of that peer)
///      are asked to give back their room. A session that keeps it for long ends.
/// Thread safety: all calls from any thread.
class TableBudget {
 public:
  static constexpr std::uint64_t kBytesMaxLeast = 64ull << 20;
  static constexpr double kShareMax = 0.75;

  explicit TableBudget(std::uint64_t bytes_max = kBytesMaxLeast) : bytes_max_(bytes_max) {}

  /// One session's memory.
  class Account final : public TableRoom {
   public:
    /// `asked`: others need room. Called within any resize(), so it only posts; not again before was_told().
    Account(TableBudget& budget, std::string peer, std::function<void()> asked);
    ~Account() override;
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    bool resize(std::size_t bytes) override;
    void was_told() { is_asked_ = false; }

   private:
    friend TableBudget;
    TableBudget& budget_;
    const std::string peer_;
    const std::function<void()> asked_;
    std::size_t bytes_ = 0;  ///< Guarded by the budget's mutex, like `at_`.
    std::list<Account*>::iterator at_;
    std::atomic<bool> is_asked_{false};
  };

  std::uint64_t bytes() const;
  std::uint64_t bytes_max() const { return bytes_max_; }
  std::uint64_t refused_count() const { return refused_; }

 private:
  bool has_room(const std::string& peer, std::size_t more);

  const std::uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::list<Account*> holders_;  ///< With bytes.
  std::map<std::string, std::uint64_t> peers_;
  std::uint64_t bytes_ = 0;
  std::atomic<std::uint64_t> refused_{0};
};

/// The memory of one large request, for as long as it is carried out; nullptr: a small one.
using RequestRoom = std::unique_ptr<TableBudget::Account>;

}  // namespace kv
