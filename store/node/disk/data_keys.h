// store/node/disk/data_keys.h: the file KEYS of a spill directory: the keys that its blocks are sealed with, each
// wrapped by a key of the operator's (spill_keys.h).
//
//     operator's key --wraps--> data key of (namespace, start) --seals--> blocks
//                    --wraps--> the directory's key            --seals--> namespace records
//
// So another operator's key costs a file of keys and no block, and a namespace whose data keys are destroyed is gone at
// once, wherever its bytes still lie.
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

#include "base/secret.h"
#include "store/disk.h"
#include "store/node/disk/file.h"
#include "store/node/disk/spill_format.h"
#include "store/node/disk/spill_keys.h"

namespace kv {

/// Keys enter with for_writing(), which makes them durable, and leave with destroy() and destroy_before().
///   1. A data key seals blocks of one namespace and of one start of the node only. Within a start no DiskKey comes
///      twice (RocksDisk asserts that they grow), so a nonce made of the DiskKey alone never comes twice under one data
///      key: not after a crash, a lost epoch, or a directory that was set back to an older copy.
///   2. After for_writing() without an error the key is in the file, whatever kill or power cut follows.
///   3. After destroy() without an error the key is neither in memory nor in the file, and the file that held it was
///      overwritten. (A device may still have the old bytes: wrapped. Destroying the operator's key, too, ends that.)
///   4. A damaged entry costs its key; an entry that no key of the operator's opens refuses the directory.
///   5. At most so many keys are written as open() reads: whoever may write the file cannot make the node read for
///   ever.
/// Thread safety: all from any thread. Whoever changes keys waits for the disk, and for others that do; find() and
/// known() never wait for it, since reads need them.
class DataKeys final : public KeyHolder {
 public:
  static constexpr std::size_t kCountMax = 1 << 19;  ///< A file of 64 MiB.
  struct Key {
    std::uint64_t number = 0;
    NamespaceId space;
    DiskKey first_key{};
    Secret bytes;
  };

  /// Reads the file and changes nothing. Errors: kMismatch, with words for the operator, if the file is damaged as a
  /// whole, was wrapped by keys that `keys` has not, or is longer than a node writes it.
  static Result<std::shared_ptr<DataKeys>, Failure> open(const std::filesystem::path& directory,
                                                         std::shared_ptr<SpillKeys> keys,
                                                         std::size_t count_max = kCountMax);
  /// For a directory that has no sealed blocks yet: those from `seal_epoch` on will be. Durable.
  static Result<std::shared_ptr<DataKeys>, Failure> make(const std::filesystem::path& directory,
                                                         std::shared_ptr<SpillKeys> keys, std::uint32_t seal_epoch,
                                                         std::size_t count_max = kCountMax);

  bool is_sealed(DiskKey key) const { return epoch_of(key) >= seal_epoch_; }

  /// The key for a block of this start; made if there is none yet. Errors: the system's, then it is not durable; ENOSPC
  /// also if there are as many keys as there may be.
  Result<std::shared_ptr<const Key>> for_writing(const NamespaceId& space, DiskKey block);
  std::shared_ptr<const Key> find(std::uint64_t number) const;  ///< nullptr: it was destroyed, or never was.
  /// For which blocks there may be a key: namespaces with the starts that wrote them.
  std::set<std::pair<NamespaceId, std::uint32_t>> known() const;

  /// The next block of the namespace gets a new key, so that those before can be destroyed apart.
  void retire(const NamespaceId& space);
  /// Destroys keys that were made for blocks of the namespace before `before`. What was sealed with them is gone.
  /// Errors: the system's; then nothing is destroyed.
  error_code destroy(std::span<const std::pair<NamespaceId, DiskKey>> gone);
  error_code destroy_before(DiskKey end);  ///< Keys of starts that have no block any more.
  error_code rewrap() override;

  std::string seal_record(const NamespaceId& id, std::string_view record) const;
  /// A record in plain text is returned as it is: it is older than the keys. Nothing: it is damaged.
  std::optional<std::string> open_record(const NamespaceId& id, std::string_view value) const;

 private:
  DataKeys(const std::filesystem::path& directory, std::shared_ptr<SpillKeys> keys, std::uint32_t seal_epoch,
           std::size_t count_max)
      : file_(directory / "KEYS"), keys_(std::move(keys)), seal_epoch_(seal_epoch), count_max_(count_max) {}
  std::shared_ptr<const Key> draw(const NamespaceId& space, DiskKey first_key) const;
  WrappedKey wrap(const Key& key) const;
  error_code append(const Key& key);
  error_code rewrite(const std::vector<std::shared_ptr<const Key>>& left);
  template <class Gone>
  error_code destroy_if(Gone is_gone);

  const std::filesystem::path file_;
  const std::shared_ptr<SpillKeys> keys_;
  const std::uint32_t seal_epoch_;
  const std::size_t count_max_;
  std::mutex changing_;       ///< Held by whoever changes anything, and before mutex_.
  mutable std::mutex mutex_;  ///< Of by_number_, which only its owner and changing_'s together change.
  std::map<std::uint64_t, std::shared_ptr<const Key>> by_number_;  ///< All, with the directory's own.
  std::map<NamespaceId, std::shared_ptr<const Key>> for_writing_;  ///< Of this start.
  std::shared_ptr<const Key> own_;
  std::string wrapped_by_;  ///< All of them; empty: by several.
  File append_to_;          ///< file_, once it was written anew.
  bool is_whole_ = false;   ///< The file holds exactly the keys. Otherwise it is written anew before one is added.
};

/// The value of a sealed block: see spill_format.h. Nonce: the block's DiskKey, see DataKeys, 1. Associated: the
/// namespace, the data key's number, the DiskKey and the length, so that a value under another key, in another
/// namespace or of another length is not opened. What binds the bytes to the block's hash are the checksums inside,
/// which the reader compares with the name.
void seal_block(const DataKeys::Key& data_key, DiskKey key, std::string_view checksums,
                std::span<const std::byte> bytes, std::string& value);
struct OpenedValue {
  std::unique_ptr<std::byte[]> text;  ///< Checksums, then bytes.
  std::size_t size = 0;
};
/// Errors: kNotFound if the data key is gone, kCorruptBlock if the value is not what was sealed.
Result<OpenedValue> open_block(const DataKeys& keys, DiskKey key, std::string_view value);

}  // namespace kv
