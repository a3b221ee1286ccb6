// client/cluster/cluster_map_call.h: asks one node who belongs to its cluster.
#pragma once

#include <functional>
#include <string>

#include "client/client.h"
#include "client/link/call.h"

namespace kv {

/// Nobody waits for it but `done`, which is told of every end, from the middle of a link's work.
class ClusterMapCall final : public Call {
 public:
  static constexpr Duration kDeadline = 2s;

  ClusterMapCall() { type = FrameType::kClusterMap; }
  std::function<void()> done;
  ClusterStatus answer;  ///< Of the last one, if that ended without an error.

 private:
  error_code send(CallSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;
  void on_end(CallSession* session) override;
};

/// What a node says, checked: ids are visible and different, endpoints can be parsed, weights are positive, and with an
/// epoch there is at least one node. Returns an empty string, or what is wrong.
std::string read_cluster_map(const wire::ClusterMapResponse& response, ClusterStatus* status);

}  // namespace kv
