// client/cluster/cluster_map_call.h: asks one node for its cluster's map.
#pragma once

#include <functional>
#include <string>

#include "client/link/call.h"
#include "client/types/node_status.h"

namespace kv {

/// Checks the map: ids are visible and different, endpoints can be parsed, weights are positive, and with an epoch
/// there is at least one node. `done` is called at every end, from the middle of a link's work.
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

}  // namespace kv
