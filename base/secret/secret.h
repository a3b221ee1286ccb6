// base/secret/secret.h: text to keep out of memory dumps and logs.
#pragma once

#include <string.h>  // explicit_bzero

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv {

/// Overwrites a string's content. Former buffers, if it grew, are out of reach: reserve() first.
inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

/// A token or key. Wiped at its end. Not printable: callers have to ask for the text.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view text) : bytes_(text.begin(), text.end()) {}
  Secret(const Secret&) = default;
  Secret(Secret&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Secret& operator=(Secret other) noexcept {
    bytes_.swap(other.bytes_);
    return *this;
  }
  ~Secret() {
    if (!bytes_.empty()) ::explicit_bzero(bytes_.data(), bytes_.size());
  }

  bool empty() const { return bytes_.empty(); }
  std::string_view text() const { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<char> bytes_;  ///< Never grows, so that copies are not left behind.
};

}  // namespace kv
