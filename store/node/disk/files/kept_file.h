// store/node/disk/files/kept_file.h: a small file beside a disk tier that is replaced as a whole, sealed if there are
// keys.
//
//     text                                                                       without keys
//     | KVSF | 1: 4 | id of the operator's key 24 | nonce 12 | sealed text | tag 16 |   with keys
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/node/disk/files/operator_keys.h"

namespace kv {

/// Lies in the first of the directories. Their order may change, and move_to() may replace them, so all directories are
/// read, and copies in the others are removed once the first has been written.
///   1. After a power cut the file has its old text or the new one.
///   2. With keys, all writes are sealed. Reads also accept plain text, and text sealed with an older key.
///   3. An unusable file is kept as NAME.damaged, one at most, until it is forgotten.
/// Sealed with the operator's key itself, since the file is small and rewritten when that key changes. The nonce is
/// random: a file is written some times a minute, which is far from 2^32 texts.
/// Thread safety: all from any thread; each but move_to() waits for the disk.
class KeptFile final : public KeyHolder {
 public:
  /// `keys`: nullptr for plain text.
  KeptFile(const std::vector<std::string>& directories, std::string name, std::size_t bytes_max,
           std::shared_ptr<OperatorKeys> keys);

  struct Found {
    std::size_t directory = 0;
    Result<std::string, Failure> text;  ///< Errors: kBadRequest, with a text.
  };
  std::vector<Found> read() const;  ///< For each directory that has a file.
  error_code write(const std::string& text);
  void move_to(const std::vector<std::string>& directories);  ///< From the next write on.
  void set_aside(std::size_t directory);
  error_code forget_aside();  ///< Removes the files set aside.
  error_code rewrap() override;

 private:
  struct Places {
    std::vector<std::filesystem::path> files;  ///< Append-only: an index stays valid.
    std::size_t first = 0;
    std::vector<bool> is_in_use;  ///< False for directories that move_to() dropped.
  };
  Places places() const;
  Result<std::string, Failure> read_one(const std::filesystem::path& file) const;
  error_code write_to(const std::filesystem::path& file, const std::string& text) const;

  const std::string name_;
  const std::size_t bytes_max_;
  const std::shared_ptr<OperatorKeys> keys_;
  mutable std::mutex places_mutex_;  ///< Guards places_; never held while waiting for the disk.
  Places places_;
  mutable std::mutex mutex_;  ///< Serializes disk access: a rewrap must not overwrite a newer text.
};

/// The bytes of a sealed file. Requires: a key id as in OperatorKeys.
std::string seal_file(const OperatorKeys::Key& key, std::string_view text);
/// Text that is not sealed is returned as it is. Errors: kBadRequest, with a text.
Result<std::string, Failure> open_sealed_file(const std::vector<OperatorKeys::Key>& keys, std::string_view bytes);

}  // namespace kv
