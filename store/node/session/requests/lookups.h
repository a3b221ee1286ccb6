// store/node/session/requests/lookups.h: requests without block transfers, such as match, release and touch.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "store/node/session/core/session_core.h"
#include "store/node/session/core/space_door.h"
#include "store/node/session/requests/misses.h"
#include "store/policy/block_sample.h"

namespace kv {

/// Each is one call of the Store under its lock and one answer; a long list of names of a set takes one call per part.
/// Thread safety: none; on the session's executor.
class Lookups {
 public:
  using Frame = SessionCore::Frame;
  Lookups(SessionCore& session, SpaceDoor& door) : session_(session), door_(door), misses_(session) {}

  /// A client's request to bring blocks from disk to memory. Valid as long as the frame.
  struct Wanted {
    const OpenSpace* space;
    std::span<const BlockHash> hashes;
    std::span<const std::uint32_t> group_counts = {};  ///< Of a set.
  };
  std::optional<Wanted> on_match(const Frame& frame);
  std::optional<Wanted> on_set_match(const Frame& frame);
  void on_release(const Frame& frame);
  void on_prefix(const Frame& frame, const OpenSpace& space,
                 std::span<const BlockHash> hashes);  ///< touch, retain, unretain
  void on_hot_roots(const Frame& frame);
  void on_cluster_map(const Frame& frame);

  TimePoint lease_until() const { return lease_until_; }  ///< The client may hold a lease until then.

 private:
  /// Counts the match, if this node is responsible for it. Returns the version of the namespace's hot root.
  std::uint64_t count_beginning(const wire::MatchRequest& request, const OpenSpace& space);
  Result<ReadDesk::SetMatch> match_set(const OpenSpace& space, std::span<const BlockHash> hashes,
                                       std::span<const std::uint32_t> group_counts, ReadDesk::SetMatchOptions options);
  Result<std::size_t> count(FrameType type, SpaceId space, std::span<const BlockHash> hashes,
                            std::vector<BlockHash>* fresh);
  Result<std::size_t> count_in_set(FrameType type, const OpenSpace& space, std::span<const BlockHash> hashes);

  SessionCore& session_;
  SpaceDoor& door_;
  Misses misses_;
  TimePoint lease_until_{};
  SampledNames sampled_;
};

}  // namespace kv
