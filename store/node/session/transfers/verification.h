// store/node/session/transfers/verification.h: whether the blocks that RDMA brought are those that the client claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "store/node/session/core/session_core.h"
#include "store/node/session/core/session_rdma.h"
#include "store/node/store_guards.h"

namespace kv {

/// How many of the leading `blocks` match the `claimed` checksums, as they are in their slots. Large ones are verified
/// on other threads, in pieces, until the put `is_over`. All but `slots`, which are held, live until this has returned.
asio::awaitable<std::size_t> count_sound(SessionCore& session, SessionRdma& rdma, std::shared_ptr<PutGuard> slots,
                                         std::span<const IncomingBlock> blocks, std::span<const std::uint64_t> claimed,
                                         const bool& is_over);

}  // namespace kv
