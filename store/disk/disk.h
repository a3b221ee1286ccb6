// store/disk/disk.h: the interface that the disk tier needs. The daemon's disk is RocksDB
// (store/node/disk/rocks/rocks_disk.h); the simulation's forgets, fails and flips bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/owner.h"
#include "base/result.h"
#include "index/block_hash.h"

namespace kv {

/// Where a block lies on disk: `epoch << 40 | sequence << 4 | place`. The epoch grows with every start of the node, the
/// sequence with every block: a key is never used twice, and a larger key was written later. The place is one of the
/// disk's directories (Disk::places).
enum class DiskKey : std::uint64_t {};

/// The number of a directory, below kPlaceCount.
using DiskPlace = std::uint8_t;
inline constexpr std::size_t kPlaceCount = 16;
constexpr DiskPlace place_of(DiskKey key) {
  return static_cast<DiskPlace>(static_cast<std::uint64_t>(key) % kPlaceCount);
}

/// A restart needs this to put a block into its tree again.
struct DiskRecord {
  DiskKey key{};
  NamespaceId space;
  BlockHash hash;
  BlockHash parent;            ///< The block above on this node; all zero for a first block.
  std::uint32_t position = 0;  ///< In its whole prefix; for a set block_bytes again.
  std::uint32_t block_bytes = 0;
  DiskKey moved_from{};  ///< 0, or its key before a move within the log, as old as the block.
};

/// A drop that restarts must honour: blocks with keys below `before` must not come back if named here or below one.
struct DiskDrop {
  NamespaceId space;
  BlockHash hash;  ///< All zero: the whole namespace.
  DiskKey before{};
};

struct DiskWrite {
  DiskRecord record;
  std::span<const std::byte> bytes;          ///< record.block_bytes bytes.
  std::span<const std::uint64_t> checksums;  ///< One per stripe, name-bound.
  std::uint64_t seed = 0;                    ///< checksum_seed of the block, which verifies it before a move.
};

/// A block that was read. Owns its memory. The content is unverified: the reader compares bytes with checksums, which
/// are bound to the block's name.
struct DiskBlock {
  Owner owner;  ///< Owns the memory of the spans.
  std::span<const std::byte> bytes;
  std::span<const std::uint64_t> checksums;
};

struct DiskStats {
  std::uint64_t file_bytes = 0;            ///< On the device, in all files.
  std::uint64_t written_bytes = 0;         ///< Written by write() since open: blocks and their checksums.
  std::uint64_t device_written_bytes = 0;  ///< By the device for these; the ratio is the write amplification.
  std::uint64_t read_bytes = 0;
  std::uint32_t left_out_count = 0;  ///< Failed directories, excluded from writes for now.
  std::uint32_t directory_count = 1;
  std::uint64_t free_bytes = ~std::uint64_t{0};  ///< On the file systems of the directories that take blocks, if known.
};

/// A directory excluded from writes, which leaves the disk once it is empty.
struct LeavingDirectory {
  DiskPlace place{};
  std::string name;
  bool answers = true;
};

struct DiskPurge {
  std::uint64_t file_count = 0, looked_count = 0;  ///< Block files when it began; files done.
  std::uint64_t rewritten_count = 0;               ///< Files among these that held bytes of unwanted blocks.
  std::uint64_t given_back_bytes = 0;
};

/// Blocks under ever-growing keys, on a medium that may fail, stall, fill up or lie. All calls block: only disk
/// threads make them. Writes are not synced: after kill -9 or a power cut the newest writes may be gone, but load()
/// never names a block that read() then does not find (bar damage). Thread safety: read(), load(), stats() and
/// hanging() from any thread at any time; the other calls from one thread at a time.
class Disk {
 public:
  virtual ~Disk() = default;

  /// The places that take blocks now; never empty. With several, a block's hash chooses its place.
  virtual std::vector<DiskPlace> places() const { return {0}; }
  /// Stores the blocks; their keys grow from call to call and within. After an error all count as not stored.
  virtual error_code write(std::span<const DiskWrite> blocks) = 0;
  /// Errors: kNotFound (absent), kCorruptBlock (damage seen by the disk itself), else kDiskFailed.
  virtual Result<DiskBlock> read(DiskKey key) const = 0;
  /// Forgets single blocks: after a later flush(), load() does not name them again. drop_before() frees their bytes.
  virtual error_code erase(std::span<const DiskKey> keys) = 0;
  /// Forgets all blocks with smaller keys and gives their files back; a file that also holds larger keys stays for now.
  virtual error_code drop_before(DiskKey end) = 0;

