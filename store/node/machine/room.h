// store/node/machine/room.h: whether so much memory can be had here.
#pragma once

#include <cstdint>
#include <string>

#include "store/node/machine/facts.h"

namespace kv {

enum class RoomOf : std::uint8_t {
  kMachine,  ///< All that it has and allows, whoever uses it now: what a configuration is held against.
  kNow,      ///< What is free.
};

struct MemoryRoom {
  std::uint64_t bytes = MachineFacts::kUnlimited;
  std::string text;  ///< Where they come from: "the control group has 4096 bytes left".
};

/// Of ordinary memory, what an arena may take: some is left for the program itself.
MemoryRoom memory_room(const MachineFacts& facts, RoomOf of);

/// Reserved huge pages, as far as there are enough of them for `bytes`; else why they cannot be had, or "" if none are
/// reserved at all.
struct HugeRoom {
  bool is_enough = false;
  std::string why_not;
};
HugeRoom huge_room(const MachineFacts& facts, RoomOf of, std::uint64_t bytes);

/// Why a capacity of `bytes` cannot be had: the field, its value and what is allowed; "": it can. `wants_huge`:
/// reserved pages are taken where there are enough.
std::string capacity_refusal(const MachineFacts& facts, RoomOf of, std::uint64_t bytes, bool wants_huge);

}  // namespace kv
