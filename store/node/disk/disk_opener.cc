#include "store/node/disk/disk_opener.h"

#include <rocksdb/env.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "store/node/disk/rocks/rocks_disk.h"
#include "store/node/disk/striped_disk.h"

namespace kv {
namespace {

/// A library's exception must not leave the thread: it would end a node that can still serve without this directory.
template <class Open>
auto safely(const std::string& path, Open open) -> decltype(open()) {
  try {
    return open();
  } catch (const std::exception& error) {
    return Failure(Errc::kDiskFailed, path + ": cannot be opened: " + error.what());
  }
}

/// Opens one directory on its own thread.
Result<std::unique_ptr<RocksDisk>, Failure> open_one(const std::string& path, const std::shared_ptr<OperatorKeys>& keys,
                                                     const std::function<void()>& accepted, std::uint32_t epoch = 0) {
  const auto began = std::chrono::steady_clock::now();
  DiskOpening opening;
  auto disk =
      safely(path, [&] { return RocksDisk::open({.path = path, .epoch = epoch, .keys = keys}, &opening, accepted); });
  KV_ASSERT(!disk || *disk != nullptr);
  if (!disk) return disk;
  spdlog::info("disk: {} is open after {} ms, epoch={}{}", path,
               std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began).count(),
               (*disk)->epoch(), opening.text.empty() ? "" : ", " + opening.text);
  return disk;
}

using Disks = std::vector<std::unique_ptr<RocksDisk>>;

/// Chooses a distinct place for each disk, besides those taken. A disk with blocks keeps its place, which is part of
/// their keys. An empty disk gets its former place back if that is free.
Result<std::vector<DiskPlace>, Failure> choose_places(const Disks& disks, const std::vector<std::string>& paths,
                                                      const std::vector<DiskPlace>& taken) {
  std::map<DiskPlace, std::string> owners;
  for (const DiskPlace place : taken) owners[place] = "one that is in use";
  std::vector<std::optional<DiskPlace>> places(disks.size());
  for (std::size_t i = 0; i < disks.size(); ++i) {
    if (disks[i]->is_new()) continue;
    // A directory that was used alone has keys of place 0, although its place was never recorded.
    places[i] = disks[i]->recorded_place().value_or(DiskPlace{0});
    // Two with one place would answer for each other's keys.
    const auto [owner, is_free] = owners.emplace(*places[i], paths[i]);
    if (is_free) continue;
    return Failure(Errc::kMismatch, fmt::format("{}: is directory {} of several, and so is {}: they were used by two "
                                                "nodes, or each alone. Leave one out, or empty it",
                                                paths[i], *places[i], owner->second));
  }
  for (std::size_t i = 0; i < disks.size(); ++i) {
    const auto recorded = disks[i]->recorded_place();
    if (!places[i] && recorded && owners.emplace(*recorded, paths[i]).second) places[i] = recorded;
  }
  std::vector<DiskPlace> chosen;
  for (std::size_t i = 0; i < disks.size(); ++i) {
    for (DiskPlace free = 0; !places[i]; ++free) {
      KV_ASSERT(free < kPlaceCount);
      if (owners.emplace(free, paths[i]).second) places[i] = free;
    }
    chosen.push_back(*places[i]);
  }
  return chosen;
}

/// Records each place before the first block.
Result<std::vector<StripedDisk::Part>, Failure> join_all(Disks disks, const std::vector<std::string>& paths,
                                                         const std::vector<DiskPlace>& places, std::uint32_t epoch) {
  std::vector<StripedDisk::Part> parts;
  for (std::size_t i = 0; i < disks.size(); ++i) {
    if (const error_code error = disks[i]->join(places[i], epoch))
      return Failure(error, paths[i] + ": its place among the directories cannot be written: " + error.message());
    KV_ASSERT(disks[i]->epoch() == epoch);
    parts.push_back({places[i], paths[i], std::move(disks[i])});
  }
  return parts;
}

/// Each on a thread of its own: repairing a directory reads all of its files, and the others need not wait.
Result<Disks, Failure> open_each(const std::vector<std::string>& paths, const std::shared_ptr<OperatorKeys>& keys,
                                 const std::function<void()>& accept_one, std::uint32_t epoch = 0) {
  std::vector<std::future<Result<std::unique_ptr<RocksDisk>, Failure>>> opening;
  for (const std::string& path : paths) {
    opening.push_back(std::async(
        std::launch::async, [&accept_one, &path, &keys, epoch] { return open_one(path, keys, accept_one, epoch); }));
  }
  Disks disks;
  std::optional<Failure> first;
  for (auto& each : opening) {
    auto opened = each.get();
    if (!opened && !first) first = opened.error();
    if (opened) disks.push_back(std::move(*opened));
  }
  if (first) return *std::move(first);
  return disks;
}

/// Opens and empties directories to be added: their blocks may have been dropped while they were out of use.
Result<std::vector<StripedDisk::Part>, Failure> open_more(const std::vector<std::string>& paths,
                                                          const std::shared_ptr<OperatorKeys>& keys,
                                                          std::uint32_t epoch, const std::vector<DiskPlace>& taken) {
  auto disks = open_each(
      paths, keys, [] {}, epoch);
  if (!disks) return disks.error();
  const auto places = choose_places(*disks, paths, taken);
  if (!places) return places.error();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    RocksDisk& disk = *(*disks)[i];
    if (!disk.is_new())
      spdlog::info("disk: {}: {} MiB of earlier blocks go: they may have been dropped since", paths[i],
                   disk.stats().file_bytes >> 20);
    if (const error_code error = disk.clear())
      return Failure(error, paths[i] + ": cannot be emptied: " + error.message());
  }
  const auto count = static_cast<int>(taken.size() + paths.size());
  rocksdb::Env::Default()->IncBackgroundThreadsIfNeeded(count, rocksdb::Env::Priority::HIGH);
  return join_all(std::move(*disks), paths, *places, epoch);
}

