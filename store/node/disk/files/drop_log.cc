#include "store/node/disk/files/drop_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "base/assert.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/files/disk_format.h"

namespace kv {
namespace {

/// Writes all bytes, or returns an error.
error_code write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? last_errno() : error_code(ENOSPC, boost::system::generic_category());
    KV_ASSERT(static_cast<std::size_t>(written) <= bytes.size());
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

std::string encode(std::span<const DiskDrop> drops) {
  std::string text;
  text.reserve(drops.size() * kDropBytes);
  for (const DiskDrop& drop : drops) text += encode_drop(drop);
  KV_ASSERT(text.size() == drops.size() * kDropBytes);  // a reader finds entries by position
  return text;
}

}  // namespace

DropLog::DropLog(const std::filesystem::path& directory) : file_(directory / "DROPS") {
  std::ifstream in(file_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.size() < kDropsHeader.size()) return;
  std::size_t damaged_count = 0;
  // Drops behind a damaged header are still read: each has a checksum of its own.
  for (std::size_t at = kDropsHeader.size(); at + kDropBytes <= text.size(); at += kDropBytes) {
    if (const auto drop = decode_drop(std::string_view(text).substr(at, kDropBytes)))
      drops_.push_back(*drop);
    else
      ++damaged_count;
  }
  if (damaged_count > 0) spdlog::warn("disk: {}: {} damaged entries were skipped", file_.string(), damaged_count);
}

std::vector<DiskDrop> DropLog::drops() const {
  const std::lock_guard lock(mutex_);
  return drops_;
}

error_code DropLog::add(std::span<const DiskDrop> drops) {
  if (drops.empty()) return {};
  const std::lock_guard lock(mutex_);
  drops_.insert(drops_.end(), drops.begin(), drops.end());
  if (drops_.size() > kDropLogCountMax) {
    shorten();
    is_whole_ = false;
  }
  KV_ASSERT(drops_.size() <= kDropLogCountMax);
  return is_whole_ ? append(drops) : rewrite();
}

/// Down to half of the maximum at once: shortening by one drop at a time would rewrite the whole log, 16 MiB, for each
/// further drop. A cache may lose more than was dropped, but must not bring any dropped block back; and a client that
/// drops hundreds of thousands of names, perhaps invented ones, pays for that alone.
void DropLog::shorten() {
  constexpr std::size_t kKept = kDropLogCountMax / 2;
  std::map<NamespaceId, std::vector<const DiskDrop*>> by_space;
  for (const DiskDrop& drop : drops_) by_space[drop.space].push_back(&drop);
  std::vector<std::pair<std::size_t, NamespaceId>> most;
  for (const auto& [space, of_space] : by_space) most.emplace_back(of_space.size(), space);
  std::ranges::sort(most, std::greater<>());
  std::map<NamespaceId, DiskDrop> whole;
  std::size_t left = drops_.size();
  for (const auto& [count, space] : most) {
    if (left <= kKept || count < 2) break;
    DiskDrop all{.space = space, .hash = BlockHash{}};
    for (const DiskDrop* const drop : by_space[space]) all.before = std::max(all.before, drop->before);
    whole.emplace(space, all);
    left -= count - 1;
  }
  std::erase_if(drops_, [&](const DiskDrop& drop) { return whole.contains(drop.space); });
  for (const auto& [space, drop] : whole) drops_.push_back(drop);
  spdlog::warn("disk: {}: full; the drops of {} namespaces became one each, and a restart finds nothing older there",
               file_.string(), whole.size());
  if (drops_.size() <= kKept) return;
  const std::size_t surplus = drops_.size() - kKept;
  spdlog::warn("disk: {}: full; {} drops are forgotten, and a restart may bring back what they dropped", file_.string(),
               surplus);
  drops_.erase(drops_.begin(), drops_.begin() + static_cast<std::ptrdiff_t>(surplus));
}

/// After an error the content is unknown: the kernel marks unsynced pages as clean. The next call rewrites the file.
error_code DropLog::append(std::span<const DiskDrop> drops) {
  KV_ASSERT(append_to_.is_open());
  error_code error = write_all(append_to_.number(), encode(drops));
  if (!error && ::fdatasync(append_to_.number()) != 0) error = last_errno();
  is_whole_ = !error;
  return error;
}

/// Replaces the whole file, so a crash leaves the old log or the new one. is_whole_ is false in between: after a
/// failure the next call must not append to a file that lacks a drop.
error_code DropLog::rewrite() {
  is_whole_ = false;
  append_to_.close();  // it would append to the replaced file
  if (const error_code error = replace_file(file_, std::string(kDropsHeader) + encode(drops_))) return error;
  append_to_ = File(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  is_whole_ = append_to_.is_open();
  return {};  // durable in any case: a file that fails to reopen is rewritten with the next drop
}

error_code DropLog::forget(DiskKey before) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::erase_if(drops_, [before](const DiskDrop& drop) { return drop.before <= before; });
  return count > 0 ? rewrite() : error_code();
}

}  // namespace kv
