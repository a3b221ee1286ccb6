#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "base/kernel_files.h"

namespace kv {
namespace {

constexpr unsigned kNumberMax = 8191;  ///< For nodes and processors; kernels are built for less.
constexpr std::size_t kPageBytes = 4096;

/// The bytes of "Node 0 MemFree:   18915748 kB", by name; 0 if the file lacks the name.
std::uint64_t node_memory(const std::string& meminfo, const std::string& name) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(" " + name + ":");
    if (at == std::string::npos) continue;
    std::istringstream value(line.substr(at + name.size() + 2));
    std::uint64_t kib = 0;
    return value >> kib && kib < (std::uint64_t{1} << 50) ? kib << 10 : 0;
  }
  return 0;
}

/// Nodes whose memory this process may use; empty if the kernel does not say.
std::optional<std::vector<unsigned>> allowed_memory_nodes(const std::string& root) {
  const std::string list = kernel_value(root + "/proc/self/status", "Mems_allowed_list");
  return list.empty() ? std::nullopt : parse_number_list(list);
}

std::vector<unsigned> online_nodes(const std::string& folder) {
  const auto listed = parse_number_list(first_line(folder + "/online"));
  if (listed && !listed->empty()) return *listed;
  std::vector<unsigned> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("node")) continue;
    const auto number = parse_number_list(name.substr(4));
    if (number && number->size() == 1) found.push_back(number->front());
  }
  std::ranges::sort(found);
  return found;
}

std::string nodes_there(const NumaTopology& topology) {
  return "this machine has memory on " + number_list_text(topology.with_memory());
}

}  // namespace

std::optional<std::vector<unsigned>> parse_number_list(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  std::vector<unsigned> numbers;
  const auto take = [&text]() -> std::optional<unsigned> {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number > kNumberMax) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
  };
  while (!text.empty()) {
    const auto first = take();
    auto last = first;
    if (first && text.starts_with('-')) {
      text.remove_prefix(1);
      last = take();
    }
    if (!first || !last || *last < *first || (!numbers.empty() && *first <= numbers.back())) return std::nullopt;
    for (unsigned number = *first; number <= *last; ++number) numbers.push_back(number);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return numbers;
}

std::string number_list_text(std::span<const unsigned> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
    if (end - i > 1) text += "-" + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

NumaTopology NumaTopology::read(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  const auto allowed = allowed_memory_nodes(root);
  NumaTopology topology;
  for (const unsigned number : online_nodes(folder)) {
    const std::string own = folder + "/node" + std::to_string(number);
    std::ifstream file(own + "/meminfo");
    std::ostringstream meminfo;
    meminfo << file.rdbuf();
    NumaNode node{.number = number};
    node.processors = parse_number_list(first_line(own + "/cpulist")).value_or(std::vector<unsigned>());
    if (!allowed || std::ranges::binary_search(*allowed, number)) {
      node.memory_bytes = node_memory(meminfo.str(), "MemTotal");
      node.available_bytes = node_memory(meminfo.str(), "MemFree") + node_memory(meminfo.str(), "Inactive(file)");
    }
    topology.nodes.push_back(std::move(node));
  }
  if (topology.with_memory().empty()) {
    const auto processors = parse_number_list(first_line(root + "/sys/devices/system/cpu/online"));
    topology.nodes = {{.number = 0, .processors = processors.value_or(std::vector<unsigned>()), .memory_bytes = 1}};
  }
  return topology;
}

const NumaNode* NumaTopology::find(unsigned number) const {
  const auto found = std::ranges::find(nodes, number, &NumaNode::number);
  return found == nodes.end() ? nullptr : &*found;
}

std::vector<unsigned> NumaTopology::with_memory() const {
  std::vector<unsigned> numbers;
  for (const NumaNode& node : nodes) {
    if (node.memory_bytes > 0) numbers.push_back(node.number);
  }
  return numbers;
}

Result<NumaChoice, Failure> choose_numa(const NumaTopology& topology, const std::string& wish) {
  const std::vector<unsigned> all = topology.with_memory();
  KV_ASSERT(!all.empty());
  NumaChoice choice;
  if (wish == "off") return choice;
  if (wish == "auto") {
    if (all.size() > 1) choice.memory = all;
    return choice;
  }
  const auto wanted = parse_number_list(wish);
  if (!wanted || wanted->empty())
    return Failure(Errc::kBadRequest, "'" + wish + "'; allowed: auto, off, or nodes such as 0 or 0-1,3");
  std::size_t processor_count = 0;
  for (const NumaNode& node : topology.nodes) processor_count += node.processors.size();
  for (const unsigned number : *wanted) {
    const NumaNode* const node = topology.find(number);
    if (node == nullptr || node->memory_bytes == 0) {
      return Failure(Errc::kBadRequest,
                     "'" + wish + "'; node " + std::to_string(number) +
                         (node == nullptr ? " is not there: " : " has no memory for this process: ") +
                         nodes_there(topology));
    }
    choice.processors.insert(choice.processors.end(), node->processors.begin(), node->processors.end());
  }
  std::ranges::sort(choice.processors);
  if (choice.processors.size() == processor_count) choice.processors.clear();
  if (all.size() > 1) choice.memory = *wanted;
  return choice;
}

std::vector<unsigned> allowed_processors() {
  cpu_set_t sets[(kNumberMax + 1) / CPU_SETSIZE];
  std::vector<unsigned> processors;
  if (::sched_getaffinity(0, sizeof sets, sets) != 0) return processors;
  for (unsigned number = 0; number <= kNumberMax; ++number) {
    if (CPU_ISSET_S(number, sizeof sets, sets)) processors.push_back(number);
  }
  return processors;
}

error_code keep_to_processors(std::span<const unsigned> processors) {
  const std::vector<unsigned> allowed = allowed_processors();
  cpu_set_t sets[(kNumberMax + 1) / CPU_SETSIZE];
  CPU_ZERO_S(sizeof sets, sets);
  bool has_any = false;
  for (const unsigned number : processors) {
    if (!std::ranges::binary_search(allowed, number)) continue;
    CPU_SET_S(number, sizeof sets, sets);
    has_any = true;
  }
  if (!has_any) return {EINVAL, boost::system::generic_category()};
  return ::sched_setaffinity(0, sizeof sets, sets) == 0 ? error_code() : last_errno();
}

bool has_memory_policy() {
  int mode = MPOL_DEFAULT;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, nullptr, 0ul) == 0 && mode != MPOL_DEFAULT;
}

