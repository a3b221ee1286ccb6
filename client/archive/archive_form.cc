#include "client/archive/archive_form.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/checksum.h"
#include "base/secret/secret_file.h"
#include "base/text/fields.h"
#include "base/text/hex.h"
#include "base/text/printable.h"

namespace kv {
namespace {

constexpr std::string_view kArchiveMagic = "KVCX";
constexpr std::uint32_t kArchiveFormat = 1;
constexpr std::size_t kNameMax = 128, kTagsMax = 16, kTagMax = 128, kRecordMax = 16 << 10;
constexpr auto kTtlMax = std::chrono::microseconds(std::chrono::hours(24 * 3660));

Failure damage(const std::string& text) { return {Errc::kCorruptBlock, text}; }

bool is_text(std::string_view text, std::size_t bytes_max, char first) {
  return !text.empty() && text.size() <= bytes_max &&
         std::ranges::all_of(text, [first](char c) { return c >= first && c < 127; });
}

/// Compares the digest at the archive's end with `right`, and the signature behind it, if there is one. Returns whether
/// there is. An unsigned archive of `byte_count` bytes ends with its digest.
Result<bool, Failure> check_end(ArchiveSource& source, std::uint64_t byte_count, const BlockHash& right,
                                const ArchiveKey* key) {
  std::array<std::byte, 2 * kArchiveDigestBytes + 1> end;
  const auto got = read_all(source, end);
  if (!got) return got.error();
  if (*got < kArchiveDigestBytes)
    return damage("cut short behind its last block: " + std::to_string(byte_count - kArchiveDigestBytes + *got) +
                  " bytes, of which there should be " + std::to_string(byte_count));
  const bool is_signed = *got == 2 * kArchiveDigestBytes;
  if (*got > kArchiveDigestBytes && !is_signed)
    return damage("it goes on behind its end at byte " + std::to_string(byte_count) + ", with what is no signature");
  if (std::memcmp(right.bytes.data(), end.data(), kArchiveDigestBytes) != 0)
    return damage("damaged: the SHA-256 at its end does not match");
  if (key == nullptr) return is_signed;
  if (!is_signed)
    return Failure(Errc::kPermissionDenied,
                   "it is not signed, and there is a key: whoever made it may have made it up");
  if (!key->has_signed(right, std::span(end).last(kArchiveDigestBytes + 1).first(kArchiveDigestBytes)))
    return Failure(Errc::kPermissionDenied, "it is signed with another key, or was changed since");
  return true;
}

}  // namespace

std::size_t ArchiveHead::stripes() const { return stripe_count(record.block_bytes()); }
std::uint64_t ArchiveHead::block_file_bytes() const { return record.block_bytes() + stripes() * sizeof(std::uint64_t); }
std::uint64_t ArchiveHead::block_at(std::size_t head_bytes, std::size_t i) const {
  return head_bytes + i * block_file_bytes();
}
std::uint64_t ArchiveHead::file_bytes(std::size_t head_bytes) const {
  return block_at(head_bytes, hashes.size()) + kArchiveDigestBytes;
}

ArchiveDigest::ArchiveDigest() : context_(EVP_MD_CTX_new()) {
  KV_ASSERT(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}
void ArchiveDigest::add(std::span<const std::byte> bytes) {
  KV_ASSERT(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}
BlockHash ArchiveDigest::end() {
  BlockHash digest;
  unsigned int length = 0;
  KV_ASSERT(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.bytes.data()), &length) == 1 &&
            length == sizeof digest.bytes);
  return digest;
}

Result<std::size_t, Failure> read_all(ArchiveSource& source, std::span<std::byte> to) {
  std::size_t at = 0;
  while (at < to.size()) {
    const auto count = source.read(to.subspan(at));
    if (!count) return count.error();
    if (*count == 0) break;
    at += *count;
  }
  return at;
}

std::string wrong_head(const ArchiveHead& head) {
  if (head.record.is_set()) return "record: of a set, only chains have contexts";
  if (head.record.id() != head.record.callers_id()) return "record: it has what a node adds for a tenant";
  if (!is_text(head.name, kNameMax, '!'))
    return "name: '" + printable(head.name) + "', allowed are 1 to 128 visible ASCII characters";
  if (head.tags.size() > kTagsMax) return "tags: " + std::to_string(head.tags.size()) + ", at most 16";
  for (const std::string& tag : head.tags) {
    if (!is_text(tag, kTagMax, ' '))
      return "tags: '" + printable(tag) + "', allowed are 1 to 128 printable ASCII characters";
  }
  if (head.ttl.count() <= 0 || head.ttl > kTtlMax)
    return "time to live: " + std::to_string(head.ttl.count()) + " us, allowed are 1 us to ten years";
  if (head.priority > 9) return "priority: " + std::to_string(head.priority) + ", allowed are 0 to 9";
  if (head.hashes.empty() || head.hashes.size() > kArchiveBlocksMax || head.hashes.size() > head.wanted_blocks) {
    return "blocks: " + std::to_string(head.hashes.size()) + " of " + std::to_string(head.wanted_blocks) +
           ", allowed are 1 to " + std::to_string(kArchiveBlocksMax) + " and no more than the context had";
  }
  return "";
}

std::string write_archive_head(const ArchiveHead& head) {
  KV_ASSERT(wrong_head(head).empty());
  std::string bytes(kArchiveMagic);
  append_number(bytes, kArchiveFormat);
  append_number(bytes, std::uint32_t{0});  // the length, below
  append_number(bytes, static_cast<std::uint64_t>(head.written.count()));
  append_text<std::uint32_t>(bytes, head.record.text());
  append_text<std::uint8_t>(bytes, head.name);
  append_number(bytes, static_cast<std::uint8_t>(head.tags.size()));
  for (const std::string& tag : head.tags) append_text<std::uint8_t>(bytes, tag);
  append_number(bytes, static_cast<std::uint64_t>(head.ttl.count()));
  append_number(bytes, static_cast<std::uint8_t>(head.is_sliding));
  append_number(bytes, head.priority);
  append_number(bytes, head.wanted_blocks);
  append_number(bytes, static_cast<std::uint32_t>(head.hashes.size()));
  const auto hashes = std::as_bytes(std::span(head.hashes));
  bytes.append(reinterpret_cast<const char*>(hashes.data()), hashes.size());
  const auto length = static_cast<std::uint32_t>(bytes.size() + kArchiveDigestBytes);
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  const BlockHash digest = sha256(std::as_bytes(std::span(bytes)));
  bytes.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  return bytes;
}

Result<std::size_t, Failure> archive_head_bytes(std::string_view start) {
  if (start.substr(0, kArchiveMagic.size()) != kArchiveMagic.substr(0, start.size()))
    return Failure(Errc::kBadRequest, "it is no exported context");
  if (start.size() < kArchiveStartBytes)
    return damage("cut short: " + std::to_string(start.size()) + " bytes, not even its head");
  FieldTaker from{start.substr(kArchiveMagic.size())};
  const auto format = from.number<std::uint32_t>();
  const auto length = from.number<std::uint32_t>();
  if (format != kArchiveFormat)
    return Failure(Errc::kUnsupported,
                   "format " + std::to_string(format) + ", this program reads " + std::to_string(kArchiveFormat));
  if (length < kArchiveStartBytes + kArchiveDigestBytes || length > kArchiveHeadBytesMax)
    return damage("a head of " + std::to_string(length) + " bytes, allowed are " +
                  std::to_string(kArchiveStartBytes + kArchiveDigestBytes) + " to " +
                  std::to_string(kArchiveHeadBytesMax));
  return std::size_t{length};
}

Result<ArchiveHead, Failure> read_archive_head(std::string_view bytes) {
  const auto length = archive_head_bytes(bytes.substr(0, kArchiveStartBytes));
  if (!length) return length.error();
  if (*length != bytes.size())
    return damage("cut short: a head of " + std::to_string(bytes.size()) + " bytes, of which there should be " +
                  std::to_string(*length));
  const std::string_view body = bytes.substr(0, bytes.size() - kArchiveDigestBytes);
  const BlockHash digest = sha256(std::as_bytes(std::span(body)));
  if (std::memcmp(digest.bytes.data(), bytes.data() + body.size(), digest.bytes.size()) != 0)
    return damage("its head is damaged: the SHA-256 of the first " + std::to_string(body.size()) +
                  " bytes does not match");
  const auto wrong = [](const std::string& what) { return Failure(Errc::kBadRequest, "its head: " + what); };
  FieldTaker from{body.substr(kArchiveStartBytes)};
  ArchiveHead head;
  const auto written = from.number<std::uint64_t>();
  const std::string record = from.text<std::uint32_t>();
  head.name = from.text<std::uint8_t>();
  head.tags.resize(from.number<std::uint8_t>());
  for (std::string& tag : head.tags) tag = from.text<std::uint8_t>();
  const auto ttl = from.number<std::uint64_t>();
  const auto sliding = from.number<std::uint8_t>();
  head.priority = from.number<std::uint8_t>();
  head.wanted_blocks = from.number<std::uint32_t>();
  const auto count = from.number<std::uint32_t>();
  if (from.is_cut) return wrong("cut off");
  if (count > from.bytes.size() / sizeof(BlockHash) || count * sizeof(BlockHash) != from.bytes.size())
    return wrong(std::to_string(from.bytes.size()) + " bytes of block hashes, of which there should be " +
                 std::to_string(std::uint64_t{count} * sizeof(BlockHash)));
  if (record.size() > kRecordMax) return wrong("record: " + std::to_string(record.size()) + " bytes, at most 16384");
  const auto parsed = NamespaceRecord::parse(record);
  if (!parsed) return wrong("record: " + parsed.error().text);
  head.record = *parsed;
  if (head.record.id() != head.record.callers_id())
    return Failure(Errc::kMismatch, "its head: record: it has what a node adds for a tenant");
  if (sliding > 1) return wrong("sliding: " + std::to_string(sliding) + ", allowed are 0 and 1");
  constexpr std::uint64_t kLast = std::uint64_t{1} << 62;
  if (ttl > kLast || written > kLast) return wrong("a time that is too large");
  head.ttl = std::chrono::microseconds(ttl);
  head.written = std::chrono::microseconds(written);
  head.is_sliding = sliding == 1;
  head.hashes.resize(count);
  if (count > 0) std::memcpy(static_cast<void*>(head.hashes.data()), from.bytes.data(), from.bytes.size());
  if (const std::string what = wrong_head(head); !what.empty()) return wrong(what);
  return head;
}

Result<std::optional<ArchiveKey>, Failure> ArchiveKey::configured(const std::string& file) {
  const char* const named = file.empty() ? std::getenv(kEnvironment) : file.c_str();
  if (named == nullptr || *named == '\0') return std::optional<ArchiveKey>();
  constexpr std::size_t kTextBytesMax = 256;
  const auto text = read_secret_file(named, kTextBytesMax);
  if (!text) return text.error();
  const auto key = parse(text->text());
  if (!key) return Failure(key.error().code, printable(named) + ": " + key.error().text);
  return std::optional<ArchiveKey>(*key);
}

Result<ArchiveKey, Failure> ArchiveKey::parse(std::string_view digits) {
  ArchiveKey key;
  if (!from_hex(digits, std::as_writable_bytes(std::span(key.key_)))) {
    return Failure(Errc::kBadRequest, std::to_string(digits.size()) +
                                          " characters, allowed are 64 hexadecimal digits (openssl rand -hex 32)");
  }
  return key;
}

BlockHash ArchiveKey::sign(const BlockHash& digest) const {
  std::string text = "kvstore context archive\n";
  text.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  BlockHash signature;
  unsigned int length = 0;
  KV_ASSERT(HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                 reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                 reinterpret_cast<unsigned char*>(signature.bytes.data()), &length) != nullptr &&
            length == sizeof signature.bytes);
  return signature;
}

