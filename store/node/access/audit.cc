#include "store/node/access/audit.h"

#include <spdlog/spdlog.h>

#include <iterator>

namespace kv {

void Audit::begin(FrameType type, std::uint64_t request_id, const std::string& who, const std::string& from) {
  acts_.emplace(std::pair(type, request_id), std::string("act=") + frame_type_name(type) + " who=" + who + " " + from);
}

/// If a client uses an id twice, the latest request is the one being read.
void Audit::on(FrameType type, std::uint64_t request_id, const std::string& target) {
  const auto [first, last] = acts_.equal_range({type, request_id});
  if (first != last) std::prev(last)->second += " " + target;
}

void Audit::answered(FrameType type, std::uint64_t request_id, std::string_view result) {
  const auto found = acts_.find({type, request_id});
  if (found == acts_.end()) return;
  spdlog::info("audit: {} result={}", found->second, result);
  acts_.erase(found);
}

void Audit::end() {
  for (const auto& [key, act] : acts_) spdlog::info("audit: {} result=session-ended", act);
  acts_.clear();
}

void audit_page(std::string_view act, const std::string& who, const std::string& target, std::string_view result) {
  spdlog::info("audit: act={} who={} {} result={}", act, who, target, result);
}

void audit_policy(const std::string& file, std::string_view result) {
  spdlog::info("audit: act=policy_reload file={} result={}", file, result);
}

}  // namespace kv
