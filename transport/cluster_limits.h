// transport/cluster_limits.h: bounds of a node's own entries in the cluster's map, for writers and readers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace kv {

inline constexpr std::size_t kClusterWordMax = 128;  ///< Bytes of an id, a zone, a version; as HelloRequest.identity.
inline constexpr std::size_t kClusterEndpointsMax = 16;  ///< Of one node.

/// Up to kClusterWordMax visible ASCII characters.
inline bool is_cluster_word(std::string_view text) {
  return text.size() <= kClusterWordMax && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
}

}  // namespace kv
