#include "store/node/machine/room.h"

#include <algorithm>

namespace kv {
namespace {

constexpr std::uint64_t kReservedPageBytes = 2 << 20;
/// The program, its threads' stacks and an index without blocks.
constexpr std::uint64_t kProgramBytes = 32 << 20;

std::string bytes_text(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

MemoryRoom memory_room(const MachineFacts& facts, RoomOf of) {
  MemoryRoom room;
  const auto narrow = [&](std::uint64_t bytes, const std::string& text) {
    if (bytes < room.bytes) room = {bytes, text};
  };
  const bool is_now = of == RoomOf::kNow;
  if (const auto& machine = is_now ? facts.memory_available_bytes : facts.memory_total_bytes)
    narrow(*machine, "this machine has " + bytes_text(*machine) + (is_now ? " free" : " of memory"));
  if (const auto& group = facts.group_memory) {
    if (is_now)
      narrow(group->left_bytes, "the control group has " + bytes_text(group->left_bytes) + " left of " +
                                    std::to_string(group->limit_bytes));
    else
      narrow(group->limit_bytes, "the control group allows " + bytes_text(group->limit_bytes) + " of memory");
  }
  if (room.bytes != MachineFacts::kUnlimited) room.bytes -= std::min(room.bytes, kProgramBytes);
  return room;
}

HugeRoom huge_room(const MachineFacts& facts, RoomOf of, std::uint64_t bytes) {
  if (!facts.huge_pages || facts.huge_pages->count == 0) return {};
  const bool is_now = of == RoomOf::kNow;
  const std::uint64_t wanted = (bytes + kReservedPageBytes - 1) / kReservedPageBytes * kReservedPageBytes;
  const std::uint64_t pool = (is_now ? facts.huge_pages->free_count : facts.huge_pages->count) * kReservedPageBytes;
  if (pool < wanted)
    return {.is_enough = false,
            .why_not = bytes_text(pool) + " of reserved huge pages are " + (is_now ? "free" : "there")};
  if (const auto& group = facts.group_huge_pages) {
    const std::uint64_t allowed = is_now ? group->left_bytes : group->limit_bytes;
    if (allowed < wanted)
      return {.is_enough = false,
              .why_not = "the control group allows " + bytes_text(allowed) + " of reserved huge pages (hugetlb.2MB)"};
  }
  return {.is_enough = true, .why_not = ""};
}

std::string capacity_refusal(const MachineFacts& facts, RoomOf of, std::uint64_t bytes, bool wants_huge) {
  const MemoryRoom room = memory_room(facts, of);
  if (bytes <= room.bytes) return "";
  const HugeRoom huge = wants_huge ? huge_room(facts, of, bytes) : HugeRoom{};
  if (huge.is_enough) return "";
  return "capacity: " + bytes_text(bytes) + "; " + room.text + (huge.why_not.empty() ? "" : ", and " + huge.why_not) +
         "; allowed: at most " + std::to_string(room.bytes);
}

}  // namespace kv