Result<std::unique_ptr<Disk>, Failure> open_all(const std::vector<std::string>& paths, Clock& clock, Duration patience,
                                                const std::shared_ptr<OperatorKeys>& keys,
                                                const std::function<void()>& accepted) {
  KV_ASSERT(!paths.empty() && paths.size() <= kPlaceCount && accepted);
  // Several directories are accepted together, once it is clear that they belong together.
  const std::function<void()> accept_one = paths.size() == 1 ? accepted : [] {};
  // One flush thread per database, so that each flushes at its own pace. The process's pool has one thread by default.
  rocksdb::Env::Default()->SetBackgroundThreads(static_cast<int>(paths.size()), rocksdb::Env::Priority::HIGH);
  auto disks = open_each(paths, keys, accept_one);
  if (!disks) return disks.error();
  // The highest epoch: a directory may have missed earlier starts, and new keys must be above those of every directory.
  std::uint32_t epoch = 0;
  for (const auto& disk : *disks) epoch = std::max(epoch, disk->epoch());
  std::vector<StripedDisk::Part> parts;
  if (disks->size() == 1) {  // unchanged: it may always have been alone, without a recorded place
    parts.push_back({disks->front()->places().front(), paths.front(), std::move(disks->front())});
  } else {
    const auto places = choose_places(*disks, paths, {});
    if (!places) return places.error();
    auto joined = join_all(std::move(*disks), paths, *places, epoch);
    if (!joined) return joined.error();
    parts = std::move(*joined);
    accepted();
  }
  return std::unique_ptr<Disk>(std::make_unique<StripedDisk>(
      std::move(parts), clock, StripedDiskConfig{.patience = patience},
      [keys](const std::vector<std::string>& names, std::uint32_t now, const std::vector<DiskPlace>& taken) {
        return safely(names.front(), [&] { return open_more(names, keys, now, taken); });
      }));
}

}  // namespace

OpenDisk disk_opener(std::vector<std::string> paths, Clock& clock, Duration patience,
                     std::shared_ptr<OperatorKeys> keys) {
  return [paths = std::move(paths), &clock, patience, keys = std::move(keys)](const std::function<void()>& accepted) {
    return open_all(paths, clock, patience, keys, accepted);
  };
}

}  // namespace kv
