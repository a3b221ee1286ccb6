// store/node/events/: what came and went, for programs that keep a list of what a node holds. Start here.
//
//     GET /events.json?from=NUMBER&life=LIFE   changes since then, or that some of them are gone
//     GET /events/blocks.json?at=PLACE         all that is here, in parts: for the start, and after a gap
//
// docs/engines.md says what is in them. Knows the Store through LockedStore alone, and no HTTP: admin.h serves what
// this makes. Files, in reading order:
//   event_answers.h  the answers, as JSON (this file)
//   event_query.h    what is asked for
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "index/namespace_record.h"
#include "store/node/locked_store.h"
#include "store/node/session/space_handles.h"

namespace kv {

/// Makes these answers.
///   1. Of a namespace that the asker may not see there is nothing in an answer, neither blocks nor its name.
///      Numbers of changes are the node's, though:
///      they tell how much changed in all. A gap is told of what the asker sees.
///   2. Answers are bounded: kLooksMax looks at the Store, each of some 100 us under its lock, with a pause after each.
///   3. No token id and no salt is in any answer.
/// Thread safety: any thread.
class EventAnswers {
 public:
  static constexpr int kVersion = 1;
  static constexpr std::size_t kLooksMax = 8;
  /// Whether the asker may know what is in a namespace, by its record as it is stored here.
  using MaySee = std::function<bool(const NamespaceRecord&)>;

  /// `life`: of the node, so that numbers of an earlier one are not taken for its own. Requires: a Store that
  /// has_events().
  EventAnswers(LockedStore& store, const InstanceId& life) : store_(store), life_(life) {}

  /// The answer to a page below /events, and to what stands behind its '?'; nothing if that makes no sense.
  std::optional<std::string> answer(std::string_view path, std::string_view query, const MaySee& may_see) const;

 private:
  LockedStore& store_;
  const InstanceId life_;
};

}  // namespace kv
