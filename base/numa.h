// base/numa.h: NUMA nodes: their memory and processors, and how to stay on some of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kv {

/// Parses "0-3,8", the kernel's form for sets of nodes and processors: ascending, each once. Empty result: not of this
/// form, or a number beyond 8191. An empty text is an empty set.
std::optional<std::vector<unsigned>> parse_number_list(std::string_view text);
std::string number_list_text(std::span<const unsigned> numbers);  ///< Requires: ascending. The shortest such text.

struct NumaNode {
  unsigned number = 0;
  std::vector<unsigned> processors;   ///< Online. Empty: only memory.
  std::uint64_t memory_bytes = 0;     ///< 0: without memory that this process may use.
  std::uint64_t available_bytes = 0;  ///< Free, or caching files that were not used lately.
};

struct NumaTopology {
  std::vector<NumaNode> nodes;  ///< Online nodes, by number; at least one: a kernel without NUMA counts as one node.

  /// Reads /sys and /proc below `root`, which tests set. Unreadable files count as absent.
  static NumaTopology read(const std::string& root = "");
  const NumaNode* find(unsigned number) const;
  std::vector<unsigned> with_memory() const;
};

/// Where the memory for blocks is placed, and the processors of the threads that work on it.
struct NumaChoice {
  std::vector<unsigned> memory;      ///< Nodes, page by page in turns. Empty: the kernel's default.
  std::vector<unsigned> processors;  ///< For all threads. Empty: unrestricted.
};
/// `wish`: "auto" (all nodes, if there are several), "off", or nodes such as "1" or "0-1". On a machine with one node
/// the choice is always empty. Errors: a node is absent or lacks memory; the text lists the present ones.
Result<NumaChoice, Failure> choose_numa(const NumaTopology& topology, const std::string& wish);

std::vector<unsigned> allowed_processors();  ///< For the calling thread.
bool has_memory_policy();                    ///< A memory policy is set already, mostly by numactl.

/// Restricts the calling thread, and threads that it starts from now on, to those of `processors` that were allowed
/// before. Errors: as sched_setaffinity; EINVAL if none was allowed.
error_code keep_to_processors(std::span<const unsigned> processors);

/// From now on pages that the calling thread touches first lie on the nodes in turns. A full node is passed over, so
/// allocations never fail while there is memory. Threads started from now on inherit this. After an error nothing has
/// changed: EPERM, a container's filter; EINVAL, an absent node.
error_code lay_memory_on(std::span<const unsigned> nodes);

/// The same for the object's lifetime.
class MemoryPlacement {
 public:
  explicit MemoryPlacement(std::span<const unsigned> nodes);
  ~MemoryPlacement();  ///< Restores the policy. Requires: the same thread.
  MemoryPlacement(const MemoryPlacement&) = delete;
  MemoryPlacement& operator=(const MemoryPlacement&) = delete;
  error_code error() const { return error_; }

 private:
  static constexpr std::size_t kWords = 8192 / (8 * sizeof(unsigned long));

  error_code error_;
  bool is_set_ = false;
  int mode_before_ = 0;
  unsigned long nodes_before_[kWords] = {};
};

/// Calls `work` on a thread of its own and waits for it. That thread keeps to the chosen processors, and pages that it
/// touches first lie on the chosen nodes; the caller's thread is unchanged. Threads that `work` starts inherit both;
/// they do not receive signals. With an empty choice, or when a thread cannot be started: runs on the caller's.
/// Rethrows exceptions of `work`. Returns why memory could not be placed: it then lies where the kernel puts it, near
/// the processor that touches it first.
error_code run_on_nodes(const NumaChoice& choice, const std::function<void()>& work);

std::vector<std::size_t> pages_to_look_at(std::size_t page_count, std::size_t looks);  ///< Ascending, each once.
/// The number of sampled pages on each node.
using NumaSpread = std::map<unsigned, std::size_t>;
/// Samples `looks` pages, spread evenly, leaving out those without memory. Cost: about 200 ns each. Errors: as
/// move_pages; EPERM where a container's filter forbids the query.
Result<NumaSpread> look_where_pages_lie(std::span<const std::byte> memory, std::size_t looks);

struct NumaLook {
  std::size_t node_count = 1;                     ///< With memory.
  std::vector<unsigned> chosen;                   ///< Empty: the kernel places pages.
  std::optional<NumaSpread> spread;               ///< Empty: unknown.
  std::optional<double> largest_share() const;    ///< The share of the node with most pages.
  std::optional<double> misplaced_share() const;  ///< The share on nodes that were not chosen.
};

}  // namespace kv
