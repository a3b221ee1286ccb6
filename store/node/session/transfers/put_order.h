// store/node/session/transfers/put_order.h: what a put offers, as its request says.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "index/reuse_hint.h"
#include "store/node/session/core/node_context.h"
#include "store/node/session/tables/space_handles.h"
#include "store/store.h"
#include "transport/trace_context.h"
#include "transport/wire_generated.h"

namespace kv {

/// Its spans live as long as the request's frame.
struct PutOrder {
  std::span<const BlockHash> hashes;
  std::chrono::microseconds wait{};  ///< For memory: as the client asks.
  TraceContext trace = {};
  ReuseHint hint = ReuseHint::kNone;
  PutDesk::OfferOptions chain = {};             ///< For a chain, without the session, the hint and may_lose.
  std::span<const std::uint32_t> lengths;       ///< For a set: of each block.
  std::span<const std::uint32_t> group_counts;  ///< For a set, as ReadDesk::SetMatchOptions.
};
PutOrder order_of(const wire::PutRequest& request);
PutOrder order_of(const wire::SetPutRequest& request);
/// The error in a request's own fields, if there is one.
inline Failure check_request(const wire::PutRequest&, const OpenSpace&, const NodeContext&) { return {}; }
Failure check_request(const wire::SetPutRequest& request, const OpenSpace& space, const NodeContext& node);

}  // namespace kv
