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
///   1. Once version > 0: node_id is not empty, and each limit lets one request of one block through.
struct LinkTerms {
  std::uint8_t version = 0;  ///< Of the wire. 0: no hello yet.
  std::string node_id;
  /// Of the node: another one after each start, where node_id is the same. Zeros from a node that speaks version 1.
  std::array<std::byte, kInstanceBytes> instance{};
  std::uint32_t table_bytes_max = 4096;
  std::uint32_t chain_blocks_max = 0;
  std::uint32_t requests_max = 0;  ///< Without an answer.
  std::uint64_t region_bytes_max = 0;
  std::uint32_t lanes_max = 0;     ///< 0: the node offers no RDMA.
  bool has_messages = false;       ///< It takes small requests by SEND.
  bool has_sets = false;           ///< It knows blocks that stand alone,
  bool has_groups = false;         ///< and names of these that come in groups.
  bool has_hot_roots = false;      ///< It says which blocks many prompts begin with.
  bool has_cluster_map = false;    ///< It says who belongs to its cluster.
  bool has_cluster_drain = false;  ///< It can be asked to hand over what it owns.
  bool has_erase = false;          ///< It can be asked to erase all that a tenant has.
  bool has_contexts = false;       ///< It keeps prefixes by name.
  bool has_context_parts = false;  ///< They have priorities, and it tells what they are of.
  std::uint64_t map_epoch = 0;     ///< Of the map that it knew at hello; 0: none.

  bool is_same_life(const LinkTerms& other) const { return node_id == other.node_id && instance == other.instance; }
};

/// Takes what a node says in its hello to `terms`. Returns an empty string, or what is wrong with it.
std::string read_hello(std::span<const std::byte> table, LinkTerms* terms);

}  // namespace kv