/// In turns rather than bound: a bound page on a full node would be an error, or the end of the process.
error_code lay_memory_on(std::span<const unsigned> nodes) {
  if (nodes.empty()) return {};
  constexpr unsigned long kBits = 8 * sizeof(unsigned long);
  // The kernel uses one bit less than the given number.
  constexpr unsigned long kMost = kNumberMax + 1;
  unsigned long mask[kMost / kBits] = {};
  for (const unsigned number : nodes) {
    KV_ASSERT(number < kMost - 1);
    mask[number / kBits] |= 1ul << number % kBits;
  }
  return ::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, kMost) == 0 ? error_code() : last_errno();
}

MemoryPlacement::MemoryPlacement(std::span<const unsigned> nodes) {
  if (nodes.empty()) return;
  if (::syscall(SYS_get_mempolicy, &mode_before_, nodes_before_, sizeof nodes_before_ * 8, nullptr, 0ul) != 0) {
    error_ = last_errno();
    return;
  }
  error_ = lay_memory_on(nodes);
  is_set_ = !error_;
}

MemoryPlacement::~MemoryPlacement() {
  if (!is_set_) return;
  const bool is_plain = mode_before_ == MPOL_DEFAULT;
  const long undone = ::syscall(SYS_set_mempolicy, mode_before_, is_plain ? nullptr : nodes_before_,
                                is_plain ? 0ul : kWords * 8 * sizeof(unsigned long));
  KV_ASSERT(undone == 0);
}

error_code run_on_nodes(const NumaChoice& choice, const std::function<void()>& work) {
  if (choice.memory.empty() && choice.processors.empty()) {
    work();
    return {};
  }
  error_code unplaced;
  std::exception_ptr thrown;
  const auto run = [&] {
    try {
      // Processors first: with only these the kernel places most pages well, where a filter forbids a policy.
      if (!choice.processors.empty()) static_cast<void>(keep_to_processors(choice.processors));
      unplaced = lay_memory_on(choice.memory);
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  // Signals are for the process's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(run);
  } catch (const std::system_error& error) {
    unplaced = error_code(error.code().value(), boost::system::system_category());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) {
    work();
    return unplaced;
  }
  thread.join();
  if (thrown) std::rethrow_exception(thrown);
  return unplaced;
}

/// One at a random place in each of equally long stretches: at fixed distances they would coincide with the turns in
/// which pages lie on nodes, and all be on one.
std::vector<std::size_t> pages_to_look_at(std::size_t page_count, std::size_t looks) {
  std::vector<std::size_t> pages(std::min(looks, page_count));
  std::uint64_t state = page_count;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::size_t begin = page_count * i / pages.size(), end = page_count * (i + 1) / pages.size();
    state = state * 6364136223846793005u + 1442695040888963407u;
    pages[i] = begin + (state >> 33) % (end - begin);
  }
  return pages;
}

Result<NumaSpread> look_where_pages_lie(std::span<const std::byte> memory, std::size_t looks) {
  const std::size_t page_count = memory.size() / kPageBytes;
  looks = std::min(looks, page_count);
  NumaSpread spread;
  if (looks == 0) return spread;
  std::vector<const void*> pages(looks);
  std::vector<int> nodes(looks, -1);
  const std::vector<std::size_t> chosen = pages_to_look_at(page_count, looks);
  for (std::size_t i = 0; i < looks; ++i) pages[i] = memory.data() + chosen[i] * kPageBytes;
  if (::syscall(SYS_move_pages, 0, looks, pages.data(), nullptr, nodes.data(), 0) != 0) return last_errno();
  for (const int node : nodes) {
    if (node >= 0) ++spread[static_cast<unsigned>(node)];
  }
  return spread;
}

namespace {

double share_of(const NumaSpread& spread, std::size_t part) {
  std::size_t all = 0;
  for (const auto& [node, count] : spread) all += count;
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

std::optional<double> NumaLook::largest_share() const {
  if (!spread || spread->empty()) return std::nullopt;
  std::size_t most = 0;
  for (const auto& [node, count] : *spread) most = std::max(most, count);
  return share_of(*spread, most);
}

std::optional<double> NumaLook::misplaced_share() const {
  if (!spread || spread->empty()) return std::nullopt;
  std::size_t elsewhere = 0;
  for (const auto& [node, count] : *spread) {
    if (!chosen.empty() && !std::ranges::binary_search(chosen, node)) elsewhere += count;
  }
  return share_of(*spread, elsewhere);
}

}  // namespace kv
