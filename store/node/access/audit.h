// store/node/access/audit.h: what operators did, as lines of the log.
//
//     audit: act=drop who='uri:spiffe://example.org/operator/1' (section operators) peer=tcp:10.0.0.7:4242 session=12
//            namespace=<32 hexadecimal digits> hashes=3 result=ok count=3
//
// One line for each act, when it is answered: who, what, on what, and how that ended. No limit holds lines back: those
// who can cause them have been given the right to act. What was denied is a warning of the session instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "transport/frame.h"

namespace kv {

/// The acts of one session that have not been answered. Thread safety: none; on the session's executor.
class Audit {
 public:
  /// Of an act under way; `who` as PeerAccess::who(), `from` names the connection.
  void begin(FrameType verb, std::uint64_t request_id, const std::string& who, const std::string& from);
  bool has(FrameType verb, std::uint64_t request_id) const { return acts_.contains({verb, request_id}); }
  // Nothing for a request that is no act.
  void on(FrameType verb, std::uint64_t request_id, const std::string& target);      ///< Adds to the line.
  void answered(FrameType verb, std::uint64_t request_id, std::string_view result);  ///< Writes the line.
  void end();  ///< With the session: of what is left nobody was told how it ended.

 private:
  std::multimap<std::pair<FrameType, std::uint64_t>, std::string> acts_;  ///< By verb and request id: the line so far.
};

/// A line about an act on the admin server.
void audit_page(std::string_view act, const std::string& who, const std::string& target, std::string_view result);

/// A line about the policy itself.
void audit_policy(const std::string& file, std::string_view result);

}  // namespace kv
