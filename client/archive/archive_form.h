// client/archive/archive_form.h: the form of a file that holds a named context, to have the same prefix on another
// cluster: how it is written, and how all of it is checked. The folder knows files; archive_transfer.h brings them to
// nodes and back.
//
//     | head: what the context is, names of its blocks | SHA-256 of that | block, block, ... | SHA-256 of all before |
//     | signature, if there is a key |
//
// Checksums and digests are anybody's to make: they tell damage. Who has made the file the signature tells.
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
  std::uint32_t wanted_blocks = 0;  ///< Of the context that was exported: more than `hashes`, if only a part was there.
  std::vector<BlockHash> hashes;

  std::size_t stripes() const;                                          ///< Of a block.
  std::uint64_t block_file_bytes() const;                               ///< Of a block with its checksums.
  std::uint64_t file_bytes(std::size_t head_bytes) const;               ///< Of all of it.
  std::uint64_t block_at(std::size_t head_bytes, std::size_t i) const;  ///< Where block i begins.
};

inline constexpr std::size_t kArchiveStartBytes = 12, kArchiveDigestBytes = 32;
inline constexpr std::size_t kArchiveHeadBytesMax = 40 << 20, kArchiveBlocksMax = 1 << 20;

/// With its SHA-256. Requires: what wrong_head() says nothing of.
std::string write_archive_head(const ArchiveHead& head);
std::string wrong_head(const ArchiveHead& head);  ///< What may not be in a file; empty: nothing.
// Of anybody's bytes. Errors: kBadRequest, it is no such file; kUnsupported, a later format; kCorruptBlock, damaged;
// kMismatch, a record that no caller gives. The words name what is wrong.
/// How long the head is, of the first kArchiveStartBytes.
Result<std::size_t, Failure> archive_head_bytes(std::string_view start);
Result<ArchiveHead, Failure> read_archive_head(std::string_view bytes);

/// SHA-256 of what comes piece by piece.
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
  /// Some of them, at least one; 0: there are no more.
  virtual Result<std::size_t, Failure> read(std::span<std::byte> to) = 0;
};
/// Fills `to`. Returns how much there was.
Result<std::size_t, Failure> read_all(ArchiveSource& source, std::span<std::byte> to);

/// What signs files. Whoever has it can make one that an import with it takes.
class ArchiveKey {
 public:
  static constexpr const char* kEnvironment = "KVSTORE_ARCHIVE_KEY_FILE";

  /// Of a file with 64 hexadecimal digits that nobody else may read (base/secret_file.h). An empty name: of that which
  /// the environment names; nothing if it names none. Errors: as read_secret_file(); kBadRequest, it has something
  /// else.
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
  bool is_signed = false;                ///< By the key that was given; without one, by somebody.
  std::vector<std::uint64_t> checksums;  ///< head.stripes() of each block, as the bytes have them.
};
/// Reads all of it, a block at a time. `go_on(blocks, of)` is asked before each; false ends it with kCancelled. With a
/// `key`, a file that it has not signed is refused. Errors: as read_archive_head(), and the source's;
/// kPermissionDenied, it is not signed, or by another key.
Result<CheckedArchive, Failure> check_archive(ArchiveSource& source,
                                              const std::function<bool(std::size_t, std::size_t)>& go_on,
                                              const ArchiveKey* key = nullptr);

}  // namespace kv
