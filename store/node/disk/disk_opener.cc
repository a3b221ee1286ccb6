#include "store/node/disk/disk_opener.h"

#include <rocksdb/env.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/assert.h"
#include "store/node/disk/rocks_disk.h"
#include "store/node/disk/striped_disk.h"

namespace kv {
namespace {

/// Opens one directory, on a thread of its own. An exception must not leave the thread: it would end a node that could
/// serve from memory.
Result<std::unique_ptr<RocksDisk>, Failure> open_one(const std::string& path, const std::shared_ptr<SpillKeys>& keys,
                                                     const std::function<void()>& accepted) {
  const auto began = std::chrono::steady_clock::now();
  DiskOpening opening;
  auto disk = [&]() -> Result<std::unique_ptr<RocksDisk>, Failure> {
    try {
      return RocksDisk::open({.path = path, .keys = keys}, &opening, accepted);
    } catch (const std::exception& error) {
      // Thrown by a library below. The directory cannot be used, but the node can serve without it.
      return Failure(Errc::kDiskFailed, path + ": cannot be opened: " + error.what());
    }
  }();
  KV_ASSERT(!disk || *disk != nullptr);
  if (!disk) return disk;
  spdlog::info("spill: {} is open after {} ms, epoch={}{}", path,
               std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began).count(),
               (*disk)->epoch(), opening.text.empty() ? "" : ", " + opening.text);
  return disk;
}

/// Gives each disk a place of its own, and all of them the same epoch: keys grow over all of them together.
Result<std::unique_ptr<Disk>, Failure> stripe(std::vector<std::unique_ptr<RocksDisk>> disks,
                                              const std::vector<std::string>& paths, Clock& clock, Duration patience) {
  // The highest epoch of all: one directory may have been left out of earlier starts, and keys of this start must be
  // above those of every directory.
  std::uint32_t epoch = 0;
  std::vector<std::optional<DiskPlace>> places;
  for (const auto& disk : disks) {
    epoch = std::max(epoch, disk->epoch());
    // A directory that was used alone has keys of place 0, though no place is on record.
    places.push_back(disk->recorded_place() || disk->is_new() ? disk->recorded_place() : DiskPlace{0});
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    // Two with one place would answer for each other's keys.
    const auto same = std::find(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(i), places[i]);
    if (!places[i] || same == places.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    return Failure(Errc::kMismatch, paths[i] + ": is directory " + std::to_string(*places[i]) +
                                        " of several, and so is " +
                                        paths[static_cast<std::size_t>(same - places.begin())] +
                                        ": they were used by two nodes, or each alone. Leave one out, or empty it");
  }
  // Recorded places are known by now, so new directories get those that are free. A place is written down before the
  // first block: the place is a part of every key.
  std::vector<StripedDisk::Part> parts;
  for (std::size_t i = 0; i < disks.size(); ++i) {
    for (DiskPlace free = 0; !places[i]; ++free) {
      if (std::ranges::find(places, std::optional(free)) == places.end()) places[i] = free;
    }
    if (const error_code error = disks[i]->join(*places[i], epoch)) {
      return Failure(error, paths[i] + ": its place among the directories cannot be written: " + error.message());
    }
    KV_ASSERT(disks[i]->epoch() == epoch);
    parts.push_back({*places[i], paths[i], std::move(disks[i])});
  }
  return std::unique_ptr<Disk>(
      std::make_unique<StripedDisk>(std::move(parts), clock, StripedDiskConfig{.patience = patience}));
}

Result<std::unique_ptr<Disk>, Failure> open_all(const std::vector<std::string>& paths, Clock& clock, Duration patience,
                                                const std::shared_ptr<SpillKeys>& keys,
                                                const std::function<void()>& accepted) {
  KV_ASSERT(!paths.empty() && paths.size() <= kPlaceCount && accepted);
  // Several directories are accepted together, once it is clear that they belong together.
  const std::function<void()> accept_one = paths.size() == 1 ? accepted : [] {};
  // One flush thread for each database, so that each writes out at its own pace. The pool belongs to the process, and
  // has one thread by default.
  rocksdb::Env::Default()->SetBackgroundThreads(static_cast<int>(paths.size()), rocksdb::Env::Priority::HIGH);
  // At the same time: a repair of one reads every file of it, and the others need not wait to begin.
  std::vector<std::future<Result<std::unique_ptr<RocksDisk>, Failure>>> opening;
  for (const std::string& path : paths)
    opening.push_back(
        std::async(std::launch::async, [&accept_one, &path, &keys] { return open_one(path, keys, accept_one); }));
  std::vector<std::unique_ptr<RocksDisk>> disks;
  std::optional<Failure> first;
  for (auto& each : opening) {
    auto opened = each.get();
    if (!opened && !first) first = opened.error();
    if (opened) disks.push_back(std::move(*opened));
  }
  if (first) return *std::move(first);
  if (disks.size() == 1) return std::unique_ptr<Disk>(std::move(disks.front()));
  auto striped = stripe(std::move(disks), paths, clock, patience);
  if (striped) accepted();
  return striped;
}

}  // namespace

OpenDisk disk_opener(std::vector<std::string> paths, Clock& clock, Duration patience, std::shared_ptr<SpillKeys> keys) {
  return [paths = std::move(paths), &clock, patience, keys = std::move(keys)](const std::function<void()>& accepted) {
    return open_all(paths, clock, patience, keys, accepted);
  };
}

}  // namespace kv
