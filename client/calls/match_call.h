// client/calls/match_call.h: one request to one node for the leading blocks of a chain, or of an extent, that it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/core/owned_chain.h"
#include "client/link/call.h"
#include "client/types/call_types.h"

namespace kv {

/// A request of a match (match.cc), of a question about a miss (why.cc), or of a late get to the second node (get.cc).
class MatchCall : public Call {
 public:
  MatchCall() { type = FrameType::kMatch; }
  OwnedChain chain;
  const MatchOptions* options = nullptr;     ///< Null: no lease, no prefetch, no hint.
  std::span<const std::uint32_t> token_ids;  ///< Of these blocks and the next one; or empty.
  std::span<const ExtraDigest> extras;       ///< The same.
  /// With hot roots: the number of sharing nodes, the leading blocks to count, and how many of those are hot. Else 0.
  std::size_t node_count = 0, beginning = 0, hot_blocks = 0;
  std::size_t chain_blocks = 0;  ///< Of the whole chain, if other nodes have a part; else 0.
  bool is_elsewhere = false;     ///< The chain now belongs to another node.
  bool is_why = false;           ///< A question about a miss: not a use of the blocks.
  std::size_t asked = 0;
  std::size_t known_count = 0;  ///< Leading blocks known to the node.
  std::size_t block_count = 0, disk_block_count = 0, partial_tokens = 0;
  std::uint64_t disk_us = 0;
  BlockHash partial_block{};
  std::uint64_t lease = 0, lease_us = 0, hot_version = 0;
  error_code lease_error;
  std::weak_ptr<CallSession> answered_by;
  TimePoint sent{}, answered{};  ///< `sent` is set by the starter of the call.
  MatchCall* hedge = nullptr;    ///< The same request to the second node.
  bool is_hedge = false;

  std::size_t in_memory() const { return error() ? 0 : block_count - disk_block_count; }
  bool has_all() const { return has_ended() && !error() && block_count == chain.hashes.size(); }
  /// The better answer of the two nodes.
  const MatchCall& best() const {
    if (hedge == nullptr || !hedge->has_ended() || hedge->error()) return *this;
    return error() || hedge->block_count > block_count ? *hedge : *this;
  }
  error_code reason() const {
    if (error()) return error();
    return block_count == asked && asked < chain.hashes.size() ? make_error_code(Errc::kTooLarge) : error_code();
  }

 protected:
  std::string on_last(const FrameReader::Frame& frame) override;

 private:
  error_code send(CallSession& session) override;
};

}  // namespace kv
