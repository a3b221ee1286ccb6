// tests/store/oldest_window.h: the result of a whole search for a window to clear.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "store/memory/arena.h"

namespace kv {

/// The oldest window for blocks of that size, if any.
inline std::optional<Arena::Window> oldest_window(const Arena& arena, std::size_t block_bytes) {
  if (!arena.fits(block_bytes)) return std::nullopt;
  Arena::Search whole;
  Steps steps(std::numeric_limits<std::size_t>::max());
  arena.search(block_bytes, whole, steps);
  const auto oldest =
      std::min_element(whole.aligned.begin(), whole.aligned.end(), [](const Arena::Window& a, const Arena::Window& b) {
        return std::tie(a.last_use, a.first_granule) < std::tie(b.last_use, b.first_granule);
      });
  return oldest != whole.aligned.end() ? *oldest : whole.anywhere;
}

}  // namespace kv
