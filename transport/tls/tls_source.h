// transport/tls/tls_source.h: the present certificates, read again when the files change.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "transport/tls/file_stamp.h"
#include "transport/tls/tls_credentials.h"

namespace kv {

/// New connections begin with the present certificates; existing ones keep theirs.
///   1. There is always a set of certificates that was good when it was read. A bad file changes nothing.
/// Thread safety: all calls from any thread. reload() blocks for the files.
class TlsSource {
 public:
  /// Errors: as TlsCredentials::read.
  static Result<std::shared_ptr<TlsSource>, Failure> open(const TlsConfig& config, TlsSide side);

  std::shared_ptr<const TlsCredentials> current() const;
  Failure reload();  ///< Without a code: done.
  /// Checks the files' dates and sizes; nullopt: unchanged. A bad change is tried again with the next change:
  /// certificate and key are seldom replaced in one moment.
  std::optional<Failure> reload_if_changed();

  struct Stats {
    std::uint64_t reloads = 0, failures = 0;
    bool last_failed = false;  ///< The credentials in use differ from the files.
  };
  Stats stats() const;

 private:
  using Files = std::vector<FileStamp>;

  TlsSource(TlsConfig config, TlsSide side) : config_(std::move(config)), side_(side) {}
  Files look() const;
  Failure read(Files seen);

  const TlsConfig config_;
  const TlsSide side_;
  std::mutex reading_;  ///< One reader at a time, so that an older reading does not replace a newer one.
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsCredentials> current_;
  Files files_;
  Stats stats_;
};

}  // namespace kv
