#include "transport/tls/tls_source.h"

#include <utility>

namespace kv {

Result<std::shared_ptr<TlsSource>, Failure> TlsSource::open(const TlsConfig& config, TlsSide side) {
  const std::shared_ptr<TlsSource> source(new TlsSource(config, side));
  if (Failure failed = source->read(source->look()); failed.code) return failed;
  source->stats_ = {};
  return source;
}

std::shared_ptr<const TlsCredentials> TlsSource::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

TlsSource::Files TlsSource::look() const {
  Files files;
  for (const std::string* path : {&config_.cert_file, &config_.key_file, &config_.ca_file, &config_.crl_file})
    files.push_back(FileStamp::of(*path));
  return files;
}

/// `seen` was taken before the files are read, so a change in between is detected later.
Failure TlsSource::read(Files seen) {
  auto made = TlsCredentials::read(config_, side_);
  const std::lock_guard lock(mutex_);
  files_ = std::move(seen);
  stats_.last_failed = !made;
  if (!made) {
    ++stats_.failures;
    return made.error();
  }
  ++stats_.reloads;
  current_ = std::move(*made);
  return {};
}

Failure TlsSource::reload() {
  const std::lock_guard lock(reading_);
  return read(look());
}

std::optional<Failure> TlsSource::reload_if_changed() {
  const std::lock_guard lock(reading_);
  Files now = look();
  {
    const std::lock_guard state(mutex_);
    if (now == files_) return std::nullopt;
  }
  return read(std::move(now));
}

TlsSource::Stats TlsSource::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace kv
