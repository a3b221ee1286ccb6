// store/node/disk/rocks/write_behind.h: RocksDB's direct files, each written by a thread of its own.
//
// RocksDB writes a table on one thread, in turns: it copies and checksums into a buffer, then waits until the device
// has taken the buffer. Here a full buffer goes to a second thread while the next is filled, so that a table takes as
// long as the slower of the two rather than the sum:
//
//     table builder:  fill A | fill B | fill A | ...
//     file's thread:         | write A | write B | ...
#pragma once

#include <rocksdb/file_system.h>

#include <cstddef>
#include <memory>

namespace kv {

struct WriteBehindConfig {
  std::size_t buffer_bytes = 1 << 20;  ///< Each file has two. A multiple of every alignment.
};

/// `below`, except for files to be written with direct I/O. Such a file
///   1. writes its data in order, in whole buffers; Sync, Fsync and Close write the last one padded, then truncate;
///   2. returns a failed write from the next call, at the latest from Sync, Fsync or Close, and then from every call;
///   3. looks like an ordinary file to RocksDB, which would buffer and align a direct one a second time;
///   4. has a thread from its first full buffer on; destroyed without Close, it waits for the write under way and
///      discards the rest.
/// Thread safety: as for all of RocksDB's files, one thread at a time.
std::shared_ptr<rocksdb::FileSystem> write_behind(std::shared_ptr<rocksdb::FileSystem> below,
                                                  const WriteBehindConfig& config = {});

}  // namespace kv
