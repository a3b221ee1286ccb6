// client/link/link_terms.h: the terms agreed between node and client at hello.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/frames/frame.h"
#include "transport/wire_generated.h"

namespace kv {

/// The node's terms, checked.
///   1. Once is_agreed: node_id is not empty, and each limit allows a request of one block.
struct LinkTerms {
  bool is_agreed = false;  ///< Hello has come.
  std::string node_id;
  /// The node's present life: new at each start, while node_id stays.
  std::array<std::byte, kInstanceBytes> instance{};
  std::uint32_t table_bytes_max = 4096;
  std::uint32_t chain_blocks_max = 0;
  std::uint32_t requests_max = 0;  ///< Limit on unanswered ones.
  std::uint64_t region_bytes_max = 0;
  std::uint32_t lanes_max = 0;  ///< 0: the node does not offer RDMA.
  bool has_messages = false;    ///< It accepts small requests by SEND.
  std::uint64_t map_epoch = 0;  ///< Of the node's map at hello; 0: without one.

  bool is_same_life(const LinkTerms& other) const { return node_id == other.node_id && instance == other.instance; }
};

/// Reads a node's hello into `terms`. Returns an empty string, or the fault in it.
std::string read_hello(std::span<const std::byte> table, LinkTerms* terms);

}  // namespace kv
