// store/node/machine/room.h: whether an amount of memory is available here.
#pragma once

#include <cstdint>
#include <string>

#include "store/node/machine/facts.h"

namespace kv {

enum class RoomOf : std::uint8_t {
  kMachine,  ///< All that the machine has and allows, used or not: for checking a configuration.
  kNow,
};

struct MemoryRoom {
  std::uint64_t bytes = MachineFacts::kUnlimited;
  std::string text;  ///< Their source: "the control group has 4096 bytes left".
};

/// Ordinary memory available to an arena; some is left for the program itself.
MemoryRoom memory_room(const MachineFacts& facts, RoomOf of);

/// Whether there are enough reserved huge pages for `bytes`; if not, why, or "" without reserved pages.
struct HugeRoom {
  bool is_enough = false;
  std::string why_not;
};
HugeRoom huge_room(const MachineFacts& facts, RoomOf of, std::uint64_t bytes);

/// The reason why a capacity of `bytes` is not available, with field, value and what is allowed; "": it is.
/// `wants_huge`: uses reserved pages where there are enough.
std::string capacity_refusal(const MachineFacts& facts, RoomOf of, std::uint64_t bytes, bool wants_huge);

}  // namespace kv
