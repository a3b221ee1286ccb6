#include "store/node/membership/member_text.h"

#include <spdlog/fmt/fmt.h>

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text/printable.h"
#include "transport/cluster_limits.h"
#include "transport/endpoint.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr const char* kServing = "serving";
constexpr const char* kDraining = "draining";
constexpr const char* kPhases[] = {"", "joining", "leaving"};  // by Member::Phase

Failure wrong(const std::string& why) { return {Errc::kBadRequest, "member: " + why}; }

bool is_instance(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return text.size() == 32 && text.find_first_not_of(kDigits) == std::string::npos;
}

}  // namespace

std::string check_member(const Member& member) {
  if (member.id.empty() || !is_cluster_word(member.id) || member.id.find('/') != std::string::npos)
    return "id: '" + printable(member.id) + "', allowed are 1 to 128 visible ASCII characters without '/'";
  if (!is_instance(member.instance)) return "instance: must be 32 hexadecimal digits";
  if (member.endpoints.empty() || member.endpoints.size() > kClusterEndpointsMax)
    return fmt::format("endpoints: {}, allowed are 1 to {}", member.endpoints.size(), kClusterEndpointsMax);
  for (const std::string& text : member.endpoints) {
    const auto endpoint = parse_endpoint(text);
    if (!endpoint) return "endpoints: " + printable(endpoint.error().text);
    if (!is_utf8(text)) return "endpoints: '" + printable(text) + "' is not UTF-8";
  }
  if (!std::isfinite(member.weight) || member.weight <= 0 || member.weight > kMemberWeightMax)
    return fmt::format("weight: {:f}, must be positive and at most 1e9", member.weight);
  if (!is_cluster_word(member.zone)) return "zone: allowed are up to 128 visible ASCII characters";
  if (!is_cluster_word(member.version)) return "version: allowed are up to 128 visible ASCII characters";
  return "";
}

std::string write_member(const Member& member) {
  json object = {{"id", member.id},
                 {"instance", member.instance},
                 {"endpoints", member.endpoints},
                 {"weight", member.weight},
                 {"zone", member.zone},
                 {"version", member.version},
                 {"state", member.state == Member::State::kServing ? kServing : kDraining}};
  if (member.phase != Member::Phase::kNone) object["phase"] = kPhases[static_cast<std::size_t>(member.phase)];
  return object.dump();
}

std::uint64_t digest_of(const ClusterView& view) {
  std::string text = std::to_string(view.extent_blocks);
  for (const Member& member : view.members) text += "\n" + write_member(member);
  return XXH3_64bits(text.data(), text.size());
}

Result<Member, Failure> read_member(std::string_view text) {
  if (text.size() > kMemberTextMax) return wrong(fmt::format("{} bytes, at most {}", text.size(), kMemberTextMax));
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return wrong("must be a JSON object");
  Member member;
  std::string state = kServing, phase;
  for (const auto& [field, to] :
       {std::pair("id", &member.id), std::pair("instance", &member.instance), std::pair("zone", &member.zone),
        std::pair("version", &member.version), std::pair("state", &state), std::pair("phase", &phase)}) {
    const auto found = object.find(field);
    if (found == object.end()) continue;
    if (!found->is_string()) return wrong(std::string(field) + ": must be a text");
    *to = found->get<std::string>();
  }
  if (state != kServing && state != kDraining)
    return wrong("state: '" + printable(state) + "', allowed are serving and draining");
  member.state = state == kServing ? Member::State::kServing : Member::State::kDraining;
  // An unknown phase, or one that contradicts the state, is dropped: the state is enough for all readers.
  if (phase == "joining" && state == kDraining) member.phase = Member::Phase::kJoining;
  if (phase == "leaving" && state == kServing) member.phase = Member::Phase::kLeaving;
  if (const auto endpoints = object.find("endpoints"); endpoints != object.end()) {
    if (!endpoints->is_array()) return wrong("endpoints: must be a list of texts");
    for (const json& each : *endpoints) {
      if (!each.is_string()) return wrong("endpoints: must be a list of texts");
      member.endpoints.push_back(each.get<std::string>());
    }
  }
  if (const auto weight = object.find("weight"); weight != object.end()) {
    if (!weight->is_number()) return wrong("weight: must be a number");
    member.weight = weight->get<double>();
  }
  if (const std::string why = check_member(member); !why.empty()) return wrong(why);
  return member;
}

std::string endpoint_for_others(const Member& member, bool has_tls) {
  const auto rank = [has_tls](const std::string& text) {
    const auto endpoint = parse_endpoint(text);
    if (!endpoint || endpoint->scheme == Endpoint::Scheme::kUnix) return 3;
    if (endpoint->scheme == Endpoint::Scheme::kTls) return has_tls ? 0 : 2;
    return 1;
  };
  return *std::ranges::min_element(member.endpoints, {}, rank);  // the first of equals
}

}  // namespace kv
