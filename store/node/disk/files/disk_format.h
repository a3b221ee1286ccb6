// store/node/disk/files/disk_format.h: a disk directory's format besides RocksDB (docs/disk-format.md). Pure
// functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/disk/disk.h"

namespace kv {

inline constexpr std::uint32_t kDiskFormat = 1;
inline constexpr std::uint32_t kDiskFormatSealed = 2;  ///< The same with encrypted blocks. Never reverts to plain.
inline constexpr std::size_t kDiskKeyBytes = 8;
inline constexpr std::size_t kDiskRecordBytes = 1 + 16 + 32 + 32 + 4 + 4 + 8;
inline constexpr std::uint32_t kEpochMax = (1u << 24) - 1;  ///< A DiskKey has 24 bits for it.

inline constexpr std::uint32_t epoch_of(DiskKey key) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> 40);
}

/// Big endian, so that RocksDB's order of bytes is the order of keys.
using DiskKeyText = std::array<char, kDiskKeyBytes>;
DiskKeyText encode_key(DiskKey key);
std::optional<DiskKey> decode_key(std::string_view text);  ///< nullopt unless exactly kDiskKeyBytes long.

/// A record's value: version 1, namespace id, hash, parent, position, block_bytes, moved_from; numbers little endian.
/// The key is not part of the value. Errors of decode_record: kUnsupported for another version; kCorruptBlock for any
/// value that encode_record cannot produce from a record with 1 to 2^30 block_bytes.
std::string encode_record(const DiskRecord& record);
Result<DiskRecord> decode_record(DiskKey key, std::string_view value);

/// A block's value is its stripe checksums (little endian), then its bytes. The value's size alone determines both
/// counts: returns the block_bytes for it, or nullopt for a size that blocks cannot have.
std::optional<std::size_t> block_bytes_of_value(std::size_t value_bytes);
std::string encode_checksums(std::span<const std::uint64_t> checksums);
std::vector<std::uint64_t> decode_checksums(std::string_view text);  ///< Requires: a multiple of 8 bytes.

/// The file DROPS: this line, then one entry of kDropBytes for each drop (drop_log.h), with a checksum of its own.
inline constexpr std::string_view kDropsHeader = "kvstore-drops 1\n";
inline constexpr std::size_t kDropBytes = 16 + 32 + 8 + 8;
std::string encode_drop(const DiskDrop& drop);
std::optional<DiskDrop> decode_drop(std::string_view entry);  ///< nullopt if damaged.

/// The file KEYS: this line, then entries of kWrappedKeyBytes, each a data key sealed with an operator's key
/// (data_keys.h). The part before the nonce is the associated text. The checksum tells damage from a wrong key.
inline constexpr std::string_view kKeysHeader = "kvstore-keys 1\n";
inline constexpr std::size_t kWrappedKeyBytes = 8 + 16 + 8 + 4 + 24 + 12 + 48 + 8;
inline constexpr std::size_t kWrapAssociatedBytes = 8 + 16 + 8 + 4 + 24;
struct WrappedKey {
  std::uint64_t number = 0;      ///< Random; sealed values refer to their key by it.
  NamespaceId space;             ///< Whose blocks it seals.
  DiskKey first_key{};           ///< The first block that it could seal; 0: the directory's own key.
  std::uint32_t seal_epoch = 0;  ///< All blocks from this epoch on are sealed; the same in all entries.
  std::string wrapped_by;        ///< OperatorKeys::Key::id.
  std::array<std::byte, 12> nonce{};
  std::array<std::byte, 48> sealed{};  ///< The key, and the tag.
};
std::string encode_wrapped_key(const WrappedKey& key);
std::optional<WrappedKey> decode_wrapped_key(std::string_view entry);  ///< nullopt if damaged.

/// A sealed block's value is the number of its data key (little endian), then encode_checksums and the bytes, sealed.
inline constexpr std::size_t kSealedOverheadBytes = 8 + 16;
/// A sealed namespace record begins with this byte, which never begins a plain one; then nonce and sealed text.
inline constexpr char kSealedRecordTag = 1;

std::string encode_epoch(std::uint32_t epoch);
std::optional<std::uint32_t> decode_epoch(std::string_view value);

std::string encode_place(DiskPlace place);
std::optional<DiskPlace> decode_place(std::string_view value);

/// The file FORMAT: a line with the format, and a line with its checksum, so that a flipped digit is damage rather than
/// "a newer format". Every future format keeps these two lines.
std::string format_text(std::uint32_t format);
std::optional<std::uint32_t> parse_format_text(std::string_view text);  ///< nullopt if damaged, or not ours.

}  // namespace kv
