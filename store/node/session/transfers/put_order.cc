#include "store/node/session/transfers/put_order.h"

#include <algorithm>

#include "index/name_groups.h"
#include "store/node/session/core/session_wire.h"

namespace kv {

PutOrder order_of(const wire::PutRequest& request) {
  PutOrder order{.hashes = hashes_of(request.hashes()),
                 .wait = time_of(request.deadline_us()),
                 .trace = trace_of(request.trace()),
                 .hint = reuse_of(request.reuse())};
  PutDesk::OfferOptions& chain = order.chain;
  chain.positions = numbers_of(request.positions());
  chain.token_ids = numbers_of(request.token_ids());
  chain.extras = extras_of(request.extras());
  chain.idle = std::chrono::microseconds(
      std::min<std::uint64_t>(request.idle_us(), PutDesk::kIdleMax / std::chrono::microseconds(1)));
  if (request.chain_blocks() == 0 || order.hashes.empty()) return order;
  chain.chain = {request.chain_blocks(), 0, order.hashes.size() - 1, {}};
  if (!chain.positions.empty()) {
    chain.chain.first = chain.positions.front();
    chain.chain.last = chain.positions.back();
  }
  if (request.chain_known() > 0) chain.chain.known = request.chain_known() - 1;
  return order;
}

PutOrder order_of(const wire::SetPutRequest& request) {
  return {.hashes = hashes_of(request.hashes()),
          .wait = time_of(request.deadline_us()),
          .trace = trace_of(request.trace()),
          .hint = reuse_of(request.reuse()),
          .lengths = numbers_of(request.block_bytes()),
          .group_counts = numbers_of(request.group_counts())};
}

Failure check_request(const wire::SetPutRequest& request, const OpenSpace& space, const NodeContext& node) {
  const PutOrder order = order_of(request);
  if (order.hashes.size() > node.chain_blocks_max)
    return {Errc::kTooLarge, "set_put." + count_text("hashes", order.hashes.size(), node.chain_blocks_max)};
  if (order.lengths.size() != order.hashes.size()) {
    return {Errc::kBadRequest, fmt::format("set_put.block_bytes: {}, one per hash ({}) is due", order.lengths.size(),
                                           order.hashes.size())};
  }
  for (const std::uint32_t length : order.lengths) {
    if (length > 0 && length <= space.block_bytes) continue;
    return {Errc::kBadRequest,
            fmt::format("set_put.block_bytes: {}, 1..{} in this namespace", length, space.block_bytes)};
  }
  const std::string why = check_groups(order.hashes, order.group_counts);
  return why.empty() ? Failure() : Failure(Errc::kBadRequest, "set_put." + why);
}

}  // namespace kv
