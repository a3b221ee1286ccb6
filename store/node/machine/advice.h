// store/node/machine/advice.h: suggested settings for this machine, derived from measurements only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/node/machine/facts.h"

namespace kv {

/// The node's configuration, as far as the machine has to carry it.
struct NodeWishes {
  std::uint64_t capacity_bytes = 0;
  bool has_default_capacity = false;       ///< It was not given.
  std::uint64_t capacity_block_bytes = 0;  ///< Above 0: the capacity is given in blocks of this size.
  std::uint64_t index_bytes_max = 0;       ///< 0: the node's choice, 256 MiB and a 16th of the capacity.
  bool huge_pages = true;
  std::size_t threads = 1;
  std::string numa_nodes = "auto";
  bool rdma = true;  ///< If there is a device.
  bool has_unix = false;
  bool has_tcp = false;  ///< With TLS or without.
  std::uint64_t session_count_max = 0;
  std::vector<std::string> disk_paths;
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_block_bytes = 0;  ///< As for capacity_block_bytes.
  double disk_hang_seconds = 0;
};

struct Advice {
  enum class Kind : std::uint8_t {
    kFine,     ///< Good as it is.
    kSet,      ///< Set `option` to `value`.
    kMay,      ///< `option` may be set to `value`; the right choice depends on facts that cannot be measured.
    kMachine,  ///< Change the machine, by `command`.
    kUnknown,  ///< Not measurable, so without advice.
  };
  std::string subject;
  Kind kind = Kind::kFine;
  std::string measured;       ///< The figures, with their units.
  std::string reason;         ///< Of the advice; empty without one.
  std::string option, value;  ///< For kSet and kMay: as the command line and the file take it.
  std::string command;        ///< For kMachine.
};
const char* kind_name(Advice::Kind kind);
std::string size_words(std::uint64_t bytes);  ///< 2 MiB, 1.5 GiB, 700 B

/// The most important first: memory, then processors, limits, sockets, disks.
std::vector<Advice> advise(const MachineFacts& facts, const NodeWishes& wishes);

}  // namespace kv
