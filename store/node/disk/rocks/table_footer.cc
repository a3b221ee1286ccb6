#include "store/node/disk/rocks/table_footer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/machine/file.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::uint64_t kMagic = 0x88e241b785f4cff7;
constexpr std::uint32_t kVersion = 5;                           // as rocks_options.cc sets it
constexpr std::uint32_t kNewVersion = 6;                        // RocksDB's default from 9 on
constexpr char kXxHash64 = 3;                                   // as rocks_options.cc sets it
constexpr char kXxh3 = 4;                                       // as earlier builds set it
constexpr std::size_t kTrailerBytes = 5;                        // of a block: its compression, its checksum
constexpr std::size_t kVersionAt = 41, kMagicAt = 45;           // in the footer
constexpr std::string_view kProperties = "rocksdb.properties";  // in the metaindex
constexpr std::size_t kThreadsMax = 8;

std::uint64_t little_endian(std::string_view bytes) {
  KV_ASSERT(bytes.size() <= sizeof(std::uint64_t));
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

/// Takes a number off the front. nullopt if incomplete or too long: numbers have one encoding, so a changed byte shows.
std::optional<std::uint64_t> take_varint(std::string_view& from) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(from.size(), 9); ++i) {  // 63 bits suffice for a file size
    const auto byte = static_cast<unsigned char>(from[i]);
    value |= std::uint64_t{byte & 0x7fu} << (7 * i);
    if (byte >= 0x80) continue;
    if (byte == 0 && i > 0) return std::nullopt;
    from.remove_prefix(i + 1);
    return value;
  }
  return std::nullopt;
}

/// Where a block lies.
struct Handle {
  std::uint64_t offset, bytes;
  std::uint64_t end() const { return offset + bytes + kTrailerBytes; }
};

std::optional<Handle> take_handle(std::string_view& from) {
  const auto offset = take_varint(from);
  const auto bytes = offset ? take_varint(from) : std::nullopt;
  if (!bytes) return std::nullopt;
  return Handle{*offset, *bytes};
}

struct NamedBlock {
  std::string name;
  Handle place;
};

/// The blocks that a metaindex names; nullopt if malformed. An entry: three varints (bytes of the name shared with the
/// entry before, further bytes of the name, bytes of the value), the name, the value. After the entries come 4 bytes
/// for each restart, and the number of restarts.
std::optional<std::vector<NamedBlock>> named_blocks(std::string_view metaindex) {
  if (metaindex.size() < 4) return std::nullopt;
  const std::uint64_t restart_bytes = 4 * (little_endian(metaindex.substr(metaindex.size() - 4)) + 1);
  if (restart_bytes > metaindex.size()) return std::nullopt;
  metaindex.remove_suffix(restart_bytes);
  std::vector<NamedBlock> blocks;
  std::string name;
  while (!metaindex.empty()) {
    const auto shared = take_varint(metaindex);
    const auto name_bytes = shared ? take_varint(metaindex) : std::nullopt;
    const auto value_bytes = name_bytes ? take_varint(metaindex) : std::nullopt;
    if (!value_bytes || *shared > name.size() || *name_bytes > metaindex.size() ||
        *value_bytes > metaindex.size() - *name_bytes)
      return std::nullopt;
    name.resize(*shared);
    name += metaindex.substr(0, *name_bytes);
    std::string_view value = metaindex.substr(*name_bytes, *value_bytes);
    metaindex.remove_prefix(*name_bytes + *value_bytes);
    if (const auto block = take_handle(value); block && value.empty()) blocks.push_back({name, *block});
  }
  return blocks;
}

/// `type` as in a footer. With XXH3 the last byte (the compression of a block) is mixed in separately.
std::uint32_t checksum_of(std::string_view bytes, char type) {
  if (type == kXxHash64) return static_cast<std::uint32_t>(XXH64(bytes.data(), bytes.size(), 0));
  KV_ASSERT(!bytes.empty());
  const std::uint32_t last = static_cast<unsigned char>(bytes.back());
  return static_cast<std::uint32_t>(XXH3_64bits(bytes.data(), bytes.size() - 1)) ^ (last * 0x6b9083d9u);
}

/// The checksum covers the block and the byte of its compression.
bool has_its_checksum(std::string_view block_and_trailer, char type) {
  KV_ASSERT(block_and_trailer.size() >= kTrailerBytes);
  const std::size_t checked = block_and_trailer.size() - 4;
  return checksum_of(block_and_trailer.substr(0, checked), type) == little_endian(block_and_trailer.substr(checked));
}

/// From version 6 on these bytes are in the metaindex handle's place.
bool has_new_magic(std::string_view footer) { return footer.substr(1, 4) == std::string_view("\x3e\0\x7a\0", 4); }

/// Whether this is a footer of version 6, or would be with that version number, which may be the changed byte.
bool has_own_checksum(std::string_view footer, std::uint64_t footer_offset) {
  constexpr std::size_t kChecksumAt = 5, kContextAt = 9;
  std::string bytes(footer);
  bytes.replace(kChecksumAt, 4, 4, '\0');
  bytes.replace(kVersionAt, 4, std::string_view("\6\0\0\0", 4));
  const auto context = static_cast<std::uint32_t>(little_endian(footer.substr(kContextAt, 4)));
  const auto place = static_cast<std::uint32_t>(footer_offset) + static_cast<std::uint32_t>(footer_offset >> 32);
  return checksum_of(bytes, footer[0]) + (context ^ place) == little_endian(footer.substr(kChecksumAt, 4));
}

