// client/cluster/cluster_map_call.h: requests to one node about its cluster: for its map, and to drain.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "client/link/call.h"
#include "client/types/node_status.h"

namespace kv {

/// `done` is called at every end, from the middle of a link's work.
class ClusterMapCall final : public Call {
 public:
  static constexpr Duration kDeadline = 2s;

  ClusterMapCall() { type = FrameType::kClusterMap; }
  std::function<void()> done;
  ClusterStatus answer;  ///< Of the last request, if it succeeded.

 private:
  error_code send(CallSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  void on_end(CallSession* session) override;
};

/// Checks and reads a node's map: ids are visible and different, endpoints can be parsed, weights are positive, and
/// with an epoch there is at least one node. Returns an empty string, or the fault.
std::string read_cluster_map(const wire::ClusterMapResponse& response, ClusterStatus* status);

}  // namespace kv
