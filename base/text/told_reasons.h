// base/text/told_reasons.h: which reasons of a lasting failure a log has had.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

/// A failure is tried again every second: each of its reasons is logged once, until it is over. A line that only comes
/// with the first failure would keep the first reason, whatever the later ones are. Thread safety: none.
class ToldReasons {
 public:
  /// Whether the log has not had this reason yet. Beyond kReasonsMax reasons it is told no more of them.
  bool is_new(std::string_view reason) {
    if (reasons_.size() >= kReasonsMax || std::ranges::find(reasons_, reason) != reasons_.end()) return false;
    reasons_.emplace_back(reason);
    return true;
  }
  /// The failure is over. False: there was none.
  bool clear() {
    const bool had_any = !reasons_.empty();
    reasons_.clear();
    return had_any;
  }

 private:
  static constexpr std::size_t kReasonsMax = 16;
  std::vector<std::string> reasons_;
};

}  // namespace kv
