// client/tools/progress_line.h: one line on the terminal that is rewritten, for a waiting person.
#pragma once

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <utility>

namespace kv {

/// Tells nothing where standard error is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(bool is_wanted = true, std::chrono::milliseconds first_after = {})
      : is_on_(is_wanted && ::isatty(STDERR_FILENO) == 1), next_(std::chrono::steady_clock::now() + first_after) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `text` is made for at most five calls a second.
  template <class Text>
  void tell(Text text) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_on_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(200);
    is_there_ = true;
    std::cerr << "\r\033[K" << text() << std::flush;
  }
  void clear() {
    if (std::exchange(is_there_, false)) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  const bool is_on_;
  bool is_there_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kv
