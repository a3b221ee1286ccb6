// store/tree_sums.h: size and use of the trees' parts, from a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "store/store.h"

namespace kv {

/// Merges edges that came path by path into a tree of namespaces and edges, with sums over all edges below.
///   1. A sum is that of the weights of the edges at and below: exact for all edges, else an unbiased estimate.
///   2. select() returns at most `count_max` parts; the other blocks are in the sum of a part above.
/// Edges that were split or joined during the sampling may appear in both forms; sums count each visited block once.
/// Not thread-safe. Cost: O(log edges) for each edge.
class TreeSums {
 public:
  struct Part {
    static constexpr std::size_t kNone = ~std::size_t{0};

    std::size_t parent =
        kNone;                ///< In the result of select(), always before it. kNone: a namespace, or the scope's top.
    LookDesk::EdgeView edge;  ///< Last form; latest `used` at and below. Namespace: only `space`.
    bool is_space = false;
    std::uint64_t block_count = 0, bytes = 0, copied_count = 0;  ///< At and below.
    double uses = 0;                                             ///< At and below; one edge counts at most 255.
    std::uint32_t hidden_count = 0;                              ///< Direct children that are not in the result.
  };

  /// Edges as Store::list_edges or Store::sample_edges appended them, in any number of calls.
  void add(std::span<const LookDesk::EdgeView> edges);
  /// The largest parts, each behind the one above it, siblings by size.
  std::vector<Part> select(std::size_t count_max) const;
  std::size_t part_count() const { return parts_.size(); }

 private:
  struct Node {
    Part part;  // without sums of the nodes below
    std::size_t above = Part::kNone;
    std::vector<std::size_t> children;
  };
  struct Key {
    std::size_t above;
    std::uint64_t space, name;
    auto operator<=>(const Key&) const = default;
  };

  std::size_t find_or_add(std::size_t above, const LookDesk::EdgeView& edge, bool is_space);

  std::vector<Node> parts_;  // each behind the one above it
  std::map<Key, std::size_t> index_;
};

}  // namespace kv
