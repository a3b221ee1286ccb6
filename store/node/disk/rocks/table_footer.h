// store/node/disk/rocks/table_footer.h: whether the end of one of RocksDB's tables is as it was written.
//
// RocksDB trusts two parts of a table unchecked, and a changed byte in either may end the process where the library has
// assertions on, as Debian's has. The properties have a checksum, but RocksDB parses them before comparing (a tool that
// ingests tables may have changed them): here the checksum comes first. The footer has none, and a change makes RocksDB
// confuse one kind of block with another. But nearly all of a footer follows from its surroundings, so a change shows:
//
//     data blocks | index | [compression dictionary] | [range deletions] | properties | metaindex | footer
//                         └─────────── named by the metaindex, which has a checksum ──┘           |
//     footer: checksum type 1 | metaindex offset, size | index offset, size (varints) | zeros | version 4 | magic 8
//
// Each block begins where the one before it ends, five bytes of trailer included. RocksDB 7.8 to 11 write version 5
// this way, and the node asks for version 5, which every release since 6.6 reads. Version 6, the default of RocksDB 9,
// has a checksum of the footer itself in place of the handles:
//
//   footer: checksum type 1 | 3e 00 7a 00 | checksum 4 | context 4 | metaindex size 4 | zeros 24 | version 4 | magic 8
//
// That checksum covers the 53 bytes, with zeros in its own place, and then adds the context XORed with the footer's
// offset in the file (its two halves summed). Our builds never write version 6; their properties are left to RocksDB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace kv {

enum class TableEnd {
  kSound,
  kDamaged,
  /// Not the end of a table of version 5 or 6: cut off, unfinished, or of another version. RocksDB notices these.
  kForeign,
};

inline constexpr std::size_t kTableFooterBytes = 53;
/// Holds footer, metaindex and properties of every table that we write.
inline constexpr std::size_t kTableTailBytes = 4096;

/// `tail`: the last kTableTailBytes of a file of `file_bytes`, or all of it. With any one byte of its footer or
/// properties changed, a sound end is not kSound.
TableEnd look_at_table_end(std::string_view tail, std::uint64_t file_bytes);

/// The tables (*.sst) in `database` with a damaged end. An unreadable table is left to RocksDB, which reports the
/// cause. Cost: an open and a pread of 4 KiB per table, eight at a time: 12,000 tables on a cold disk take 0.6 s.
std::vector<std::filesystem::path> tables_with_damaged_end(const std::filesystem::path& database);

}  // namespace kv
