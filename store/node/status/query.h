// store/node/status/query.h: the parameters of a question, which may come from anybody who reaches the admin port.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/node/options/settings.h"

namespace kv {

/// "a=1&b=2", percent-decoded, each name at most once.
class Query {
 public:
  explicit Query(std::string_view text) : given_(parse_assignments(text)) {}

  /// nullopt: not given. Each parameter is taken once.
  std::optional<std::string> take(std::string_view name) {
    if (!given_) return std::nullopt;
    const auto found = std::ranges::find(*given_, name, &Settings::Assignment::name);
    if (found == given_->end() || found->values.size() != 1) return std::nullopt;
    std::string value = std::move(found->values.front());
    given_->erase(found);
    return value;
  }
  /// Whether the text was well formed, and all of it was taken.
  bool is_read() const { return given_ && given_->empty(); }

 private:
  std::optional<std::vector<Settings::Assignment>> given_;
};

}  // namespace kv
