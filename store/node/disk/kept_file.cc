#include "store/node/disk/kept_file.h"

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
#include "base/printable.h"
#include "store/node/disk/file.h"
#include "store/node/disk/sealing.h"
#include "store/node/disk/spill_directory.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSealedMagic("KVSF\1\0\0\0", 8);
constexpr std::size_t kIdEnd = kSealedMagic.size() + SpillKeys::kIdBytesMax, kHeadBytes = kIdEnd + kSealNonceBytes;

Failure failure(const std::string& text) { return {Errc::kBadRequest, text}; }
fs::path aside(const fs::path& file) { return file.string() + ".damaged"; }

error_code remove_file(const fs::path& file) {
  return ::unlink(file.c_str()) == 0 || errno == ENOENT ? error_code() : last_errno();
}

}  // namespace

std::string seal_file(const SpillKeys::Key& key, std::string_view text) {
  KV_ASSERT(key.id.size() <= SpillKeys::kIdBytesMax);
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

Result<std::string, Failure> open_sealed_file(const std::vector<SpillKeys::Key>& keys, std::string_view bytes) {
  if (!bytes.starts_with(kSealedMagic.substr(0, 4))) return std::string(bytes);
  if (!bytes.starts_with(kSealedMagic)) return failure("sealed in another format than 1");
  if (bytes.size() < kHeadBytes + kSealTagBytes) return failure("sealed, and cut off");
  std::string_view id = bytes.substr(kSealedMagic.size(), SpillKeys::kIdBytesMax);
  id = id.substr(0, id.find('\0'));
  const auto key = std::ranges::find(keys, id, [](const SpillKeys::Key& each) { return std::string_view(each.id); });
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

KeptFile::KeptFile(std::vector<fs::path> directories, std::string name, std::size_t bytes_max,
                   std::shared_ptr<SpillKeys> keys)
    : files_([&] {
        for (fs::path& each : directories) each /= name;
        return std::move(directories);
      }()),
      bytes_max_(bytes_max),
      keys_(std::move(keys)) {
  KV_ASSERT(!files_.empty());
}

Result<std::string, Failure> KeptFile::read_one(const fs::path& path) const {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!file.is_open())
    return errno == ENOENT ? Result<std::string, Failure>(std::string())
                           : failure(path.string() + ": " + last_errno().message());
  struct stat status {};
  if (::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return failure(path.string() + ": is no file");
  if (static_cast<std::uint64_t>(status.st_size) > bytes_max_)
    return failure(path.string() + ": " + std::to_string(status.st_size) + " bytes, at most " +
                   std::to_string(bytes_max_));
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
  auto text = open_sealed_file(keys_ ? keys_->keys() : std::vector<SpillKeys::Key>(), bytes);
  if (!text) return failure(path.string() + ": " + text.error().text);
  return text;
}

std::vector<KeptFile::Found> KeptFile::read() const {
  const std::lock_guard lock(mutex_);
  std::vector<Found> all;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    auto one = read_one(files_[i]);
    if (!one || !one->empty()) all.push_back({i, std::move(one)});
  }
  return all;
}

error_code KeptFile::write_first(const std::string& text) const {
  return replace_file(files_.front(), keys_ ? seal_file(keys_->keys().front(), text) : text);
}

error_code KeptFile::write(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (const error_code error = write_first(text)) return error;
  for (std::size_t i = 1; i < files_.size(); ++i) {
    // An older one would be believed if this directory were lost. The next write tries again.
    if (const error_code error = remove_file(files_[i])) return error;
  }
  return {};
}

void KeptFile::set_aside(std::size_t directory) {
  const std::lock_guard lock(mutex_);
  const fs::path& file = files_[directory];
  if (::rename(file.c_str(), aside(file).c_str()) == 0)
    spdlog::warn("{}: kept as {}", file.string(), aside(file).string());
}

error_code KeptFile::forget_aside() {
  const std::lock_guard lock(mutex_);
  for (const fs::path& file : files_) {
    if (const error_code error = remove_file(aside(file))) return error;
  }
  return {};
}

error_code KeptFile::rewrap() {
  const std::lock_guard lock(mutex_);
  const auto text = read_one(files_.front());
  if (!text || text->empty()) return {};  // nothing that the older keys could still open
  return write_first(*text);
}

}  // namespace kv
