#include "client/tools/bench/replay_nodes.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text/quantity.h"
#include "client/tools/text_table.h"

namespace kv {

std::optional<PlayedDeath> parse_death(const std::string& text, const std::vector<std::string>& endpoints,
                                       std::size_t request_count) {
  if (text.empty()) return std::nullopt;
  // From the right: a Unix socket's path may contain '@'.
  const std::size_t at = text.rfind('@');
  const auto request =
      at == std::string::npos ? std::nullopt : parse_number<std::size_t>(std::string_view(text).substr(at + 1));
  if (!request) throw CLI::ValidationError("--fail", "'" + text + "' is not NODE@N; write for example 2@6015");
  // A number is tried first; endpoints begin with a scheme, so the two are distinct.
  const std::string name = text.substr(0, at);
  const auto found = std::ranges::find(endpoints, name);
  const std::size_t node = parse_number<std::size_t>(name).value_or(
      static_cast<std::size_t>(std::ranges::distance(endpoints.begin(), found)));
  if (node >= endpoints.size()) {
    throw CLI::ValidationError("--fail", "'" + name + "' is no endpoint, and no number 0.." +
                                             std::to_string(endpoints.size() - 1) + " of one");
  }
  if (endpoints.size() == 1) throw CLI::ValidationError("--fail", "needs several nodes: with one nothing is left");
  if (*request >= request_count) {
    throw CLI::ValidationError("--fail", "request " + std::to_string(*request) + " is not among the " +
                                             std::to_string(request_count) + " that are replayed");
  }
  return PlayedDeath{node, *request};
}

RequestWindow parse_window(const std::string& text, std::size_t request_count) {
  RequestWindow window;
  const std::size_t plus = text.find('+');
  const auto first = parse_number<std::size_t>(std::string_view(text).substr(0, plus));
  const auto count =
      plus == std::string::npos ? window.count : parse_number<std::size_t>(std::string_view(text).substr(plus + 1));
  if (!first || !count || *count == 0) {
    throw CLI::ValidationError("--window", "'" + text + "' is not FIRST or FIRST+COUNT; write for example 6015+200");
  }
  // As a difference: their sum could wrap.
  if (*first > request_count || *count > request_count - *first) {
    throw CLI::ValidationError("--window", "requests " + std::to_string(*first) + " + " + std::to_string(*count) +
                                               " go beyond the " + std::to_string(request_count) +
                                               " that are replayed");
  }
  return {*first, *count};
}

/// Bound and never listening: the kernel answers with a reset, and reserves the port.
RefusingPort::RefusingPort() : socket_(context_, asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {}

std::string RefusingPort::endpoint() const {
  return "tcp://127.0.0.1:" + std::to_string(socket_.local_endpoint().port());
}

void NodeShares::end(std::vector<NodeStats> after, const std::optional<PlayedDeath>& death) {
  shares_.clear();
  for (std::size_t i = 0; i < after.size(); ++i) {
    // Nodes of a cluster may have come and gone meanwhile. A new one began empty.
    const auto before = std::ranges::find(before_, after[i].name, &NodeStats::name);
    const NodeStats none;
    const NodeStats& then = before == before_.end() ? none : *before;
    Share& share = shares_.emplace_back();
    share.name = after[i].name;
    share.is_dead = death && death->node == i;
    // A node that answered only once has no difference. It stays in the table, as silent.
    share.answers = !after[i].error && !then.error;
    if (!share.answers) continue;
    // `blocks` is a state; the other two count since the node's start, so the run's share is a difference.
    share.blocks = stat(after[i], "blocks");
    share.got = stat(after[i], "get_hit_blocks") - stat(then, "get_hit_blocks");
    share.put = stat(after[i], "stored_blocks") - stat(then, "stored_blocks");
  }
}

double NodeShares::imbalance(double Share::*value) const {
  double most = 0, sum = 0;
  std::size_t count = 0;
  for (const Share& share : shares_) {
    if (!share.answers) continue;
    most = std::max(most, share.*value);
    sum += share.*value;
    ++count;
  }
  // 1 is even. Silent nodes are skipped, since they would make the rest look uneven.
  return sum > 0 ? most * static_cast<double>(count) / sum : 0;
}

nlohmann::json NodeShares::json() const {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Share& share : shares_) {
    nodes.push_back({{"name", share.name},
                     {"answers", share.answers},
                     {"dead", share.is_dead},
                     {"blocks", share.blocks},
                     {"got", share.got},
                     {"stored", share.put}});
  }
  return {{"nodes", nodes},
          {"max_over_mean", {{"blocks", imbalance(&Share::blocks)}, {"got", imbalance(&Share::got)}}}};
}

void NodeShares::print(std::ostream& out) const {
  if (shares_.size() < 2) return;
  const auto count = [](double value) { return format_count(static_cast<std::uint64_t>(value)); };
  TextTable table({"node", "blocks held", "got", "stored", ""});
  for (const Share& share : shares_) {
    const char* const note = share.is_dead ? "dead" : share.answers ? "" : "does not answer";
    if (share.answers) table.add({share.name, count(share.blocks), count(share.got), count(share.put), note});
    if (!share.answers) table.add({share.name, "-", "-", "-", note});
  }
  out << "\n";
  table.print(out);
  out << "largest over mean: blocks held " << format_number(imbalance(&Share::blocks), 2) << ", got "
      << format_number(imbalance(&Share::got), 2) << "\n";
}

}  // namespace kv
