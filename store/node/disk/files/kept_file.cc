#include "store/node/disk/files/kept_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/files/sealing.h"
#include "store/node/machine/file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSealedMagic("KVSF\1\0\0\0", 8);
constexpr std::size_t kIdEnd = kSealedMagic.size() + OperatorKeys::kIdBytesMax, kHeadBytes = kIdEnd + kSealNonceBytes;

Failure failure(const std::string& text) { return {Errc::kBadRequest, text}; }
fs::path aside(const fs::path& file) { return file.string() + ".damaged"; }

error_code remove_file(const fs::path& file) {
  return ::unlink(file.c_str()) == 0 || errno == ENOENT ? error_code() : last_errno();
}

}  // namespace

std::string seal_file(const OperatorKeys::Key& key, std::string_view text) {
  KV_ASSERT(key.id.size() <= OperatorKeys::kIdBytesMax);
  const SealNonce nonce = random_nonce();
  std::string bytes(kSealedMagic);
  bytes += key.id;
  bytes.resize(kIdEnd, '\0');
  const std::string associated = bytes;
  bytes.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  bytes.resize(kHeadBytes + text.size() + kSealTagBytes);
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  seal(key.bytes, nonce, associated, {&part, 1}, std::as_writable_bytes(std::span(bytes)).subspan(kHeadBytes));
  return bytes;
}

Result<std::string, Failure> open_sealed_file(const std::vector<OperatorKeys::Key>& keys, std::string_view bytes) {
  if (!bytes.starts_with(kSealedMagic.substr(0, 4))) return std::string(bytes);
  if (!bytes.starts_with(kSealedMagic)) return failure("sealed in another format than 1");
  if (bytes.size() < kHeadBytes + kSealTagBytes) return failure("sealed, and cut off");
  std::string_view id = bytes.substr(kSealedMagic.size(), OperatorKeys::kIdBytesMax);
  id = id.substr(0, id.find('\0'));
  const auto key = std::ranges::find(keys, id, [](const OperatorKeys::Key& each) { return std::string_view(each.id); });
  if (key == keys.end()) return failure("sealed with key '" + printable(id) + "', which was not given");
  SealNonce nonce;
  std::memcpy(nonce.data(), bytes.data() + kIdEnd, nonce.size());
  const std::string_view sealed = bytes.substr(kHeadBytes);
  std::string text(sealed.size() - kSealTagBytes, '\0');
  if (!unseal(key->bytes, nonce, bytes.substr(0, kIdEnd), std::as_bytes(std::span(sealed)),
              std::as_writable_bytes(std::span(text))))
    return failure("damaged, or sealed with another key '" + printable(id) + "'");
  return text;
}

KeptFile::KeptFile(const std::vector<std::string>& directories, std::string name, std::size_t bytes_max,
                   std::shared_ptr<OperatorKeys> keys)
    : name_(std::move(name)), bytes_max_(bytes_max), keys_(std::move(keys)) {
  move_to(directories);
}

void KeptFile::move_to(const std::vector<std::string>& directories) {
  KV_ASSERT(!directories.empty());
  const std::lock_guard lock(places_mutex_);
  places_.is_in_use.assign(places_.files.size(), false);
  const auto place_of = [this](const std::string& directory) {
    const auto place = std::ranges::find(places_.files, fs::path(directory) / name_);
    return static_cast<std::size_t>(place - places_.files.begin());
  };
  for (const std::string& directory : directories) {
    const std::size_t place = place_of(directory);
    if (place == places_.files.size()) {
      places_.files.push_back(fs::path(directory) / name_);
      places_.is_in_use.push_back(true);
    }
    places_.is_in_use[place] = true;
  }
  places_.first = place_of(directories.front());
}

KeptFile::Places KeptFile::places() const {
  const std::lock_guard lock(places_mutex_);
  return places_;
}

Result<std::string, Failure> KeptFile::read_one(const fs::path& path) const {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!file.is_open())
    return errno == ENOENT ? Result<std::string, Failure>(std::string())
                           : failure(path.string() + ": " + last_errno().message());
  struct stat status {};
  if (::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return failure(path.string() + ": is no file");
  if (static_cast<std::uint64_t>(status.st_size) > bytes_max_)
    return failure(fmt::format("{}: {} bytes, at most {}", path.string(), status.st_size, bytes_max_));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.number(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failure(path.string() + ": " + last_errno().message());
    if (count == 0) break;
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
  auto text = open_sealed_file(keys_ ? keys_->keys() : std::vector<OperatorKeys::Key>(), bytes);
  if (!text) return failure(path.string() + ": " + text.error().text);
  return text;
}

std::vector<KeptFile::Found> KeptFile::read() const {
  const std::lock_guard lock(mutex_);
  std::vector<Found> all;
  const std::vector<fs::path> files = places().files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    auto one = read_one(files[i]);
    if (!one || !one->empty()) all.push_back({i, std::move(one)});
  }
  return all;
}

error_code KeptFile::write_to(const fs::path& file, const std::string& text) const {
  return replace_file(file, keys_ ? seal_file(keys_->keys().front(), text) : text);
}

error_code KeptFile::write(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const Places now = places();
  if (const error_code error = write_to(now.files[now.first], text)) return error;
  for (std::size_t i = 0; i < now.files.size(); ++i) {
    if (i == now.first) continue;
    // An older copy would be trusted if this directory were lost, so the next write tries again. A directory that is
    // out of use may have been removed from the machine.
    const error_code error = remove_file(now.files[i]);
    if (error && now.is_in_use[i]) return error;
  }
  return {};
}

void KeptFile::set_aside(std::size_t directory) {
  const std::lock_guard lock(mutex_);
  const fs::path file = places().files[directory];
  if (::rename(file.c_str(), aside(file).c_str()) == 0)
    spdlog::warn("{}: kept as {}", file.string(), aside(file).string());
}

error_code KeptFile::forget_aside() {
  const std::lock_guard lock(mutex_);
  const Places now = places();
  for (std::size_t i = 0; i < now.files.size(); ++i) {
    const error_code error = remove_file(aside(now.files[i]));
    if (error && now.is_in_use[i]) return error;
  }
  return {};
}

error_code KeptFile::rewrap() {
  const std::lock_guard lock(mutex_);
  const Places now = places();
  const auto text = read_one(now.files[now.first]);
  if (!text || text->empty()) return {};  // no text for older keys to open
  return write_to(now.files[now.first], *text);
}

}  // namespace kv
