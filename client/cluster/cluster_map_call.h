// client/cluster/cluster_map_call.h: what one node is asked of its cluster: who belongs to it, and to leave it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

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

/// Asks one node to hand over what it owns, or to serve again.
class ClusterDrainCall final : public Call {
 public:
  ClusterDrainCall() { type = FrameType::kClusterDrain; }
  std::string_view id;  ///< Of the node.
  bool drain = true;

 private:
  error_code send(CallSession& session) override;
  std::string on_last(const FrameReader::Frame& frame) override;
};

/// What a node says, checked: ids are visible and different, endpoints can be parsed, weights are positive, and with an
/// epoch there is at least one node. Returns an empty string, or what is wrong.
std::string read_cluster_map(const wire::ClusterMapResponse& response, ClusterStatus* status);

}  // namespace kv