TableEnd look_at_new_footer(std::string_view footer, std::uint64_t footer_offset) {
  const std::uint64_t version = little_endian(footer.substr(kVersionAt, 4));
  if ((footer[0] != kXxHash64 && footer[0] != kXxh3) || !has_new_magic(footer))
    return version > kNewVersion ? TableEnd::kForeign : TableEnd::kDamaged;
  const bool is_whole = has_own_checksum(footer, footer_offset);
  if (version == kNewVersion) return is_whole ? TableEnd::kSound : TableEnd::kDamaged;
  return is_whole ? TableEnd::kDamaged : TableEnd::kForeign;  // only its version was changed, or of a later RocksDB
}

/// An unreadable file is kForeign, not damaged: taking a table out is permanent, and a read error may pass.
TableEnd look_at_file(const std::filesystem::path& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) return TableEnd::kForeign;
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  std::string tail(std::min<std::uint64_t>(file_bytes, kTableTailBytes), '\0');
  const ssize_t count = ::pread(file.number(), tail.data(), tail.size(), static_cast<off_t>(file_bytes - tail.size()));
  return count == static_cast<ssize_t>(tail.size()) ? look_at_table_end(tail, file_bytes) : TableEnd::kForeign;
}

}  // namespace

/// Compares every byte that RocksDB would trust unchecked with something that has a checksum: the properties with their
/// own, and the footer with its surroundings. The metaindex must end where the footer begins, and the index where the
/// blocks named by the metaindex begin. In doubt the answer is kForeign, and RocksDB decides.
TableEnd look_at_table_end(std::string_view tail, std::uint64_t file_bytes) {
  if (tail.size() < kTableFooterBytes || tail.size() > file_bytes) return TableEnd::kForeign;
  const std::string_view footer = tail.substr(tail.size() - kTableFooterBytes);
  if (little_endian(footer.substr(kMagicAt)) != kMagic) return TableEnd::kForeign;
  const std::uint64_t footer_offset = file_bytes - kTableFooterBytes;
  if (has_new_magic(footer) || little_endian(footer.substr(kVersionAt, 4)) == kNewVersion)
    return look_at_new_footer(footer, footer_offset);
  if ((footer[0] != kXxHash64 && footer[0] != kXxh3) || little_endian(footer.substr(kVersionAt, 4)) != kVersion)
    return TableEnd::kDamaged;
  std::string_view handles = footer.substr(1, kVersionAt - 1);
  const auto metaindex = take_handle(handles);
  const auto index = metaindex ? take_handle(handles) : std::nullopt;
  if (!index || handles.find_first_not_of('\0') != std::string_view::npos) return TableEnd::kDamaged;
  if (std::max(metaindex->offset, metaindex->bytes) > footer_offset || metaindex->end() != footer_offset)
    return TableEnd::kDamaged;
  const std::uint64_t tail_offset = file_bytes - tail.size();
  if (metaindex->offset < tail_offset) return TableEnd::kForeign;  // our metaindexes are never so large
  const auto in_tail = [&](const Handle& place) {
    return tail.substr(place.offset - tail_offset, place.bytes + kTrailerBytes);
  };
  if (!has_its_checksum(in_tail(*metaindex), footer[0])) return TableEnd::kDamaged;
  auto named = named_blocks(in_tail(*metaindex).substr(0, metaindex->bytes));
  if (!named) return TableEnd::kForeign;
  for (const auto& [name, place] : *named) {
    if (name != kProperties) continue;
    if (place.offset < tail_offset) return TableEnd::kForeign;  // nor are our properties
    if (std::max(place.offset, place.bytes) > metaindex->offset || place.end() > metaindex->offset ||
        !has_its_checksum(in_tail(place), footer[0]))
      return TableEnd::kDamaged;
  }
  // Backwards over all blocks that the metaindex names. Before them lies the index, which it does not name.
  std::uint64_t begin = metaindex->offset;
  std::ranges::sort(*named, std::greater(), [](const NamedBlock& block) { return block.place.offset; });
  for (const auto& [name, place] : *named) {
    if (place.offset < begin && place.end() == begin) begin = place.offset;
  }
  if (index->bytes == 0 || std::max(index->offset, index->bytes) > begin || index->end() != begin)
    return TableEnd::kDamaged;
  return TableEnd::kSound;
}

std::vector<std::filesystem::path> tables_with_damaged_end(const std::filesystem::path& database) {
  std::vector<std::filesystem::path> tables, damaged;
  for (const std::string& name : names_in(database))
    if (name.ends_with(".sst")) tables.push_back(database / name);
  // In parallel: each table is one read that misses the page cache, and a start waits for all of these.
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  const auto look = [&] {
    for (std::size_t i = next++; i < tables.size(); i = next++) {
      if (look_at_file(tables[i]) != TableEnd::kDamaged) continue;
      const std::lock_guard lock(mutex);
      damaged.push_back(tables[i]);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (std::size_t i = 0; i < std::min(kThreadsMax, tables.size() / 16); ++i)  // zero threads for a few tables
      threads.emplace_back([&look] { within_border(NodeThread::kDisk, look); });
  } catch (const std::system_error&) {  // the system is out of threads: this takes longer
  }
  look();
  for (std::thread& each : threads) each.join();
  std::ranges::sort(damaged);
  return damaged;
}

}  // namespace kv
