// base/secret.h: text that must not stay in memory, nor get into a log.
#pragma once

#include <string.h>  // explicit_bzero

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv {

/// Overwrites what a string holds. Its former places, if it grew, are beyond reach: reserve() first.
inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

/// A token or key. Wiped at its end. Prints as nothing: whoever wants the text has to ask for it.
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
  std::vector<char> bytes_;  ///< Never grows, so that no copy is left behind.
};

}  // namespace kv
