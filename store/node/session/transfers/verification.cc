#include "store/node/session/transfers/verification.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/event.h"

namespace kv {
namespace {

constexpr std::size_t kPieceBytes = 4 << 20;         ///< Between two looks whether the put is over.
constexpr std::size_t kVerifyHereBytes = 256 << 10;  ///< Another thread would take longer to wake.

/// Some leading blocks, with their bytes and their number of checksums.
struct Piece {
  std::span<const IncomingBlock> blocks;
  std::size_t byte_count = 0, sum_count = 0;
};

Piece leading_piece(std::span<const IncomingBlock> blocks) {
  Piece piece;
  std::size_t count = 0;
  do {
    piece.byte_count += blocks[count].bytes.size();
    piece.sum_count += stripe_count(blocks[count].bytes.size());
    ++count;
  } while (count < blocks.size() && piece.byte_count + blocks[count].bytes.size() <= kPieceBytes);
  piece.blocks = blocks.first(count);
  return piece;
}

/// Only the slots count, not the client's present memory.
std::size_t count_here(std::span<const IncomingBlock> blocks, std::span<const std::uint64_t> claimed) {
  std::size_t sound = 0;
  for (; sound < blocks.size(); ++sound) {
    const std::size_t stripes = stripe_count(blocks[sound].bytes.size());
    KV_ASSERT(stripes <= claimed.size());
    if (!verify_block(blocks[sound].seed, blocks[sound].bytes, claimed.first(stripes))) break;
    claimed = claimed.subspan(stripes);
  }
  return sound;
}

asio::awaitable<std::size_t> count_elsewhere(SessionCore& session, SessionRdma& rdma, std::shared_ptr<PutGuard> slots,
                                             std::span<const IncomingBlock> blocks,
                                             std::span<const std::uint64_t> claimed) {
  struct Verification {
    Event over;
    std::size_t sound = 0;
  };
  const auto verification = std::make_shared<Verification>(Verification{Event(session.executor)});
  // The call itself holds the slots: the put may end meanwhile.
  const auto read = [verification, blocks, claimed, slots = std::move(slots)] {
    verification->sound = count_here(blocks, claimed);
  };
  rdma.verify(read, [verification] { verification->over.set(); });
  while (!verification->over.is_set()) co_await verification->over.wait();
  co_return verification->sound;
}

}  // namespace

asio::awaitable<std::size_t> count_sound(SessionCore& session, SessionRdma& rdma, std::shared_ptr<PutGuard> slots,
                                         std::span<const IncomingBlock> blocks, std::span<const std::uint64_t> claimed,
                                         const bool& is_over) {
  std::size_t sound = 0;
  while (sound < blocks.size() && !is_over) {
    const Piece piece = leading_piece(blocks.subspan(sound));
    const auto sums = claimed.first(piece.sum_count);
    claimed = claimed.subspan(piece.sum_count);
    std::size_t count = 0;
    if (piece.byte_count <= kVerifyHereBytes) {  // some ten microseconds
      count = count_here(piece.blocks, sums);
    } else {
      count = co_await count_elsewhere(session, rdma, slots, piece.blocks, sums);
    }
    sound += count;
    if (count < piece.blocks.size()) break;
  }
  co_return sound;
}

}  // namespace kv
