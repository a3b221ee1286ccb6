// store/node/machine/file.h: a file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace kv {

/// Owns a descriptor, or is empty. Closing it also releases a lock (flock) taken through it. Thread safety: none.
class File {
 public:
  File() = default;
  explicit File(int opened) : number_(opened) {}  ///< The result of open(); negative: it failed, with errno set.
  File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    other.close();
    return *this;
  }
  ~File() { close(); }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  void close() {
    if (is_open()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace kv
