// store/node/disk/kept_file.h: a small file beside a disk tier that is replaced as a whole, sealed where there are
// keys.
//
//     what was written                                                                       without keys
//     | KVSF | 1: 4 | id of the operator's key 24 | nonce 12 | what was written, sealed | tag 16 |   with keys
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/node/disk/spill_keys.h"

namespace kv {

/// Lies in the first of the directories. Their order may change, and others may take their place (move_to), so all are
/// read, and what others have goes once the first has been written.
///   1. After a power cut the file is what it was, or what was written.
///   2. With keys nothing is written in plain text. One that is in plain text, or sealed with an older key, is read.
///   3. A file that cannot be used is kept as NAME.damaged, one at most, until it is forgotten.
/// Sealed with the operator's key itself, since the file is small and written anew when that changes. The nonce is
/// random: a file is written some times a minute, which is far from 2^32 texts.
/// Thread safety: all from any thread; each but move_to() waits for the disk.
class KeptFile final : public KeyHolder {
 public:
  /// `keys`: nullptr, in plain text.
  KeptFile(const std::vector<std::string>& directories, std::string name, std::size_t bytes_max,
           std::shared_ptr<SpillKeys> keys);

  struct Found {
    std::size_t directory = 0;
    Result<std::string, Failure> text;  ///< Errors: kBadRequest, with words.
  };
  std::vector<Found> read() const;  ///< Of each directory that has one.
  error_code write(const std::string& text);
  void move_to(const std::vector<std::string>& directories);  ///< From the next write on.
  void set_aside(std::size_t directory);
  error_code forget_aside();  ///< Whatever was set aside is gone.
  error_code rewrap() override;

 private:
  struct Places {
    std::vector<std::filesystem::path> files;  ///< Only more of them: what has a number keeps it.
    std::size_t first = 0;
    std::vector<bool> is_in_use;  ///< Others have been left.
  };
  Places places() const;
  Result<std::string, Failure> read_one(const std::filesystem::path& file) const;
  error_code write_to(const std::filesystem::path& file, const std::string& text) const;

  const std::string name_;
  const std::size_t bytes_max_;
  const std::shared_ptr<SpillKeys> keys_;
  mutable std::mutex places_mutex_;  ///< Of the next; never held while the disk is waited for.
  Places places_;
  mutable std::mutex mutex_;  ///< One after the other: what is wrapped anew must not overwrite what is newer.
};

/// As a file has it. Requires: an id as SpillKeys has them.
std::string seal_file(const SpillKeys::Key& key, std::string_view text);
/// Text that is not sealed is returned as it is. Errors: kBadRequest, with words.
Result<std::string, Failure> open_sealed_file(const std::vector<SpillKeys::Key>& keys, std::string_view bytes);

}  // namespace kv
