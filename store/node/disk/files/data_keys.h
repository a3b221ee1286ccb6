// store/node/disk/files/data_keys.h: the file KEYS of a disk directory: the keys of its blocks, wrapped by operator's
// keys.
//
//     operator's key --wraps--> data key of (namespace, start) --seals--> blocks
//                    --wraps--> the directory's key            --seals--> namespace records
//
// So a change of the operator's key rewrites a file of keys and no blocks, and destroying a namespace's data keys makes
// its blocks unreadable at once, wherever their bytes still lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/secret/secret.h"
#include "store/disk/disk.h"
#include "store/node/disk/files/disk_format.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/machine/file.h"

namespace kv {

/// Keys enter with for_writing(), which makes them durable, and leave with destroy() and destroy_before().
///   1. A data key seals blocks of one namespace and of one start of the node only. Within a start each DiskKey occurs
///      once (RocksDisk asserts that they grow), so a nonce made of the DiskKey alone never repeats under one data key:
///      not after a crash, a lost epoch, or a directory restored from an older copy.
///   2. After for_writing() without an error the key is in the file, and survives a kill or a power cut.
///   3. After destroy() without an error the key is neither in memory nor in the file, and the file that held it was
///      overwritten. (A device may still have the old wrapped bytes; destroying the operator's key ends that too.)
///   4. A damaged entry costs its key. Entries wrapped by a missing or wrong operator's key refuse the directory.
///   5. The file has a bounded number of keys, and open() reads no more, which limits the time a forged file costs.
/// Thread safety: all from any thread. Calls that change keys wait for the disk and each other; lookups do not.
class DataKeys final : public KeyHolder {
 public:
  static constexpr std::size_t kCountMax = 1 << 19;  ///< A file of 64 MiB.
  struct Key {
    std::uint64_t number = 0;
    NamespaceId space;
    DiskKey first_key{};
    Secret bytes;
  };

  /// Reads the file and changes nothing. Errors: kMismatch, with a text for the operator, if the file is damaged as a
  /// whole, wrapped by keys that `keys` lacks, or longer than any that a node writes.
  static Result<std::shared_ptr<DataKeys>, Failure> open(const std::filesystem::path& directory,
                                                         std::shared_ptr<OperatorKeys> keys,
                                                         std::size_t count_max = kCountMax);
  /// For a directory without sealed blocks: seals those from `seal_epoch` on. Durable.
  static Result<std::shared_ptr<DataKeys>, Failure> make(const std::filesystem::path& directory,
                                                         std::shared_ptr<OperatorKeys> keys, std::uint32_t seal_epoch,
                                                         std::size_t count_max = kCountMax);

  bool is_sealed(DiskKey key) const { return epoch_of(key) >= seal_epoch_; }

  /// The key for a block of this start; made if the namespace has none yet. Errors: the system's, and then the key is
  /// not durable; also ENOSPC at the limit on keys.
  Result<std::shared_ptr<const Key>> for_writing(const NamespaceId& space, DiskKey block);
  std::shared_ptr<const Key> find(std::uint64_t number) const;  ///< nullptr: destroyed or never made.
  /// Pairs of a namespace and a start for whose blocks a key may exist.
  std::set<std::pair<NamespaceId, std::uint32_t>> known() const;

  /// The next block of the namespace gets a new key, so that the earlier keys can be destroyed separately.
  void retire(const NamespaceId& space);
  /// Destroys keys made for blocks of the namespace before `before`. Errors: the system's; then all keys remain.
  error_code destroy(std::span<const std::pair<NamespaceId, DiskKey>> gone);
  error_code destroy_before(DiskKey end);  ///< Keys of starts without any blocks left.
  error_code rewrap() override;

  std::string seal_record(const NamespaceId& id, std::string_view record) const;
  /// A record in plain text is older than the keys and is returned as it is. nullopt: damaged.
  std::optional<std::string> open_record(const NamespaceId& id, std::string_view value) const;

 private:
  DataKeys(const std::filesystem::path& directory, std::shared_ptr<OperatorKeys> keys, std::uint32_t seal_epoch,
           std::size_t count_max)
      : file_(directory / "KEYS"), keys_(std::move(keys)), seal_epoch_(seal_epoch), count_max_(count_max) {}
  std::shared_ptr<const Key> draw(const NamespaceId& space, DiskKey first_key) const;
  WrappedKey wrap(const Key& key) const;
  error_code append(const Key& key);
  error_code rewrite(const std::vector<std::shared_ptr<const Key>>& left);
  template <class Gone>
  error_code destroy_if(Gone is_gone);

  const std::filesystem::path file_;
  const std::shared_ptr<OperatorKeys> keys_;
  const std::uint32_t seal_epoch_;
  const std::size_t count_max_;
  std::mutex changing_;       ///< Held during any change, and taken before mutex_.
  mutable std::mutex mutex_;  ///< Guards by_number_, which changes only under both locks.
  std::map<std::uint64_t, std::shared_ptr<const Key>> by_number_;  ///< All, including the directory's own.
  std::map<NamespaceId, std::shared_ptr<const Key>> for_writing_;  ///< Of this start.
  std::shared_ptr<const Key> own_;
  std::string wrapped_by_;  ///< All of the keys; empty: several.
  File append_to_;          ///< file_, once it was rewritten.
  bool is_whole_ = false;   ///< The file holds exactly the keys. Otherwise it is rewritten before a key is added.
};

/// The value of a sealed block, see disk_format.h. Nonce: the block's DiskKey, see DataKeys, 1. Associated text:
/// namespace, data key's number, DiskKey and length, so that a value moved elsewhere or cut fails to open. The
/// checksums inside bind the bytes to the block's hash; the reader compares them with the name.
void seal_block(const DataKeys::Key& data_key, DiskKey key, std::string_view checksums,
                std::span<const std::byte> bytes, std::string& value);
struct OpenedValue {
  std::unique_ptr<std::byte[]> text;  ///< Checksums, then bytes.
  std::size_t size = 0;
};
/// Errors: kNotFound if the data key is gone, kCorruptBlock if the value is not as it was sealed.
Result<OpenedValue> open_block(const DataKeys& keys, DiskKey key, std::string_view value);

}  // namespace kv
