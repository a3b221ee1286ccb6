#include "client/cluster/cluster_map_call.h"

#include <cmath>
#include <set>

#include "client/cluster/cluster_map.h"
#include "transport/cluster_limits.h"
#include "transport/endpoint.h"

namespace kv {
namespace {

constexpr std::uint8_t kServing = 0, kDraining = 1;
constexpr std::uint8_t kJoining = 1, kLeaving = 2;

}  // namespace

error_code ClusterMapCall::send(CallSession& session) {
  return send_table(session, wire::CreateClusterMapRequest(session.shared().new_request()));
}

std::string ClusterMapCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::ClusterMapResponse>(frame.table);
  if (response == nullptr) return "cluster_map: malformed";
  ClusterStatus read;
  read.epoch = response->epoch();
  const std::size_t count = response->nodes() == nullptr ? 0 : response->nodes()->size();
  if (count > kClusterNodesMax) {
    return "cluster_map: " + std::to_string(count) + " nodes, at most " + std::to_string(kClusterNodesMax);
  }
  if (read.epoch > 0) {
    read.extent_blocks = response->extent_blocks();
    if (read.extent_blocks < 1 || read.extent_blocks > ClusterMap::kExtentBlocksLimit)
      return "cluster_map: extent_blocks " + std::to_string(read.extent_blocks);
  }
  std::set<std::string> ids;
  for (std::size_t i = 0; i < count && read.epoch > 0; ++i) {
    const wire::ClusterNode* const one = response->nodes()->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (one->id() == nullptr || one->id()->size() == 0 || !is_cluster_word(one->id()->string_view()))
      return "cluster_map: an id that is not 1 to 128 visible characters";
    ClusterStatus::Node member;
    member.id = one->id()->str();
    const std::string where = "cluster_map: node " + member.id + ": ";
    if (!ids.insert(member.id).second) return where + "comes twice";
    member.weight = one->weight();
    if (!std::isfinite(member.weight) || !(member.weight > 0)) return where + "weight is not positive";
    if (one->state() != kServing && one->state() != kDraining) return where + "state " + std::to_string(one->state());
    member.is_serving = one->state() == kServing;
    member.is_joining = !member.is_serving && one->phase() == kJoining;
    member.is_leaving = member.is_serving && one->phase() == kLeaving;
    if (one->zone() != nullptr) {
      if (!is_cluster_word(one->zone()->string_view())) return where + "zone is not up to 128 visible characters";
      member.zone = one->zone()->str();
    }
    const std::size_t endpoint_count = one->endpoints() == nullptr ? 0 : one->endpoints()->size();
    if (endpoint_count == 0 || endpoint_count > kClusterEndpointsMax)
      return where + std::to_string(endpoint_count) + " endpoints, must be 1.." + std::to_string(kClusterEndpointsMax);
    for (const flatbuffers::String* const endpoint : *one->endpoints()) {
      member.endpoints.push_back(endpoint->str());
      if (!parse_endpoint(member.endpoints.back())) return where + "an endpoint that is none";
    }
    read.nodes.push_back(std::move(member));
  }
  if (read.epoch > 0 && read.nodes.empty()) return "cluster_map: an epoch without nodes";
  answer = std::move(read);
  return {};
}

void ClusterMapCall::on_end(CallSession*) {
  if (done) done();
}

}  // namespace kv
