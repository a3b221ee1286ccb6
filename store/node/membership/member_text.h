// store/node/membership/member_text.h: a member as the value of its key in etcd.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "store/node/membership/cluster_view.h"

namespace kv {

inline constexpr std::size_t kMemberTextMax = 16 * 1024;
inline constexpr double kMemberWeightMax = 1e9;

/// One JSON object. Unknown fields are ignored, for later versions:
///   {"id":"a","instance":"<32 hex digits>","endpoints":["tcp://10.0.0.1:7400"],"weight":64,"zone":"z1",
///    "version":"0.1.0","state":"serving"}   and during a change "phase":"joining" or "leaving"
std::string write_member(const Member& member);
/// The text may come from anybody with write access to etcd. Errors: kBadRequest, with field, value and limits.
Result<Member, Failure> read_member(std::string_view text);
/// Equal for views with equal members, whatever their epochs.
std::uint64_t digest_of(const ClusterView& view);
/// The endpoint for another node, by whether it has certificates: TLS if both have it, and a Unix socket only as the
/// last choice, since other machines cannot reach it.
std::string endpoint_for_others(const Member& member, bool has_tls);
/// Returns "", or the error in a member.
std::string check_member(const Member& member);

}  // namespace kv
