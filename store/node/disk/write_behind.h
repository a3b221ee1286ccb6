// store/node/disk/write_behind.h: RocksDB's direct files, each written by a thread of its own.
//
// RocksDB writes a table on one thread, in turns: copies and checksums into a buffer, then waits for the device to take
// it. Here the full buffer goes to a thread and the next is filled meanwhile, so that a table takes as long as the
// slower of the two and not as long as both:
//
//     table builder:  fill A | fill B | fill A | ...
//     file's thread:         | write A | write B | ...
#pragma once

#include <rocksdb/file_system.h>

#include <cstddef>
#include <memory>

namespace kv {

struct WriteBehindConfig {
  std::size_t buffer_bytes = 1 << 20;  ///< Two of them for each file. A multiple of every alignment.
};

/// `below`, but for files that are to be written with direct I/O. Such a file
///   1. writes what it was given in order, in whole buffers, the last one padded and cut to size by Sync, Fsync or
///   Close;
///   2. returns what went wrong from the next call, at the latest from Sync, Fsync or Close, and then from every call;
///   3. counts as an ordinary one for RocksDB: it must not be buffered and aligned a second time;
///   4. has a thread once it has more than one buffer; destroyed unclosed, it waits for the write under way and drops
///   the rest.
/// As for all of RocksDB's files, one thread at a time uses it.
std::shared_ptr<rocksdb::FileSystem> write_behind(std::shared_ptr<rocksdb::FileSystem> below,
                                                  const WriteBehindConfig& config = {});

}  // namespace kv
