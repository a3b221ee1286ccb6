#include "store/node/disk/files/disk_format.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <cstring>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/disk/files/operator_keys.h"

namespace kv {
namespace {

constexpr char kRecordVersion = 1;
constexpr std::uint32_t kBlockBytesMax = 1u << 30;  // as in a namespace record
constexpr std::string_view kFormatPrefix = "kvstore-spill ";
constexpr std::string_view kChecksumPrefix = "xxh3 ";

/// Byte by byte, independent of the machine's byte order. Compilers turn the loop into one move.
template <class T>
void append_little_endian(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

template <class T>
T load_little_endian(std::string_view text) {
  KV_ASSERT(text.size() >= sizeof(T));
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<T>(static_cast<unsigned char>(text[i])) << (8 * i);
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string checksum_line(std::string_view line) {
  return fmt::format("{}{:016x}", kChecksumPrefix, stripe_checksum(0, 0, std::as_bytes(std::span(line))));
}

}  // namespace

DiskKeyText encode_key(DiskKey key) {
  DiskKeyText text;
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(static_cast<std::uint64_t>(key) >> (8 * (text.size() - 1 - i)) & 0xff);
  return text;
}

std::optional<DiskKey> decode_key(std::string_view text) {
  if (text.size() != kDiskKeyBytes) return std::nullopt;
  std::uint64_t key = 0;
  for (const char c : text) key = key << 8 | static_cast<unsigned char>(c);
  return DiskKey{key};
}

std::string encode_record(const DiskRecord& record) {
  std::string value;
  value.reserve(kDiskRecordBytes);
  value += kRecordVersion;
  value += as_text(record.space.bytes);
  value += as_text(record.hash.bytes);
  value += as_text(record.parent.bytes);
  append_little_endian(value, record.position);
  append_little_endian(value, record.block_bytes);
  append_little_endian(value, static_cast<std::uint64_t>(record.moved_from));
  KV_ASSERT(value.size() == kDiskRecordBytes);
  return value;
}

/// An unknown version is kUnsupported, not damage: a later build wrote the record, and is_lost() must not count it.
Result<DiskRecord> decode_record(DiskKey key, std::string_view value) {
  if (value.empty()) return make_error_code(Errc::kCorruptBlock);
  if (value[0] != kRecordVersion) return make_error_code(Errc::kUnsupported);
  if (value.size() != kDiskRecordBytes) return make_error_code(Errc::kCorruptBlock);
  value.remove_prefix(1);
  DiskRecord record{.key = key};
  const auto take = [&value](auto& bytes) {
    std::memcpy(bytes.data(), value.data(), bytes.size());
    value.remove_prefix(bytes.size());
  };
  take(record.space.bytes);
  take(record.hash.bytes);
  take(record.parent.bytes);
  record.position = load_little_endian<std::uint32_t>(value);
  record.block_bytes = load_little_endian<std::uint32_t>(value.substr(4));
  KV_ASSERT(value.size() == 16);
  record.moved_from = DiskKey{load_little_endian<std::uint64_t>(value.substr(8))};
  if (record.block_bytes == 0 || record.block_bytes > kBlockBytesMax) return make_error_code(Errc::kCorruptBlock);
  return record;
}

std::optional<std::size_t> block_bytes_of_value(std::size_t value_bytes) {
  // A stripe and its checksum are kStripeBytes + 8 bytes; the last stripe may be shorter, but not empty.
  const std::size_t sums = (value_bytes + kStripeBytes + 7) / (kStripeBytes + 8);
  if (value_bytes <= 8 * sums) return std::nullopt;
  const std::size_t block_bytes = value_bytes - 8 * sums;
  if (stripe_count(block_bytes) != sums || block_bytes > kBlockBytesMax) return std::nullopt;
  return block_bytes;
}

std::string encode_checksums(std::span<const std::uint64_t> checksums) {
  std::string text;
  text.reserve(8 * checksums.size());
  for (const std::uint64_t sum : checksums) append_little_endian(text, sum);
  return text;
}

std::vector<std::uint64_t> decode_checksums(std::string_view text) {
  KV_ASSERT(text.size() % 8 == 0);
  std::vector<std::uint64_t> checksums(text.size() / 8);
  for (std::size_t i = 0; i < checksums.size(); ++i)
    checksums[i] = load_little_endian<std::uint64_t>(text.substr(8 * i));
  return checksums;
}

std::string encode_drop(const DiskDrop& drop) {
  std::string entry;
  entry += as_text(drop.space.bytes);
  entry += as_text(drop.hash.bytes);
  append_little_endian(entry, static_cast<std::uint64_t>(drop.before));
  append_little_endian(entry, stripe_checksum(0, 0, std::as_bytes(std::span(entry))));
  KV_ASSERT(entry.size() == kDropBytes);
  return entry;
}

std::optional<DiskDrop> decode_drop(std::string_view entry) {
  constexpr std::size_t kSummed = kDropBytes - 8;
  if (entry.size() != kDropBytes) return std::nullopt;
  const std::uint64_t sum = stripe_checksum(0, 0, std::as_bytes(std::span(entry.data(), kSummed)));
  if (load_little_endian<std::uint64_t>(entry.substr(kSummed)) != sum) return std::nullopt;
  DiskDrop drop;
  static_assert(sizeof drop.space.bytes == 16 && sizeof drop.hash.bytes == 32);
  std::memcpy(drop.space.bytes.data(), entry.data(), 16);
  std::memcpy(drop.hash.bytes.data(), entry.data() + 16, 32);
  drop.before = DiskKey{load_little_endian<std::uint64_t>(entry.substr(48))};
  return drop;
}

std::string encode_wrapped_key(const WrappedKey& key) {
  KV_ASSERT(OperatorKeys::is_id(key.wrapped_by));  // so that it fits, and the zeros behind it mark its end
  std::string entry;
  entry.reserve(kWrappedKeyBytes);
  append_little_endian(entry, key.number);
  entry += as_text(key.space.bytes);
  append_little_endian(entry, static_cast<std::uint64_t>(key.first_key));
  append_little_endian(entry, key.seal_epoch);
  entry += key.wrapped_by;
  entry.resize(kWrapAssociatedBytes, '\0');
  entry += as_text(key.nonce);
  entry += as_text(key.sealed);
  append_little_endian(entry, stripe_checksum(0, 0, std::as_bytes(std::span(entry))));
  KV_ASSERT(entry.size() == kWrappedKeyBytes);
  return entry;
}

std::optional<WrappedKey> decode_wrapped_key(std::string_view entry) {
  constexpr std::size_t kSummed = kWrappedKeyBytes - 8;
  if (entry.size() != kWrappedKeyBytes) return std::nullopt;
  const std::uint64_t sum = stripe_checksum(0, 0, std::as_bytes(std::span(entry.data(), kSummed)));
  if (load_little_endian<std::uint64_t>(entry.substr(kSummed)) != sum) return std::nullopt;
  WrappedKey key;
  static_assert(sizeof key.space.bytes == 16 && OperatorKeys::kIdBytesMax == 24);
  key.number = load_little_endian<std::uint64_t>(entry);
  std::memcpy(key.space.bytes.data(), entry.data() + 8, 16);
  key.first_key = DiskKey{load_little_endian<std::uint64_t>(entry.substr(24))};
  key.seal_epoch = load_little_endian<std::uint32_t>(entry.substr(32));
  const std::string_view id = entry.substr(36, 24);
  key.wrapped_by = id.substr(0, id.find('\0'));
  // An attacker who can write the file can forge checksums, and an id goes into messages and back into the file.
  if (!OperatorKeys::is_id(key.wrapped_by)) return std::nullopt;
  if (id.find_first_not_of('\0', key.wrapped_by.size()) != std::string_view::npos) return std::nullopt;
  std::memcpy(key.nonce.data(), entry.data() + kWrapAssociatedBytes, key.nonce.size());
  std::memcpy(key.sealed.data(), entry.data() + kWrapAssociatedBytes + key.nonce.size(), key.sealed.size());
  return key;
}

std::string encode_epoch(std::uint32_t epoch) {
  std::string value;
  append_little_endian(value, epoch);
  return value;
}

std::optional<std::uint32_t> decode_epoch(std::string_view value) {
  if (value.size() != sizeof(std::uint32_t)) return std::nullopt;
  return load_little_endian<std::uint32_t>(value);
}

std::string encode_place(DiskPlace place) {
  KV_ASSERT(place < kPlaceCount);  // or decode_place() would reject it
  return std::string(1, static_cast<char>(place));
}

std::optional<DiskPlace> decode_place(std::string_view value) {
  if (value.size() != 1 || static_cast<unsigned char>(value[0]) >= kPlaceCount) return std::nullopt;
  return static_cast<DiskPlace>(value[0]);
}

std::string format_text(std::uint32_t format) {
  const std::string line = std::string(kFormatPrefix) + std::to_string(format);
  return line + "\n" + checksum_line(line) + "\n";
}

std::optional<std::uint32_t> parse_format_text(std::string_view text) {
  if (!text.starts_with(kFormatPrefix)) return std::nullopt;
  std::uint32_t format = 0;
  std::from_chars(text.data() + kFormatPrefix.size(), text.data() + text.size(), format);
  // Compared as a whole: a line without a number, or with another checksum, differs from the expected line.
  if (!text.starts_with(format_text(format))) return std::nullopt;
  return format;
}

}  // namespace kv
