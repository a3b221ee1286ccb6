#include "client/calls/match_call.h"

#include <algorithm>
#include <cstring>

#include "client/link/request_parts.h"
#include "transport/frames/frame_message.h"

namespace kv {

error_code MatchCall::send(CallSession& session) {
  const LinkTerms& terms = session.terms();
  const std::size_t token_bytes = token_ids.size() * sizeof(std::uint32_t);
  const std::size_t extra_bytes = token_bytes > 0 ? extras.size_bytes() : 0;
  asked = blocks_in_request(terms, chain.hashes.size(), sizeof(BlockHash), token_bytes + extra_bytes);
  if (asked == 0 && !chain.hashes.empty()) return Errc::kTooLarge;
  auto& builder = session.shared().new_request();
  const auto hashes = builder.CreateVectorOfStructs(wire_hashes(chain.hashes), asked);
  flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> tokens;
  flatbuffers::Offset<flatbuffers::Vector<const wire::ExtraDigest*>> digests;
  if (token_bytes > 0 && asked == chain.hashes.size()) {  // tokens continue the whole chain, not a part
    tokens = builder.CreateVector(token_ids.data(), token_ids.size());
    if (extra_bytes > 0) digests = builder.CreateVectorOfStructs(wire_extras(extras), extras.size());
  }
  const MatchOptions plain{};
  const MatchOptions& wanted = options == nullptr ? plain : *options;
  wire::Trace trace;
  builder.Finish(wire::CreateMatchRequest(
      builder, space_handle(), hashes, tokens, wanted.lease, wanted.prefetch, space_check(), digests,
      static_cast<std::uint32_t>(node_count), static_cast<std::uint32_t>(std::min(beginning, asked)),
      static_cast<std::uint32_t>(std::min(hot_blocks, asked)), static_cast<std::uint8_t>(wanted.reuse),
      static_cast<std::uint32_t>(chain_blocks), chain_blocks > 0 ? static_cast<std::uint32_t>(chain.position(0)) : 0,
      chain_blocks > 0 ? static_cast<std::uint32_t>(chain.position(asked - 1)) : 0, is_elsewhere, is_why,
      wire_trace(trace)));
  if (is_why) {
    session.send_frame(type, request_id(), builder);
  } else {
    session.send_small(type, request_id(), builder, kSmallAnswerBytes);
  }
  return {};
}

std::string MatchCall::on_last(const FrameReader::Frame& frame) {
  const auto* response = read_table<wire::MatchResponse>(frame.table);
  if (response == nullptr) return "match: malformed";
  // Results are computed from these counts: wrong ones must not lead past the chain's end.
  if (response->host_blocks() > asked || response->disk_blocks() > asked - response->host_blocks()) {
    return "match: host_blocks " + std::to_string(response->host_blocks()) + " and disk_blocks " +
           std::to_string(response->disk_blocks()) + " of " + std::to_string(asked);
  }
  if (response->lease_error() >= kErrcLocal) return "match: lease_error " + std::to_string(response->lease_error());
  answered = session()->shared().clock.now();
  answered_by = session()->handle();
  disk_block_count = response->disk_blocks();
  block_count = response->host_blocks() + disk_block_count;
  disk_us = response->disk_us();
  lease = response->lease();
  lease_us = response->lease_us();
  hot_version = response->hot_version();
  map_epoch = response->epoch();
  known_count = std::min(std::max<std::size_t>(response->known_blocks(), block_count), asked);
  if (response->lease_error() != 0) lease_error = make_error_code(static_cast<Errc>(response->lease_error()));
  if (response->partial_tokens() > 0) {
    if (response->partial_block() == nullptr) return "match: partial_tokens without partial_block";
    if (response->partial_tokens() > token_ids.size()) return "match: too many partial_tokens";
    partial_tokens = response->partial_tokens();
    std::memcpy(partial_block.bytes.data(), response->partial_block(), partial_block.bytes.size());
  }
  return {};
}

}  // namespace kv
