#include "client/types/miss_report.h"

#include <cstdio>

namespace kv {
namespace {

/// "3 s", "4 min", "2.5 h": for times known to an eighth at best.
std::string about(std::chrono::microseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  char text[32];
  if (seconds < 120) {
    std::snprintf(text, sizeof text, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  } else if (seconds < 7200) {
    std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  }
  return text;
}

std::string count_of(std::uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string reason(const MissReport& report) {
  const std::string ago = " about " + about(report.left) + " ago";
  switch (report.kind) {
    case MissKind::kUnknown: return report.why ? "" : "the node cannot say why: it is older than the question";
    case MissKind::kNotRemembered:
      return "the node does not know the block: it was never stored in this namespace" +
             (report.remembers.count() > 0 ? ", or it left more than " + about(report.remembers) + " ago"
                                           : std::string(", or it left before the node's memory of such begins"));
    case MissKind::kEvicted:
      return "it was evicted" + ago + ", when it had not been used for " + about(report.idle) +
             ": more memory or disk would keep it (kvstorectl curve)";
    case MissKind::kDropped: return "it was dropped by request" + ago;
    case MissKind::kNotAdmitted:
      return "a put offered it" + ago + ", and it was not admitted: what would have had to go is worth more";
    case MissKind::kRefused:
      return "a put offered it" + ago + ", and it was refused: all memory was pinned (kvstorectl doctor)";
    case MissKind::kOverQuota:
      return "a put offered it" + ago +
             ", and it was refused: its tenant had as much memory as it may "
             "(kvstorectl tenants)";
    case MissKind::kLost: return "the disk lost it" + ago + ", or gave it back damaged (kvstorectl status)";
    case MissKind::kDiskOff: return "it lies on disk, and the disk cannot be read now (kvstorectl status)";
    case MissKind::kBeingStored: return "a put is bringing it just now";
  }
  return "";
}

std::string text_of(const MissReport::Other& other) {
  std::string text = "namespace " + to_hex(other.id.bytes);
  if (other.has_block) {
    text += " has this very chain";
  } else {
    text += " is much like this one: " + count_of(other.stored_blocks, "block") + " stored there, " +
            count_of(other.lookups, "lookup");
  }
  return text + "; it differs in " + differences_text(other.differs);
}

}  // namespace

std::vector<std::string> MissReport::text() const {
  if (is_whole) return {"all " + count_of(block_count, "block") + " are held"};
  std::vector<std::string> lines = {"block " + std::to_string(block_count) + " is missed"};
  if (!node.empty()) lines[0] += " at " + node;
  if (why)
    lines.push_back(why == Errc::kUnavailable && kind != MissKind::kUnknown
                        ? "the node that owns it is away, and another was asked in its place"
                        : "the node that owns it did not say: " + why.message());
  if (std::string text = reason(*this); !text.empty()) lines.push_back(std::move(text));
  if (kind == MissKind::kUnknown) return lines;
  if (stored_blocks == 0 && lookups > 0)
    lines.push_back("nothing was stored in this namespace since the node started, and it was looked up " +
                    count_of(lookups, "time") + ": does whoever stores name the same record?");
  if (lookups > 0 && stored_blocks > 0 && lookups == empty_lookups && lookups >= 16)
    lines.push_back("of " + count_of(lookups, "lookup") +
                    " in this namespace none has found anything, though blocks are stored in it: do both sides hash "
                    "alike (same seed, same block size, same salt in the hash)?");
  for (const Other& other : others) lines.push_back(text_of(other));
  return lines;
}

}  // namespace kv
