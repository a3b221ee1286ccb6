// client/queue/argument_store.h: a submitted call's copies of its lists, and what else it counts.
#pragma once

#include <cstddef>
#include <memory>

#include "client/request.h"

namespace kv {

/// Whether each hash has its block, if the operation moves blocks.
bool has_blocks(const Request& request);
/// Memory that a submit of `request` counts, besides copies: its blocks, and results by name.
std::size_t data_bytes(const Request& request);

/// One piece of memory for all lists of a call. A call no longer than the one before does not allocate.
class ArgumentStore {
 public:
  /// Of the lists of a submitted call, and its record. Errors: kTooLarge for a list beyond any limit; shorter sums fit.
  static Result<std::size_t> bytes_of(const Request& request, std::size_t bytes_max);
  /// Drops all copies, and lets `request` name copies of its lists. False: out of memory.
  [[nodiscard]] bool take_over(Request& request, std::size_t bytes);

  /// Memory for most calls, with its pages touched, so that the first calls are as fast as later ones. False: out of
  /// memory.
  [[nodiscard]] bool warm_up();

  /// The call has ended: frees a long one's memory.
  void trim() {
    if (capacity_ > kKeptBytesMax) clear();
  }

 private:
  static constexpr std::size_t kWarmBytes = 8 << 10;      // a match of 256 blocks, a get of 170
  static constexpr std::size_t kKeptBytesMax = 64 << 10;  // a chain of 1,300 blocks with their addresses

  bool reserve(std::size_t bytes);
  void clear() {
    memory_.reset();
    capacity_ = 0;
  }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace kv
