// client/tools/ctl/cluster/cluster_look.h: compares the reports of a cluster's nodes: hot blocks, and faults.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/tools/ctl/doctor/doctor.h"
#include "client/tools/node_stats.h"

namespace kv {

struct MemberWord {
  std::string id;
  bool has_answered = false;
  std::map<std::string, double> values;  ///< Of its stats.
  double asked_at = 0;                   ///< By this machine's wall clock, in seconds.
  std::vector<nlohmann::json> hot = {};  ///< Its common beginnings of matches.
};
MemberWord word_of(const std::string& id, const NodeStats& said, double asked_at);

/// Paths that a node could not hand over at the last change of owners, by reason. Empty: none.
std::map<std::string, std::uint64_t> unmoved_paths(const std::map<std::string, double>& values);
/// "12 paths (node unavailable; n2: refused), 3 paths (out of memory)".
std::string unmoved_text(const std::map<std::string, std::uint64_t>& unmoved);

/// Blocks that many prompts begin with, named by the last block.
struct HotBeginning {
  std::string space, last;  ///< The first 12 digits of the namespace's id, and of the last block's hash.
  std::uint64_t block_count = 0;
  bool is_hot = false;  ///< On some node.
  struct Word {
    std::string node;
    double share = 0;  ///< Of this node's recent matches.
    bool is_hot = false;
    std::uint64_t version = 0;  ///< Of the namespace's list there.
  };
  std::vector<Word> words;
  double share() const;  ///< The largest.
};
/// The most used first.
std::vector<HotBeginning> hot_beginnings(const std::vector<MemberWord>& words);

/// Clocks, versions, pairs that do not reach each other, maps, hot sets, leases, settings, hand-overs that failed.
Findings check_cluster(const std::vector<MemberWord>& words);

}  // namespace kv
