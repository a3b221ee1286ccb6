// store/node/access/audit.h: operators' acts, as lines of the log.
//
//     audit: act=drop who='uri:spiffe://example.org/operator/1' (section operators) peer=tcp:10.0.0.7:4242 session=12
//            namespace=<32 hexadecimal digits> hashes=3 result=ok count=3
//
// One line for each act, written when it is answered: actor, act, target and result. Lines are never rate-limited: only
// peers with the right to act can cause them. Denied requests are warnings of the session instead.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "transport/frames/frame.h"

namespace kv {

/// The unanswered acts of one session. Thread safety: none; on the session's executor.
class Audit {
 public:
  /// Begins an act; `who` as PeerAccess::who(), `from` names the connection.
  void begin(FrameType type, std::uint64_t request_id, const std::string& who, const std::string& from);
  bool has(FrameType type, std::uint64_t request_id) const { return acts_.contains({type, request_id}); }
  // Both ignore requests that are not acts.
  void on(FrameType type, std::uint64_t request_id, const std::string& target);      ///< Adds to the line.
  void answered(FrameType type, std::uint64_t request_id, std::string_view result);  ///< Writes the line.
  void end();  ///< With the session: logs the remaining acts, whose client never learned the result.

 private:
  std::multimap<std::pair<FrameType, std::uint64_t>, std::string> acts_;  ///< By type and request id: the line so far.
};

void audit_page(std::string_view act, const std::string& who, const std::string& target, std::string_view result);

void audit_policy(const std::string& file, std::string_view result);

}  // namespace kv
