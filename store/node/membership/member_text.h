// store/node/membership/member_text.h: a member as the value of its key.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "store/node/membership/cluster_view.h"

namespace kv {

inline constexpr std::size_t kMemberTextMax = 16 * 1024;
inline constexpr double kMemberWeightMax = 1e9;

/// One JSON object. What it has besides the fields here is left alone, for versions to come:
///   {"id":"a","instance":"<32 hex digits>","endpoints":["tcp://10.0.0.1:7400"],"weight":64,"zone":"z1",
///    "version":"0.1.0","state":"serving"}   and where it is about something, "phase":"joining" or "leaving"
std::string write_member(const Member& member);
/// Whoever may write to etcd may have written this. Errors: kBadRequest; the words name field, value and what is
/// allowed.
Result<Member, Failure> read_member(std::string_view text);
/// Equal for views that say the same of the cluster, whatever their epochs.
std::uint64_t digest_of(const ClusterView& view);
/// Where another node reaches it, which has certificates or has none: with TLS if both can, and never by a Unix socket
/// where there is anything else, since other machines have no way to it.
std::string endpoint_for_others(const Member& member, bool has_tls);
/// What is wrong with a member, or "".
std::string check_member(const Member& member);

}  // namespace kv
