// base/numa.h: which memory and processors belong together, and how to stay with some of them.
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

/// "0-3,8" as the kernel writes sets of nodes and processors: ascending, each once. Nothing if it is not that, or names
/// a number beyond 8191. An empty text is an empty set.
std::optional<std::vector<unsigned>> parse_number_list(std::string_view text);
std::string number_list_text(std::span<const unsigned> numbers);  ///< Requires: ascending. The shortest such text.

struct NumaNode {
  unsigned number = 0;
  std::vector<unsigned> processors;   ///< Online. Empty: a node of memory alone.
  std::uint64_t memory_bytes = 0;     ///< 0: it has none, or none that this process may use.
  std::uint64_t available_bytes = 0;  ///< Of it: free, or holding parts of files that were not used lately.
};

struct NumaTopology {
  std::vector<NumaNode> nodes;  ///< Those online, by number; one at least: a kernel that tells of none has one.

  /// Reads /sys and /proc below `root`, which tests set. What cannot be read is as if it were not there.
  static NumaTopology read(const std::string& root = "");
  const NumaNode* find(unsigned number) const;  ///< Null if there is none.
  std::vector<unsigned> with_memory() const;
};

/// Where memory for blocks is to lie, and who works on it.
struct NumaChoice {
  std::vector<unsigned> memory;      ///< Nodes, page by page in turns. Empty: as the kernel does without being asked.
  std::vector<unsigned> processors;  ///< All threads keep to these. Empty: to none in particular.
};
/// `wish`: "auto" (all nodes, if there are several), "off", or nodes such as "1" or "0-1". On a machine with one node
/// nothing is ever chosen. Errors: a node that is not there or has no memory; the text says which there are.
Result<NumaChoice, Failure> choose_numa(const NumaTopology& topology, const std::string& wish);

std::vector<unsigned> allowed_processors();  ///< That the calling thread may run on.
bool has_memory_policy();                    ///< Somebody has said already where memory is to lie: numactl, mostly.

/// The calling thread, and those that it starts from now on, run on these, as far as they were allowed before. Errors:
/// of sched_setaffinity; EINVAL if none of them was.
error_code keep_to_processors(std::span<const unsigned> processors);

/// From now on pages that the calling thread touches first lie on the nodes in turns. A node that is full is passed
/// over, so this never makes memory fail that would be there. Threads that are started from now on inherit it. No
/// nodes: does nothing. Errors, and then nothing has changed: EPERM, a container's filter; EINVAL, a node that is not
/// there.
error_code lay_memory_on(std::span<const unsigned> nodes);

/// The same until its end.
class MemoryPlacement {
 public:
  explicit MemoryPlacement(std::span<const unsigned> nodes);
  ~MemoryPlacement();  ///< The policy is what it was. Requires: the same thread.
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
/// touches first lie on the chosen nodes, so the caller's thread stays as it is. Threads that `work` starts inherit
/// both; none of them gets a signal. Nothing is chosen, or there is no thread to be had: on the caller's. What `work`
/// throws comes out here. Returns why memory could not be placed: it then lies where the kernel puts it, which is near
/// the processor that touches it first.
error_code run_on_nodes(const NumaChoice& choice, const std::function<void()>& work);

std::vector<std::size_t> pages_to_look_at(std::size_t page_count, std::size_t looks);  ///< Ascending, each once.
/// Where pages lie: how many of those looked at are on each node.
using NumaSpread = std::map<unsigned, std::size_t>;
/// Looks at `looks` pages, spread evenly; those without memory behind them are left out. Cost: 200 ns each, about.
/// Errors: of move_pages; EPERM where a container's filter forbids to ask.
Result<NumaSpread> look_where_pages_lie(std::span<const std::byte> memory, std::size_t looks);

/// What metrics tell of it.
struct NumaLook {
  std::size_t node_count = 1;                     ///< With memory.
  std::vector<unsigned> chosen;                   ///< Empty: the kernel places pages.
  std::optional<NumaSpread> spread;               ///< Nothing: not to be found out.
  std::optional<double> largest_share() const;    ///< Of the pages, those on the node that has most of them.
  std::optional<double> misplaced_share() const;  ///< Those on nodes that were not chosen.
};

}  // namespace kv
