// client/link/session/link_terms.h: what a node and the client agreed upon at hello.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/frame.h"
#include "transport/wire_generated.h"

namespace kv {

/// The node's word, checked.
///   1. Once is_agreed: node_id is not empty, and each limit lets one request of one block through.
struct LinkTerms {
  bool is_agreed = false;  ///< Whether there was a hello.
  std::string node_id;
  /// Of the node: another one after each start, where node_id is the same.
  std::array<std::byte, kInstanceBytes> instance{};
  std::uint32_t table_bytes_max = 4096;
  std::uint32_t chain_blocks_max = 0;
  std::uint32_t requests_max = 0;  ///< Without an answer.
  std::uint64_t region_bytes_max = 0;
  std::uint32_t lanes_max = 0;  ///< 0: the node offers no RDMA.
  bool has_messages = false;    ///< It takes small requests by SEND.
  std::uint64_t map_epoch = 0;  ///< Of the map that it knew at hello; 0: none.

  bool is_same_life(const LinkTerms& other) const { return node_id == other.node_id && instance == other.instance; }
};

/// Takes what a node says in its hello to `terms`. Returns an empty string, or what is wrong with it.
std::string read_hello(std::span<const std::byte> table, LinkTerms* terms);

}  // namespace kv
