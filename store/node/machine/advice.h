// store/node/machine/advice.h: what to set on this machine, concluded from what was measured and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/node/machine/facts.h"

namespace kv {

/// What the node was told to be, as far as the machine has to carry it.
struct NodeWishes {
  std::uint64_t capacity_bytes = 0;
  bool has_default_capacity = false;       ///< Nobody chose it.
  std::uint64_t capacity_block_bytes = 0;  ///< Not 0: the capacity is given in blocks of so many bytes.
  std::uint64_t index_bytes_max = 0;       ///< 0: as the node chooses, 256 MiB and a 16th of the capacity.
  bool huge_pages = true;
  std::size_t threads = 1;
  std::string numa_nodes = "auto";
  bool rdma = true;       ///< If there is a device.
  bool has_unix = false;  ///< A listener of that kind.
  bool has_tcp = false;   ///< With TLS or without.
  std::uint64_t session_count_max = 0;
  std::vector<std::string> spill_paths;
  std::uint64_t spill_capacity_bytes = 0;
  std::uint64_t spill_block_bytes = 0;  ///< As capacity_block_bytes.
  double spill_hang_seconds = 0;
};

struct Advice {
  enum class Kind : std::uint8_t {
    kFine,     ///< Nothing has to be done.
    kSet,      ///< Set `option` to `value`.
    kMay,      ///< `option` may be set to `value`; what is right depends on what cannot be measured.
    kMachine,  ///< Something of the machine, by `command`.
    kUnknown,  ///< Could not be measured, so nothing is advised.
  };
  std::string subject;
  Kind kind = Kind::kFine;
  std::string measured;       ///< The figures, with their units.
  std::string reason;         ///< Why it is advised; empty where nothing is.
  std::string option, value;  ///< Of kSet and kMay: as the command line and the file take it.
  std::string command;        ///< Of kMachine.
};
const char* kind_name(Advice::Kind kind);  ///< "fine", "set", "may", "machine", "unknown".

/// In the order of what matters most: memory first, then processors, limits, sockets, disks.
std::vector<Advice> advise(const MachineFacts& facts, const NodeWishes& wishes);

}  // namespace kv
