// kvstorectl cluster hot: common beginnings of prompts, which lie on every node.
#include <cstdio>
#include <iostream>

#include "client/tools/ctl/cluster/cluster_look.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

std::string hex_48(std::uint64_t bits) {
  char text[13];
  std::snprintf(text, sizeof text, "%012llx", static_cast<unsigned long long>(bits));
  return text;
}

struct HotOptions : CtlOptions {
  bool all = false;
};

void run_cluster_hot(HotOptions options) {
  const std::vector<MemberWord> words = ask_members(options);
  std::vector<HotBeginning> list = hot_beginnings(words);
  if (!options.all) std::erase_if(list, [](const HotBeginning& one) { return !one.is_hot; });
  nlohmann::json document = {{"beginnings", nlohmann::json::array()}, {"nodes", nlohmann::json::array()}};
  for (const MemberWord& word : words) {
    nlohmann::json& node = document["nodes"].emplace_back();
    node = {{"id", word.id}, {"answers", word.has_answered}};
    if (const auto hot = word.values.find("hot_blocks"); hot != word.values.end()) node["hot_blocks"] = hot->second;
  }
  TextTable table({"namespace", "up to block", "blocks", "of matches", "hot for", "version"});
  for (const HotBeginning& one : list) {
    nlohmann::json by_node = nlohmann::json::array();
    std::string nodes, version;
    for (const HotBeginning::Word& word : one.words) {
      by_node.push_back({{"id", word.node}, {"share", word.share}, {"hot", word.is_hot}, {"version", word.version}});
      if (!word.is_hot) continue;
      nodes += (nodes.empty() ? "" : " ") + word.node;
      const std::string named = hex_48(word.version);
      version = version.empty() || version == named ? named : "differs";
    }
    document["beginnings"].push_back({{"namespace", one.space},
                                      {"last_block", one.last},
                                      {"blocks", one.block_count},
                                      {"hot", one.is_hot},
                                      {"share", one.share()},
                                      {"nodes", by_node}});
    table.add({one.space, one.last, std::to_string(one.block_count), format_share(one.share()),
               nodes.empty() ? "-" : nodes, version.empty() ? "-" : version});
  }
  print_answer(options.json, document, [&] {
    table.print(std::cout);
    if (list.empty()) std::cout << "Nothing is hot: no block begins more than 1 % of recent prompts.\n";
  });
}

}  // namespace

void add_cluster_hot_command(CLI::App& cluster) {
  const auto [command, options] = add_ctl_command<HotOptions>(
      cluster, "hot",
      "What many prompts begin with: how long it is, its share of the matches that a node has counted, and which nodes "
      "take it for hot. Clients keep that on every node",
      run_cluster_hot);
  command->add_flag("--all", options->all, "Beginnings too that are no longer hot, or not yet: from half a percent on");
}

}  // namespace kv
