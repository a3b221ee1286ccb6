#include "client/tools/ctl/cluster/cluster_look.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>

#include "base/text/printable.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

constexpr double kSkewMaxSeconds = 0.5;  ///< Rounds of the exchange begin by the clock, every ten seconds.

double value_of(const MemberWord& word, const std::string& name, double otherwise = 0) {
  const auto found = word.values.find(name);
  return found == word.values.end() ? otherwise : found->second;
}

/// "a, b: 2; c: 0", for values that differ.
std::string who_says_what(const std::vector<MemberWord>& words, const std::string& name,
                          const std::function<std::string(double)>& text_of) {
  std::map<double, std::string> ids;
  for (const MemberWord& word : words) {
    const auto found = word.values.find(name);
    if (found == word.values.end()) continue;
    std::string& list = ids[found->second];
    list += (list.empty() ? "" : ", ") + word.id;
  }
  std::string text;
  if (ids.size() < 2) return text;
  for (const auto& [value, list] : ids) text += (text.empty() ? "" : "; ") + list + ": " + text_of(value);
  return text;
}

std::string number_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? format_number(value, 0) : format_number(value, 3);
}

std::string version_text(double number) {
  const auto whole = static_cast<std::uint64_t>(number);
  return std::to_string(whole / 1'000'000) + "." + std::to_string(whole / 1000 % 1000) + "." +
         std::to_string(whole % 1000);
}

void check_clocks(const std::vector<MemberWord>& words, Findings& findings) {
  double least = 0, most = 0;
  std::string first, last;
  for (const MemberWord& word : words) {
    if (!word.values.contains("wall_seconds")) continue;
    const double ahead = value_of(word, "wall_seconds") - word.asked_at;
    if (first.empty() || ahead < least) least = ahead, first = word.id;
    if (last.empty() || ahead > most) most = ahead, last = word.id;
  }
  if (first.empty()) return;
  const bool is_far = most - least > kSkewMaxSeconds;
  findings.push_back({"clocks", is_far ? Verdict::kWarning : Verdict::kOk,
                      is_far ? last + " is " + format_number(most - least, 1) + " s ahead of " + first
                             : "within " + format_number(most - least, 2) + " s of one another",
                      is_far ? "nodes learn together at moments by the clock: run NTP on their machines" : ""});
}

void check_pairs(const std::vector<MemberWord>& words, Findings& findings) {
  std::string unreached;
  std::size_t pairs = 0;
  bool is_tls = false;  // of at least one
  for (const MemberWord& word : words) {
    for (const MemberWord& other : words) {
      const std::string name = "cluster_node/" + other.id + "/reached";
      if (!word.values.contains(name) || !other.has_answered) continue;  // a silent node is reported as such
      ++pairs;
      if (value_of(word, name) != 0) continue;
      const bool is_refused = word.values.contains("cluster_node/" + other.id + "/refused_by_tls");
      unreached += (unreached.empty() ? "" : ", ") + word.id + " -> " + other.id + (is_refused ? " (TLS)" : "");
      is_tls = is_tls || is_refused;
    }
  }
  if (pairs == 0) return;
  findings.push_back({"node to node", unreached.empty() ? Verdict::kOk : Verdict::kFailed,
                      unreached.empty() ? std::to_string(pairs) + " ways, all open" : "not reached: " + unreached,
                      unreached.empty() ? ""
                      : is_tls          ? "one side refuses the other's certificate, and its log says why: "
                                          "tls-allowed-name must have the names of the cluster's own nodes, tls-ca who "
                                          "signed them (docs/security.md). What moves between them is lost"
                                        : "both answer here: is there a firewall between them, or an address in "
                                          "`advertise` that only some machines know? What moves between them is lost"});
}

void check_maps(const std::vector<MemberWord>& words, Findings& findings) {
  std::string epochs;
  std::set<double> digests;
  for (const MemberWord& word : words) {
    if (!word.has_answered) continue;
    digests.insert(value_of(word, "cluster_digest"));
    epochs += (epochs.empty() ? "" : ", ") + word.id + ": " + number_text(value_of(word, "cluster_epoch"));
  }
  const bool is_one = digests.size() <= 1;
  findings.push_back({"maps", is_one ? Verdict::kOk : Verdict::kWarning,
                      is_one ? "all nodes have the same" : "they differ; epochs " + epochs,
                      is_one ? ""
                             : "that passes within seconds after a change; a node that stays behind has lost etcd "
                               "(its log, kvstore_cluster_etcd_is_reachable)"});
}

void check_etcd(const std::vector<MemberWord>& words, Findings& findings) {
  for (const MemberWord& word : words) {
    if (!word.values.contains("cluster_etcd_is_writable") || value_of(word, "cluster_etcd_is_writable") != 0) continue;
    findings.push_back({"etcd of " + word.id, Verdict::kFailed,
                        "answers and refuses this node's changes: others do not learn that it joins, drains or leaves",
                        "the node's log has etcd's reason; out of space: `etcdctl alarm list`, compact, defragment, "
                        "`etcdctl alarm disarm`; no right: give its etcd-user write access to the prefix"});
  }
}

void check_leases(const std::vector<MemberWord>& words, Findings& findings) {
  for (const MemberWord& word : words) {
    if (!word.values.contains("cluster_lease_left_seconds")) continue;
    const double left = value_of(word, "cluster_lease_left_seconds"),
                 whole = value_of(word, "setting/etcd-lease-seconds");
    // A healthy node renews it after a third of its time.
    if (whole <= 0 || left > whole / 2) continue;
    findings.push_back({"lease of " + word.id, left <= 0 ? Verdict::kFailed : Verdict::kWarning,
                        left <= 0 ? "has ended: the node is off the list, or will be"
                                  : format_number(left, 1) + " s of " + format_number(whole, 0) + " left",
                        "the node does not reach etcd, or etcd is slow: its log, `etcdctl endpoint status`"});
  }
}

