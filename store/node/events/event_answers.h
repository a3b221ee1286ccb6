// store/node/events/: blocks that came and went, for programs that mirror a node's contents. Start here.
//
//     GET /events.json?from=NUMBER&life=LIFE   changes since that number, or a gap if some are gone
//     GET /events/blocks.json?at=PLACE         all blocks, in parts: for the start, and after a gap
//
// docs/engines/routers.md describes the answers. Uses the Store through LockedStore; admin.h serves HTTP. In order:
//   event_answers.h  the answers, as JSON (this file)
//   event_query.h    the queries
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "index/namespace_record.h"
#include "store/node/locked_store.h"
#include "store/node/session/tables/space_handles.h"

namespace kv {

///   1. Answers leave out namespaces that the asker may not see, with their blocks and names. Numbers of changes are
///      the node's, so they reveal how much changed in all. A gap is reported only for namespaces that the asker sees.
///   2. Answers are bounded: at most kLooksMax holds of the Store's lock, some 100 us each, with a pause after each.
///   3. Answers contain no token ids and no salts.
/// Thread safety: any thread.
class EventAnswers {
 public:
  static constexpr int kVersion = 1;
  static constexpr std::size_t kLooksMax = 8;
  /// Whether the asker may see a namespace's contents, by its record as stored here.
  using MaySee = std::function<bool(const NamespaceRecord&)>;

  /// `life`: the node's, to tell its numbers from those of an earlier life. Requires: a Store with a log of events.
  EventAnswers(LockedStore& store, const InstanceId& life) : store_(store), life_(life) {}

  /// The answer to a page below /events with its query; nullopt if the query is invalid.
  std::optional<std::string> answer(std::string_view path, std::string_view query, const MaySee& may_see) const;

 private:
  LockedStore& store_;
  const InstanceId life_;
};

}  // namespace kv