bool ArchiveKey::has_signed(const BlockHash& digest, std::span<const std::byte> signature) const {
  const BlockHash right = sign(digest);
  return signature.size() == right.bytes.size() &&
         CRYPTO_memcmp(right.bytes.data(), signature.data(), signature.size()) == 0;
}

Result<CheckedArchive, Failure> check_archive(ArchiveSource& source,
                                              const std::function<bool(std::size_t, std::size_t)>& go_on,
                                              const ArchiveKey* key) {
  CheckedArchive archive;
  ArchiveDigest digest;
  std::string head(kArchiveStartBytes, '\0');
  const auto take = [&](std::size_t first) -> Result<bool, Failure> {
    const auto to = std::as_writable_bytes(std::span(head)).subspan(first);
    const auto count = read_all(source, to);
    if (!count) return count.error();
    head.resize(first + *count);
    digest.add(to.first(*count));
    return *count == to.size();
  };
  if (const auto start = take(0); !start) return start.error();
  const auto length = archive_head_bytes(head);
  if (!length) return length.error();
  // A false length allocates at most the bytes that exist.
  constexpr std::size_t kPiece = 1 << 20;
  while (head.size() < *length) {
    const std::size_t first = head.size();
    head.resize(std::min(*length, first + kPiece));
    const auto more = take(first);
    if (!more) return more.error();
    if (!*more) break;
  }
  auto read = read_archive_head(head);
  if (!read) return read.error();
  archive.head = *std::move(read);
  archive.head_bytes = *length;
  const ArchiveHead& of = archive.head;
  const std::size_t stripes = of.stripes(), count = of.hashes.size();
  std::vector<std::byte> block;
  for (std::size_t i = 0; i < count; ++i) {
    if (go_on && !go_on(i, count)) return Failure(Errc::kCancelled);
    const std::uint64_t begin = of.block_at(archive.head_bytes, i);
    // Grows with the bytes that exist: a head can claim any size.
    block.resize(0);
    while (block.size() < of.block_file_bytes()) {
      const std::size_t first = block.size();
      block.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(of.block_file_bytes(), std::max(2 * first, kPiece))));
      const auto got = read_all(source, std::span(block).subspan(first));
      if (!got) return got.error();
      if (first + *got < block.size()) {
        return damage("cut short in block " + std::to_string(i) + " of " + std::to_string(count) + ": " +
                      std::to_string(begin + first + *got) + " bytes, of which there should be " +
                      std::to_string(of.file_bytes(archive.head_bytes)));
      }
    }
    digest.add(block);
    std::vector<std::uint64_t> sums(stripes);
    std::memcpy(sums.data(), block.data(), stripes * sizeof(std::uint64_t));
    const auto bytes = std::span<const std::byte>(block).subspan(stripes * sizeof(std::uint64_t));
    if (!verify_block(of.record.checksum_seed(of.hashes[i], bytes.size()), bytes, sums)) {
      return damage("block " + std::to_string(i) + " of " + std::to_string(count) + ", at byte " +
                    std::to_string(begin) + ": damaged, or another block than its name says");
    }
    archive.checksums.insert(archive.checksums.end(), sums.begin(), sums.end());
  }
  const auto is_signed = check_end(source, of.file_bytes(archive.head_bytes), digest.end(), key);
  if (!is_signed) return is_signed.error();
  archive.is_signed = *is_signed;
  return archive;
}

}  // namespace kv