void check_hand_overs(const std::vector<MemberWord>& words, Findings& findings) {
  bool tells = false, is_whole = true;
  for (const MemberWord& word : words) {
    tells = tells || word.values.contains("cluster_unmoved_paths");
    const auto unmoved = unmoved_paths(word.values);
    if (!unmoved.empty()) {
      findings.push_back({"hand-over of " + word.id, Verdict::kWarning, "not handed over: " + unmoved_text(unmoved),
                          "clients look for these blocks at their next owners and miss them. Mend the reason before "
                          "this node stops, then `kvstorectl cluster undrain` and drain it again (docs/cluster.md)"});
    }
    const double copies = value_of(word, "cluster_copy_failures");
    if (copies > 0) {
      findings.push_back({"second copies of " + word.id, Verdict::kNote,
                          format_number(copies, 0) + " paths not copied, or not whole, since start",
                          "their blocks are lost with this node: the log of the receiver says why"});
    }
    is_whole = is_whole && unmoved.empty();
  }
  if (tells && is_whole) findings.push_back({"hand-overs", Verdict::kOk, "none has failed", ""});
}

void check_settings(const std::vector<MemberWord>& words, Findings& findings) {
  std::set<std::string> names;
  for (const MemberWord& word : words) {
    for (const auto& [name, value] : word.values) {
      if (name.starts_with("setting/")) names.insert(name);
    }
  }
  bool are_equal = true;
  for (const std::string& name : names) {
    const bool is_version = name == "setting/version";
    const std::string differ = who_says_what(words, name, is_version ? version_text : number_text);
    if (differ.empty()) continue;
    are_equal = false;
    findings.push_back({is_version ? "versions" : name.substr(8), is_version ? Verdict::kNote : Verdict::kWarning,
                        differ,
                        is_version ? "they work side by side; finish the upgrade, one node after the other"
                                   : "give all nodes of a cluster the same"});
  }
  if (are_equal && !names.empty()) findings.push_back({"settings", Verdict::kOk, "all nodes have the same", ""});
}

/// Nodes count independently, so lists usually differ a little.
void check_hot(const std::vector<MemberWord>& words, Findings& findings) {
  std::size_t hot = 0, by_all = 0, answered = 0;
  for (const MemberWord& word : words) answered += word.has_answered;
  for (const HotBeginning& one : hot_beginnings(words)) {
    if (!one.is_hot) continue;
    ++hot;
    const auto count = std::ranges::count_if(one.words, [](const HotBeginning::Word& word) { return word.is_hot; });
    by_all += static_cast<std::size_t>(count) == answered;
  }
  if (hot == 0) return;
  findings.push_back(
      {"hot sets", by_all == hot ? Verdict::kOk : Verdict::kNote,
       std::to_string(hot) + " hot beginnings, " + std::to_string(by_all) + " of them on all nodes' lists",
       by_all == hot ? "" : "each node counts for itself; `kvstorectl cluster hot` shows them"});
}

}  // namespace

MemberWord word_of(const std::string& id, const NodeStats& said, double asked_at) {
  return {id, !said.error, values_in(said.said, "values"), asked_at, rows_in(said.said, "hot")};
}

std::map<std::string, std::uint64_t> unmoved_paths(const std::map<std::string, double>& values) {
  constexpr std::string_view kPrefix = "cluster_unmoved/";
  std::map<std::string, std::uint64_t> unmoved;
  for (const auto& [name, value] : values) {
    if (name.starts_with(kPrefix) && value > 0)
      unmoved.emplace(printable(name.substr(kPrefix.size())), static_cast<std::uint64_t>(value));
  }
  return unmoved;
}

std::string unmoved_text(const std::map<std::string, std::uint64_t>& unmoved) {
  std::string text;
  for (const auto& [why, paths] : unmoved)
    text += (text.empty() ? "" : ", ") + format_count(paths) + (paths == 1 ? " path (" : " paths (") + why + ")";
  return text;
}

double HotBeginning::share() const {
  double most = 0;
  for (const Word& word : words) most = std::max(most, word.share);
  return most;
}

std::vector<HotBeginning> hot_beginnings(const std::vector<MemberWord>& words) {
  std::map<std::pair<std::string, std::string>, HotBeginning> found;
  for (const MemberWord& word : words) {
    for (const nlohmann::json& row : word.hot) {
      const std::string space = text_in(row, "namespace"), last = text_in(row, "last");
      HotBeginning& one = found[{space, last}];
      one.space = space;
      one.last = last;
      one.block_count = count_in(row, "blocks");
      const bool is_hot = number_in(row, "is_hot") != 0;
      one.is_hot = one.is_hot || is_hot;
      one.words.push_back({word.id, number_in(row, "share"), is_hot, count_in(row, "version")});
    }
  }
  std::vector<HotBeginning> list;
  for (auto& [name, one] : found) list.push_back(std::move(one));
  std::ranges::stable_sort(list, std::ranges::greater(), &HotBeginning::share);
  return list;
}

Findings check_cluster(const std::vector<MemberWord>& words) {
  Findings findings;
  check_maps(words, findings);
  check_pairs(words, findings);
  check_etcd(words, findings);
  check_leases(words, findings);
  check_hand_overs(words, findings);
  check_clocks(words, findings);
  check_settings(words, findings);
  check_hot(words, findings);
  return findings;
}

}  // namespace kv
