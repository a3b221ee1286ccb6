// store/disk/pinned_blocks.h: blocks that stay where they are while their bytes move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "index/namespace_record.h"
#include "index/prefix_index.h"
#include "store/disk/disk.h"

namespace kv {

struct PinnedBlock {
  BlockId id;
  std::uint32_t index;                       ///< Index of its hash in the call.
  std::span<const std::byte> bytes;          ///< In the arena; stable and constant while pinned.
  std::span<const std::uint64_t> checksums;  ///< One per stripe.
};

struct PinnedDiskBlock {
  BlockId id;
  std::uint32_t index;  ///< As in PinnedBlock.
  DiskKey key;
  std::uint64_t seed;
  std::uint32_t block_bytes;
  bool promote;  ///< The block should be in memory: offer and commit it once it is read.
};

/// The pins that Store::unpin() ends: a chain's prefix, or a set's found blocks.
struct PinnedPrefix {
  std::vector<PinnedBlock> blocks;       ///< First to last.
  std::vector<PinnedDiskBlock> on_disk;  ///< On disk: a chain's next, or a set's others.
  NamespaceKind kind = NamespaceKind::kChain;
};

}  // namespace kv
