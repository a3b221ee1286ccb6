#include "client/link/link_terms.h"

#include <algorithm>
#include <cstring>

namespace kv {
namespace {

constexpr std::uint32_t kLanesMax = 32;         // Bits of the wire's lane sets.
constexpr std::uint32_t kRequestsMax = 0xFFFF;  // More than a client ever uses; keeps the table of entries small.
constexpr std::size_t kNodeIdBytesMax = 256;
constexpr std::uint32_t kTableBytesLeast = 4096;  // Fits a request of one block, and a record of common length.

}  // namespace

/// A node's limits are reduced to this client's maximum, and refused below its minimum: later code relies on a request
/// of one block fitting.
std::string read_hello(std::span<const std::byte> table, LinkTerms* terms) {
  const auto* hello = read_table<wire::HelloResponse>(table);
  if (hello == nullptr) return "hello: malformed";
  if (hello->version() != kWireVersion)
    return "hello: version " + std::to_string(hello->version()) + " was not offered";
  if (hello->node_id() == nullptr || hello->node_id()->size() == 0 || hello->node_id()->size() > kNodeIdBytesMax) {
    return "hello: node_id must be 1 to 256 bytes";
  }
  if (hello->table_bytes_max() < kTableBytesLeast || hello->chain_blocks_max() == 0 || hello->requests_max() == 0) {
    return "hello: a limit is too small";
  }
  const auto* instance = hello->instance();
  if (instance == nullptr || instance->size() != terms->instance.size()) return "hello: instance must be 16 bytes";
  std::memcpy(terms->instance.data(), instance->data(), terms->instance.size());
  terms->is_agreed = true;
  terms->node_id = hello->node_id()->str();
  terms->table_bytes_max = hello->table_bytes_max();
  terms->chain_blocks_max = hello->chain_blocks_max();
  terms->requests_max = std::min<std::uint32_t>(hello->requests_max(), kRequestsMax);
  terms->region_bytes_max = hello->region_bytes_max();
  terms->lanes_max = std::min<std::uint32_t>(hello->lanes_max(), kLanesMax);
  terms->has_messages = hello->messages();
  terms->map_epoch = hello->epoch();
  return {};
}

}  // namespace kv
