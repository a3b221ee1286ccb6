// store/node/status/: a node's contents and activity, for people and tools: the status page, and other answers as JSON.
// Start here.
//
//     GET /status                the page itself (store/node/page/), the same on every node: no data, so for everybody
//     GET /status/now.json       the present state }
//     GET /status/history.json   the last day      }  fetched by the page; docs/operating.md describes them
//     GET /status/tree.json      the radix trees   }
//
// Accesses the Store through LockedStore only, and serves no HTTP: admin.h sends the answers. Files, in reading order:
//   admin_answers.h  every question of people and tools, and who may ask it: over HTTP, and on the wire
//   status.h         the page's data, as JSON (this file)
//   figures.h        figures made from the Store's counters, each with one definition
//   history.h        points of the last hour and the last day
//   query.h          the parameters of a question
//   tree_query.h     the requested part of the trees
//   record_fields.h  the fields of a namespace's record, without its salt
//   page.h           the page's text, and its browser policy
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/numa.h"
#include "store/node/session/core/node_context.h"
#include "store/node/status/history.h"

namespace kv {

struct StatusConfig {
  std::string version;
  std::uint64_t disk_capacity_bytes = 0;                  ///< 0: without disk tier.
  std::function<std::uint64_t()> disk_capacity_now = {};  ///< Where it may change.
  std::function<NumaLook()> numa = {};                    ///< The NUMA nodes of block memory; empty: not reported.
  std::function<bool()> is_ready;                         ///< As in AdminPages.
};

/// Makes the page's data. Names of models, tenants and nodes come from clients and from etcd: JSON carries them as
/// text, and the page only ever treats them as text.
///   1. Answers contain no token ids, block hashes, salts or secrets: blocks are named by short_hash().
///   2. Answers are bounded, whatever the node holds: kSpacesShown namespaces, kPartsMax parts of the trees, and so on.
///   3. The Store's lock is held for some 100 us at a time at most, and left for as long between two holds; a sample
///      covers at most kLooks blocks, or kLooksInside for one namespace or less.
///   4. An answer younger than kKeptFor is sent again: many viewers cost as much as one.
///   5. An answer leaves out namespaces and block names that its peer may not see (PeerAccess).
/// Thread safety: any thread; answers are made one at a time. Cost: tree_json() some 10 ms for a large store.
class StatusAnswers {
 public:
  static constexpr std::size_t kSpacesShown = 64, kSpacesMax = 4096, kPartsMax = 1200, kHotShown = 16;
  static constexpr std::uint32_t kLooks = 16384, kLooksInside = 65536;
  static constexpr Duration kKeptFor = std::chrono::seconds(1), kTreeKeptFor = std::chrono::seconds(3);

  StatusAnswers(NodeContext& node, StatusConfig config);

  void sample();  ///< Adds a point to the history. Call every History::kStep.
  /// The answer to a page of /status with its query, for this peer; nullopt: no such page, or a bad query.
  std::optional<std::string> answer(std::string_view path, std::string_view query, PeerAccess& peer);

 private:
  std::string now_json(PeerAccess& peer);
  std::optional<std::string> tree_json(std::string_view query, PeerAccess& peer);

  struct Kept {
    TimePoint made;
    std::string text;
  };
  NodeContext& node_;
  const StatusConfig config_;
  History history_;
  std::mutex mutex_;  ///< Guards the members below; held while an answer is made.
  std::map<std::string, Kept, std::less<>> kept_;
};

}  // namespace kv
