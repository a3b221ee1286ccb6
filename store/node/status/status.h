// store/node/status/: the status page: what a node holds and does, for people to look at. Start here.
//
//     GET /status            the page itself (store/node/page/), the same of every node: no data, so for everybody
//     GET /status/now.json       what is here now      }
//     GET /status/history.json   what was, for a day   }  fetched by the page; docs/operating.md says what is in them
//     GET /status/tree.json      the radix trees       }
//
// Knows the Store through LockedStore alone, and no HTTP: admin.h serves what this makes. Files, in reading order:
//   status.h      what the page asks for, as JSON (this file)
//   history.h     points of the last hour and the last day
//   tree_query.h  which part of the trees is asked for
//   record_fields.h  the fields of a namespace's record, without its salt
//   page.h        the page's text, and what a browser may do with it
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/numa.h"
#include "store/node/session/node_context.h"
#include "store/node/status/history.h"

namespace kv {

struct StatusConfig {
  std::string version;
  std::uint64_t disk_capacity_bytes = 0;                  ///< 0: no disk tier.
  std::function<std::uint64_t()> disk_capacity_now = {};  ///< Where it may change.
  std::function<NumaLook()> numa = {};                    ///< Where memory for blocks lies; none: not told.
  std::function<bool()> is_ready;                         ///< As AdminPages.
};

/// Makes what the page shows. Names of models, tenants and nodes come from clients and from etcd: JSON carries them as
/// text, and the page never takes them for anything else.
///   1. No token id, no block hash, no salt and no secret is in any answer: blocks are named by short_hash().
///   2. Answers are bounded, whatever the node holds: kSpacesShown namespaces, kPartsMax parts of the trees, and so on.
///   3. The Store's lock is held for some 100 us at most at a time, and left for as long between two
///   looks; a sample looks
///      at kLooks blocks at most, or kLooksInside of one namespace or less.
///   4. An answer that is younger than kKeptFor is given again: many who look cost as much as one.
///   5. What a peer may not know of is in no answer to it: namespaces that it does not see, and names of blocks that it
///   may not read (PeerAccess).
/// Thread safety: any thread; made one at a time. Cost: tree_json() some 10 ms for a large store.
class StatusAnswers {
 public:
  static constexpr std::size_t kSpacesShown = 64, kSpacesMax = 4096, kPartsMax = 1200, kHotShown = 16;
  static constexpr std::uint32_t kLooks = 16384, kLooksInside = 65536;
  static constexpr Duration kKeptFor = std::chrono::seconds(1), kTreeKeptFor = std::chrono::seconds(3);

  StatusAnswers(NodeContext& node, StatusConfig config);

  void sample();  ///< A point of the history. Call it every History::kStep.
  /// The answer to a page of /status, and to what stands behind its '?', for this peer; nothing if there is none.
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
  std::mutex mutex_;  ///< Of what follows; held while an answer is made.
  std::map<std::string, Kept, std::less<>> kept_;
};

}  // namespace kv
