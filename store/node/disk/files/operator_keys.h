// store/node/disk/files/operator_keys.h: the operator's keys, which wrap the keys of blocks on disk.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/secret/secret.h"

namespace kv {

/// A holder of keys that are wrapped by the operator's.
class KeyHolder {
 public:
  virtual ~KeyHolder() = default;
  virtual error_code rewrap() = 0;  ///< With the current key, durably; older operator's keys become unnecessary.
};

/// Where the operator's keys come from: one of the two, or neither.
struct OperatorKeySource {
  std::string file;     ///< --disk-key-file.
  std::string command;  ///< Prints the content of such a file, for example from a KMS or a TPM.

  bool is_given() const { return !file.empty() || !command.empty(); }
  /// For messages: "disk-key-file", "disk-key-command".
  const char* option() const { return command.empty() ? "disk-key-file" : "disk-key-command"; }
  /// For messages, behind "in": the file's name, or "the output of disk-key-command".
  std::string place() const;
};

/// The keys from --disk-key-file or --disk-key-command: a line is a key of 64 hexadecimal digits, or `ID KEY`. The
/// first key wraps; the others only open earlier wrappings. A key without an id gets one derived from its digits.
/// Thread safety: any. open() and reload() block for the file or the command (30 s at most); is_exposed() for the file.
class OperatorKeys {
 public:
  static constexpr std::size_t kCountMax = 16;
  static constexpr std::size_t kIdBytesMax = 24;
  struct Key {
    std::string id;
    Secret bytes;
  };

  /// Errors: those of read_secret_file, read_secret_command and parse; the text names the option, and the file.
  static Result<std::shared_ptr<OperatorKeys>, Failure> open(const OperatorKeySource& source);
  /// Errors: kBadRequest; the text names the line, and no part of a key. Ids: letters, digits, '.', '_', '-'.
  static Result<std::vector<Key>, Failure> parse(std::string_view text);
  static bool is_id(std::string_view text);

  std::vector<Key> keys() const;  ///< The current one first; never empty.
  std::string current_id() const;
  const OperatorKeySource& source() const { return source_; }

  /// Reads the keys again, and makes all holders rewrap. If the new keys are bad, the keys in use stay.
  Failure reload();
  bool is_exposed() const;  ///< There is a file, and other users may read it now.
  struct Stats {
    std::uint64_t reloads = 0;
    bool last_failed = false;
  };
  Stats stats() const { return {reloads_, last_failed_}; }
  void add(const std::shared_ptr<KeyHolder>& holder);  ///< For as long as it lives.

 private:
  OperatorKeys(OperatorKeySource source, std::vector<Key> keys) : source_(std::move(source)), keys_(std::move(keys)) {}

  const OperatorKeySource source_;
  mutable std::mutex mutex_;  ///< Guards the two members below; never held while a holder works.
  std::vector<Key> keys_;
  std::vector<std::weak_ptr<KeyHolder>> holders_;
  std::atomic<std::uint64_t> reloads_{0};
  std::atomic<bool> last_failed_{false};
};

}  // namespace kv