  /// Keeps drops for the next start. When this returns without an error, they are durable on all directories of the
  /// disk, also for one that does not answer now. From one thread at a time, concurrently with other calls.
  virtual error_code add_drops(std::span<const DiskDrop> drops) = 0;
  virtual std::vector<DiskDrop> drops() const = 0;  ///< Those kept: from earlier starts, and since.
  /// Drops with a bound up to `before` are obsolete: the blocks they named were erased, or went with drop_before(), and
  /// that was flushed. Keeps them until every directory has recorded this. Threads: as write().
  virtual error_code forget_drops(DiskKey before) = 0;

  /// Keeps the canonical record of a namespace. Idempotent.
  virtual error_code add_namespace(const NamespaceId& id, const std::string& record) = 0;
  /// Forgets the records of namespaces without wanted blocks: remaining blocks cannot be loaded. Ignores unknown ids.
  /// After a crash the records may be there again.
  virtual error_code remove_namespaces(std::span<const NamespaceId> ids) = 0;
  /// The namespaces kept, then every block, newest key first, until `block` returns false. Skips unreadable entries.
  virtual error_code load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                          const std::function<bool(const DiskRecord& block)>& block) const = 0;
  virtual std::uint32_t epoch() const = 0;  ///< Of this start: larger than all earlier ones.

  /// Rewrites files until they hold only bytes of blocks that load() names, and none written before one of `dropped`
  /// (whole namespaces) under its name. Calls `goes_on` before each file; with false the call ends (kCancelled). Reads,
  /// and may write, the whole disk. From any thread; other calls go on meanwhile.
  virtual Result<DiskPurge> purge([[maybe_unused]] std::span<const DiskDrop> dropped,
                                  [[maybe_unused]] const std::function<bool(const DiskPurge&)>& goes_on) {
    return make_error_code(Errc::kUnsupported);
  }

  // -- directories that come and go while the disk is in use
  /// Sets the directories, at least one. New ones are opened and emptied, and take blocks from now on; others are
  /// excluded from writes, and are leaving() until remove(). A leaving one that is named again stays. After an error
  /// all is unchanged; its text is for the operator and names the directory. From one thread at a time, concurrently
  /// with other calls; waits some seconds at most.
  virtual Result<void, Failure> set_directories([[maybe_unused]] std::span<const std::string> paths) {
    return Failure(Errc::kUnsupported, "this disk's directories cannot be changed");
  }
  virtual std::vector<LeavingDirectory> leaving() const { return {}; }
  /// Lets a leaving directory go: it is not read any more. Its drops move to the other directories first. Then it is
  /// emptied and closed in the background. Errors: kNotFound if it is not leaving. Threads: as write().
  virtual error_code remove([[maybe_unused]] DiskPlace place) { return Errc::kNotFound; }
  /// Forgets all blocks and namespaces, durably, and gives their files back. Threads: as write().
  virtual error_code clear() { return drop_before(DiskKey{~std::uint64_t{0}}); }

  /// Writes out all buffers, for a clean stop.
  virtual error_code flush() = 0;
  virtual DiskStats stats() const = 0;
  /// For the operator: names the disk, of several, that has not answered a call for this long. Empty: every disk
  /// answers, or there is only one. Never waits.
  virtual std::string hanging(Duration) const { return {}; }
};

/// Reads the block under the key and verifies that its size and bytes belong to the name that the seed is made of.
/// Errors: as Disk::read; kCorruptBlock if they do not.
Result<DiskBlock> read_verified(const Disk& disk, DiskKey key, std::uint64_t seed, std::size_t block_bytes);
/// Whether a read's error means that the block is gone, or damaged for good. After any other error the disk is at
/// fault, and may return the block later.
bool is_lost(error_code error);

/// Opens a disk, however long that takes: on a disk thread. Calls `accepted` once the place is known to be usable,
/// before the slow part. An error's text is for the operator.
using OpenDisk = std::function<Result<std::unique_ptr<Disk>, Failure>(const std::function<void()>& accepted)>;

}  // namespace kv
