// client/archive/archive_form.h: the format of a file with a named context, to create it on another cluster, with its
// full check. This folder handles files; archive_transfer.h moves blocks between them and nodes.
//
//     | head: the context, names of its blocks | SHA-256 of the head | block, block, ... | SHA-256 of all before |
//     | signature, if there is a key |
//
// Checksums and digests reveal damage, but can be forged. The signature proves who wrote the file.
//
// Head, all little endian (golden test):
//   "KVCX", format 1: u32, bytes of the head with its SHA-256: u32
//   when it was written, microseconds since 1970: u64
//   record: u32 and text, as callers give it; name: u8 and text; tags: u8, of each: u8 and text
//   time to live in microseconds: u64; sliding: u8; priority: u8
//   blocks of the context that was exported: u32; blocks in this file: u32; 32 bytes each, first block first
// Block: of each stripe of 64 KiB its checksum, u64, bound to the block's name (base/checksum.h); its bytes.
// Signature: HMAC-SHA256, with the key, of "kvstore context archive\n" and the last SHA-256.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "index/block_hash.h"
#include "index/namespace_record.h"

namespace kv {

/// A context without its blocks.
struct ArchiveHead {
  std::chrono::microseconds written{0};  ///< Since 1970.
  NamespaceRecord record;
  std::string name;
  std::vector<std::string> tags;
  std::chrono::microseconds ttl{0};
  bool is_sliding = false;
  std::uint8_t priority = 5;
  std::uint32_t wanted_blocks = 0;  ///< Of the exported context: more than `hashes` in a partial export.
  std::vector<BlockHash> hashes;

  std::size_t stripes() const;                                          ///< Per block.
  std::uint64_t block_file_bytes() const;                               ///< Per block with its checksums.
  std::uint64_t file_bytes(std::size_t head_bytes) const;               ///< Of the whole file.
  std::uint64_t block_at(std::size_t head_bytes, std::size_t i) const;  ///< Where block i begins.
};

inline constexpr std::size_t kArchiveStartBytes = 12, kArchiveDigestBytes = 32;
inline constexpr std::size_t kArchiveHeadBytesMax = 40 << 20, kArchiveBlocksMax = 1 << 20;

/// With its SHA-256. Requires wrong_head(head) to be empty.
std::string write_archive_head(const ArchiveHead& head);
std::string wrong_head(const ArchiveHead& head);  ///< The fault that excludes it from a file; or empty.
// For untrusted bytes. Errors: kBadRequest, not such a file; kUnsupported, a later format; kCorruptBlock, damaged;
// kMismatch, an invalid namespace record. The text names the fault.
/// Length of the head, from the first kArchiveStartBytes.
Result<std::size_t, Failure> archive_head_bytes(std::string_view start);
Result<ArchiveHead, Failure> read_archive_head(std::string_view bytes);

/// SHA-256 of a stream of bytes.
class ArchiveDigest {
 public:
  ArchiveDigest();
  void add(std::span<const std::byte> bytes);
  BlockHash end();  ///< Once.

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

/// Bytes in order, from a file or a test.
class ArchiveSource {
 public:
  virtual ~ArchiveSource() = default;
  /// At least one byte; 0 at the end.
  virtual Result<std::size_t, Failure> read(std::span<std::byte> to) = 0;
};
/// Fills `to` as far as possible. Returns the number of bytes.
Result<std::size_t, Failure> read_all(ArchiveSource& source, std::span<std::byte> to);

/// The key that signs files. Its holder can make files that an import with this key accepts.
class ArchiveKey {
 public:
  static constexpr const char* kEnvironment = "KVSTORE_ARCHIVE_KEY_FILE";

  /// From a file with 64 hexadecimal digits, readable by its owner only (base/secret/secret_file.h). An empty name: the
  /// file named by the environment, if any. Errors: as read_secret_file(); kBadRequest, other content.
  static Result<std::optional<ArchiveKey>, Failure> configured(const std::string& file);
  static Result<ArchiveKey, Failure> parse(std::string_view digits);

  BlockHash sign(const BlockHash& digest) const;
  bool has_signed(const BlockHash& digest, std::span<const std::byte> signature) const;  ///< In constant time.

 private:
  std::array<unsigned char, 32> key_{};
};

struct CheckedArchive {
  ArchiveHead head;
  std::size_t head_bytes = 0;
  bool is_signed = false;                ///< By the given key; without a key, by any.
  std::vector<std::uint64_t> checksums;  ///< head.stripes() per block, as in the file.
};
/// Reads the whole file, a block at a time. `go_on(blocks, of)` is asked before each; false ends it with kCancelled.
/// With a `key`, a file that it has not signed is refused. Errors: as read_archive_head(), and the source's;
/// kPermissionDenied, unsigned, or signed by another key.
Result<CheckedArchive, Failure> check_archive(ArchiveSource& source,
                                              const std::function<bool(std::size_t, std::size_t)>& go_on,
                                              const ArchiveKey* key = nullptr);

}  // namespace kv
