// index/namespace_record.h: all that shapes a block besides tokens. Equal hashes in two namespaces name two blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "index/block_hash.h"

namespace kv {

/// The relation between the blocks of a namespace.
enum class NamespaceKind : std::uint8_t {
  kChain,  ///< Blocks form prefixes, and all have one size.
  kSet,    ///< Blocks stand alone, each of its own size up to a bound.
};

/// A canonical record: `key=value` lines sorted by key, each ended by '\n' (docs/namespace-record.md lists the keys).
/// Keys are [a-z0-9_.]{1,64}; values are printable ASCII, 1..1024 bytes; at most 64 fields, 16 KiB in all. Required:
/// `model`, and for a chain `block_size` (tokens, 1..65536) and `block_bytes` (1..1 GiB); for a set, which has the
/// field `kind=set`, `block_bytes_max` (1..1 GiB) in their place. The numbers are decimal without leading zeros, so
/// that one namespace has one text. An empty value means an absent field, and is left out of the text. Unknown keys are
/// refused, except those that begin with `x.`, for callers' own distinctions.
///
/// A node that authenticates tenants completes the record by fields that callers do not send (kNodeSalt, kNodeTenant):
/// then id() names the stored namespace, and callers_id() is the name that its callers compute with.
class NamespaceRecord {
 public:
  static constexpr std::string_view kShare = "share", kNodeSalt = "node_salt", kNodeTenant = "node_tenant";

  /// Parses and checks a canonical text. Errors: kBadRequest; the text names field, value and allowed values.
  static Result<NamespaceRecord, Failure> parse(std::string_view text);
  /// From fields in any order. Same checks.
  static Result<NamespaceRecord, Failure> from_fields(std::map<std::string, std::string> fields);
  /// This one with `fields` in place of its own; an empty value removes a field. Errors: as from_fields().
  Result<NamespaceRecord, Failure> with(const std::map<std::string, std::string>& fields) const;

  const std::string& text() const { return text_; }    ///< Canonical; parse(text()) gives this record again.
  const BlockHash& digest() const { return digest_; }  ///< SHA-256 of text(): the chain's h[-1].
  NamespaceId id() const;
  /// The id of the record without a node's additions. Checksums are bound to this name: callers compute them.
  const NamespaceId& callers_id() const { return callers_id_; }
  /// The owner of its blocks: the tenant that a node authenticated, else the field `tenant`; for a share "share:NAME".
  std::string owner() const;
  /// Without the salt, which each node makes for itself and keeps secret.
  NamespaceRecord unsalted() const;
  std::string unsalted_text() const;                   ///< unsalted().text(), without making the record.
  std::string_view field(std::string_view key) const;  ///< Empty if absent.
  /// Whether block hashes come from hash_chain(): the record has no field `hash`.
  bool has_own_chain() const;
  NamespaceKind kind() const { return kind_; }
  bool is_set() const { return kind_ == NamespaceKind::kSet; }
  std::size_t block_bytes() const { return block_bytes_; }  ///< Of every block in a chain; of the largest in a set.
  std::size_t block_size() const { return block_size_; }    ///< Tokens of every block in a chain; 0 in a set.
  /// The seed of the block's checksums. In a set it binds the length too; a chain ignores it.
  std::uint64_t checksum_seed(const BlockHash& block, std::size_t length) const;

 private:
  std::map<std::string, std::string> fields_;
  std::string text_;
  BlockHash digest_;
  NamespaceId callers_id_;
  std::size_t block_bytes_ = 0;
  std::size_t block_size_ = 0;
  NamespaceKind kind_ = NamespaceKind::kChain;
};

}  // namespace kv
