#include "store/node/session/tables/table_budget.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace kv {

TableBudget::Account::Account(TableBudget& budget, std::string peer, std::function<void()> asked)
    : budget_(budget), peer_(std::move(peer)), asked_(std::move(asked)) {}

TableBudget::Account::~Account() {
  const bool done = resize(0);
  KV_ASSERT(done);
}

bool TableBudget::Account::resize(std::size_t bytes) {
  // Changed only by its own session. An empty account may outlive the node, and with it the budget.
  if (bytes == bytes_) return true;
  const std::lock_guard lock(budget_.mutex_);
  if (bytes > bytes_ && !budget_.has_room(peer_, bytes - bytes_)) {
    ++budget_.refused_;
    return false;
  }
  if (bytes_ == 0 && bytes > 0) at_ = budget_.holders_.insert(budget_.holders_.end(), this);
  if (bytes_ > 0 && bytes == 0) budget_.holders_.erase(at_);
  budget_.bytes_ += bytes - bytes_;
  std::uint64_t& own = budget_.peers_[peer_];
  own += bytes - bytes_;
  if (own == 0) budget_.peers_.erase(peer_);
  bytes_ = bytes;
  return true;
}

/// Without room, asks other sessions to give back theirs.
bool TableBudget::has_room(const std::string& peer, std::size_t more) {
  const auto found = peers_.find(peer);
  const std::uint64_t own = found == peers_.end() ? 0 : found->second;
  const bool fits = bytes_ + more <= bytes_max_;
  const double left = fits ? static_cast<double>(bytes_max_ - bytes_ - more) : 0;
  if (fits && (own == 0 || static_cast<double>(own + more) <= kShareMax / (1 - kShareMax) * left)) return true;
  const auto most = std::ranges::max_element(peers_, {}, [](const auto& each) { return each.second; });
  const std::string& asked = fits || most == peers_.end() ? peer : most->first;
  for (Account* const each : holders_) {
    if (each->peer_ == asked && !each->is_asked_.exchange(true)) each->asked_();
  }
  return false;
}

std::uint64_t TableBudget::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kv
