#include "store/disk/disk.h"

#include "base/checksum.h"

namespace kv {

Result<DiskBlock> read_verified(const Disk& disk, DiskKey key, std::uint64_t seed, std::size_t block_bytes) {
  // The disk's own checks are not enough: they do not detect another block's bytes, or those of an older layout.
  Result<DiskBlock> block = disk.read(key);
  if (block && (block->bytes.size() != block_bytes || !verify_block(seed, block->bytes, block->checksums)))
    return make_error_code(Errc::kCorruptBlock);
  return block;
}

bool is_lost(error_code error) { return error == Errc::kNotFound || error == Errc::kCorruptBlock; }

}  // namespace kv
