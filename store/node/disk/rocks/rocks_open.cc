#include "store/node/disk/rocks/rocks_open.h"

#include <rocksdb/convenience.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/assert.h"
#include "store/node/disk/files/disk_format.h"
#include "store/node/disk/rocks/rocks_scan.h"
#include "store/node/disk/rocks/table_footer.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using rocksdb::Status;

/// Errors of the place rather than the data, where giving up data would not help. RocksDB has the errno only as text.
bool is_of_the_place(const Status& status) {
  if (status.IsNoSpace() || status.IsMemoryLimit()) return true;
  if (!status.IsIOError()) return false;
  const std::string text = status.ToString();
  return std::ranges::any_of(std::initializer_list<int>{EACCES, EPERM, EROFS, EMFILE, ENFILE, ENOMEM, EDQUOT, ENOLCK},
                             [&](int number) { return text.ends_with(std::strerror(number)); });
}

/// Whether RocksDB may begin a database here. The names are those of files that hold data or lead to it; LOCK and the
/// like, left by an interrupted first start, do not count.
bool holds_nothing(const fs::path& database) {
  std::error_code error;
  for (const std::string& name : names_in(database, &error)) {
    if (name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST") || name == "CURRENT")
      return false;
  }
  return !error || error == std::errc::no_such_file_or_directory;  // a directory that cannot be read may hold data
}

struct Attempt {
  bool is_lenient = false;  ///< Opens past damage, for a salvage. Not for serving: it hides errors.
};

Status open_database(const DiskDirectory& directory, const RocksDiskConfig& config, bool direct_io, Attempt attempt,
                     RocksHandles& rocks) {
  rocksdb::DBOptions options = database_options(direct_io);
  auto families = column_families(config);
  // Only in an empty directory: without CURRENT RocksDB would start a new database and delete all files as unknown.
  options.create_if_missing = holds_nothing(directory.database());
  if (attempt.is_lenient) {
    options.paranoid_checks = false;
    for (auto& family : families) family.options.disable_auto_compactions = true;
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const std::string path = directory.database().string();
  std::error_code ignored;
  // RocksDB would create it too, but with an error in the log and with its own mode.
  if (!config.read_only && fs::create_directory(path, ignored)) fs::permissions(path, fs::perms::owner_all, ignored);
  const Status status = config.read_only ? rocksdb::DB::OpenForReadOnly(options, path, families, &handles, &db)
                                         : rocksdb::DB::Open(options, path, families, &handles, &db);
  if (!status.ok()) return status;
  KV_ASSERT(db != nullptr && handles.size() == families.size());
  // In the order of column_families().
  rocks.db.reset(db);
  rocks.fallback.reset(handles[0]);
  rocks.state.reset(handles[1]);
  rocks.records.reset(handles[2]);
  rocks.blocks.reset(handles[3]);
  rocks.statistics = options.statistics;
  return status;
}

/// Rewrites a small family without its damage, which a later compaction would meet, stopping all writes.
Status mend_family(RocksHandles& rocks, const RocksDiskConfig& config, std::size_t index, std::string* text) {
  KV_ASSERT(index == 1 || index == 2);  // in the order of column_families()
  auto& family = index == 1 ? rocks.state : rocks.records;
  std::vector<std::pair<std::string, std::string>> kept;
  const auto keep = [&](std::string_view key, std::string_view value) {
    kept.emplace_back(key, value);
    return true;
  };
  // First without keeping anything, so that an undamaged family of a million records is not copied.
  ScanResult scan = scan_backwards(*rocks.db, family.get(), [](std::string_view, std::string_view) { return true; });
  if (!scan.status.ok() || scan.damaged_places == 0) return scan.status;
  scan = scan_backwards(*rocks.db, family.get(), keep);
  if (!scan.status.ok()) return scan.status;
  const rocksdb::ColumnFamilyDescriptor descriptor = column_families(config)[index];
  *text += fmt::format("{}: {} damaged places ({}), {} entries kept. ", descriptor.name, scan.damaged_places,
                       scan.damage.ToString(), kept.size());
  Status status = rocks.db->DropColumnFamily(family.get());
  if (!status.ok()) return status;
  family.reset();
  rocksdb::ColumnFamilyHandle* made = nullptr;
  status = rocks.db->CreateColumnFamily(descriptor.options, descriptor.name, &made);
  if (!status.ok()) return status;
  family.reset(made);
  for (auto it = kept.rbegin(); it != kept.rend() && status.ok(); ++it) {
    rocksdb::WriteBatch batch;
    status = batch.Put(family.get(), it->first, it->second);
    if (status.ok()) status = rocks.write(batch, config.write_patience);
  }
  if (status.ok()) status = rocks.db->Flush(rocksdb::FlushOptions(), rocks.all());
  return status;
}

Status mend(RocksHandles& rocks, const RocksDiskConfig& config, std::string* text) {
  if (config.read_only) return {};
  Status status = mend_family(rocks, config, 1, text);
  if (status.ok()) status = mend_family(rocks, config, 2, text);
  return status;
}

/// CURRENT names the valid MANIFEST. Without a sound CURRENT the newest MANIFEST is used; there is rarely more than
/// one. Numbers in their names grow, so a longer name is a newer one.
void mend_current(const fs::path& database, std::string* text) {
  const std::string current = read_small_file(database / "CURRENT");
  std::error_code ignored;
  if (current.starts_with("MANIFEST-") && current.ends_with("\n") &&
      fs::is_regular_file(database / current.substr(0, current.size() - 1), ignored))
    return;
  std::string newest;
  for (const std::string& name : names_in(database)) {
    if (name.starts_with("MANIFEST-") &&
        (name.size() > newest.size() || (name.size() == newest.size() && name > newest)))
      newest = name;
  }
  if (newest.empty() || replace_file(database / "CURRENT", newest + "\n")) return;
  *text += "CURRENT was damaged or missing and names " + newest + " again. ";
}

/// Drops block files that are missing or whose index is unreadable: every start would fail with them.
Status drop_unreadable_files(RocksHandles& rocks, std::string* text) {
  for (const BlockFile& file : block_files(rocks)) {
    const DiskKeyText first = encode_key(file.first), last = encode_key(file.last);
    const rocksdb::Slice begin(first.data(), first.size()), end(last.data(), last.size());
    const rocksdb::Range range(begin, end);
    rocksdb::TablePropertiesCollection properties;
    // Properties lie beside the index, and reading them opens the file: a failure here means one for every block in it.
    const Status read = rocks.db->GetPropertiesOfTablesInRange(rocks.blocks.get(), &range, 1, &properties);
    if (read.ok()) continue;
    const Status status = rocksdb::DeleteFilesInRange(rocks.db.get(), rocks.blocks.get(), &begin, &end);
    if (!status.ok()) return status;
    *text += fmt::format("file {} of blocks dropped ({}). ", file.number, read.ToString());
  }
  return {};
}

/// Opens past the damage, removes unreadable data, and writes out the rest. The database is closed again at the end:
/// serving from a lenient one would hide the next error.
Status salvage(const DiskDirectory& directory, const RocksDiskConfig& config, bool direct_io, std::string* text) {
  mend_current(directory.database(), text);
  RocksHandles rocks;
  Status status = open_database(directory, config, direct_io, {.is_lenient = true}, rocks);
  if (status.ok()) status = drop_unreadable_files(rocks, text);
  if (status.ok()) status = mend(rocks, config, text);
  if (status.ok()) status = rocks.db->Flush(rocksdb::FlushOptions(), rocks.all());
  return status;
}

/// RocksDB's own last resort: it builds a new MANIFEST from the tables found, including any dropped but not yet
/// deleted. So old blocks may come back; a read still checks each against its name.
Status repair(const DiskDirectory& directory, const RocksDiskConfig& config, bool direct_io) {
  return rocksdb::RepairDB(directory.database().string(), database_options(direct_io), column_families(config));
}

/// Where RepairDB puts unused files, and where we put tables that RocksDB must not see.
fs::path lost_files(const DiskDirectory& directory) { return directory.database() / "lost"; }

/// Removes tables that would end the process (table_footer.h). Errors: the system's.
error_code take_out(const std::vector<fs::path>& tables, const DiskDirectory& directory, std::string* text) {
  std::error_code error;
  fs::create_directory(lost_files(directory), error);
  for (const fs::path& table : tables) {
    if (!error) fs::rename(table, lost_files(directory) / table.filename(), error);
    *text += table.filename().string() + " has a damaged end (footer or properties) and is taken out. ";
  }
  return {error.value(), boost::system::generic_category()};
}

void set_lost_files_aside(const DiskDirectory& directory, const RocksDiskConfig& config) {
  std::error_code ignored;
  if (config.read_only || !fs::exists(lost_files(directory), ignored)) return;
  if (const error_code error = directory.set_aside(lost_files(directory)))
    spdlog::warn("disk: {}: cannot be set aside: {}", lost_files(directory).string(), error.message());
}

/// kOn or kOff.
Result<DirectIo, Failure> choose_direct_io(const DiskDirectory& directory, const RocksDiskConfig& config) {
  if (config.direct_io == DirectIo::kOff) return DirectIo::kOff;
  if (config.read_only)
    return config.direct_io == DirectIo::kOn ? DirectIo::kOn : DirectIo::kOff;  // trying would write
  if (directory.allows_direct_io()) return DirectIo::kOn;
  if (config.direct_io == DirectIo::kOn) {
    return Failure(Errc::kDiskFailed,
                   config.path.string() +
                       ": the file system refuses direct I/O. Use another one (ext4, xfs), or allow the page cache");
  }
  spdlog::warn("disk: {}: the file system refuses direct I/O; blocks go through the page cache", config.path.string());
  return DirectIo::kOff;
}

}  // namespace

std::vector<BlockFile> block_files(const RocksHandles& rocks) {
  rocksdb::ColumnFamilyMetaData all;
  rocks.db->GetColumnFamilyMetaData(rocks.blocks.get(), &all);
  std::vector<BlockFile> files;
  for (const auto& level : all.levels) {
    for (const auto& file : level.files) {
      const auto first = decode_key(file.smallestkey), last = decode_key(file.largestkey);
      if (first && last) files.push_back({file.file_number, *first, *last, file.size, level.level});
    }
  }
  std::ranges::sort(files, {}, &BlockFile::first);
  return files;
}

void RocksHandles::close() {
  // RocksDB asserts that handles go before their database.
  for (auto* handle : {&fallback, &state, &records, &blocks}) handle->reset();
  db.reset();
}

/// Waits here rather than in RocksDB: a write held up there cannot be abandoned, so the writer's thread would hang.
Status RocksHandles::write(rocksdb::WriteBatch& batch, std::chrono::milliseconds patience) const {
  rocksdb::WriteOptions options;
  KV_ASSERT(db != nullptr);
  options.disableWAL = true;   // RocksDisk, 4
  options.no_slowdown = true;  // instead of waiting, it returns "incomplete" without writing
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (;;) {
    Status status = db->Write(options, &batch);
    if (!status.IsIncomplete()) return status;
    if (std::chrono::steady_clock::now() >= give_up)
      return Status::TimedOut("no room in memory, since the disk takes nothing", status.ToString());
    // Never reached while the disk keeps up. Throughput is unaffected: memtables are being flushed.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<RocksHandles, Failure> open_rocks(const DiskDirectory& directory, const RocksDiskConfig& config,
                                         DiskOpening* opening, Remedies remedies) {
  KV_ASSERT(opening != nullptr);
  const auto chosen = choose_direct_io(directory, config);
  if (!chosen) return chosen.error();
  const bool direct_io = *chosen == DirectIo::kOn;
  const std::string path = config.path.string();
  std::string trouble;  // for the operator
  // Before RocksDB sees the tables: a table with a damaged end ends the process instead of failing the call.
  DiskRecovery first_step = DiskRecovery::kNone;
  if (const auto damaged = tables_with_damaged_end(directory.database()); !damaged.empty()) {
    const bool may_take_out = !config.read_only && remedies == Remedies::kAllowed;
    const error_code error = may_take_out ? take_out(damaged, directory, &trouble) : Errc::kDiskFailed;
    if (error) {
      return Failure(
          error,
          fmt::format("{}: {} has a damaged end (footer or properties); {}", path, damaged.front().filename().string(),
                      may_take_out ? "it cannot be taken out: " + error.message() : "a start takes it out"));
    }
    first_step = DiskRecovery::kSalvaged;
  }
  // From the remedy with the least loss to the one that loses all, until RocksDB opens.
  for (const DiskRecovery step :
       {DiskRecovery::kNone, DiskRecovery::kSalvaged, DiskRecovery::kRepaired, DiskRecovery::kStartedEmpty}) {
    if (step < first_step) continue;
    // Each step continues from the changes of the one before.
    Status status;
    if (step == DiskRecovery::kSalvaged) {
      spdlog::warn("disk: {}: {}; salvaging what can be read", path, trouble);
      status = salvage(directory, config, direct_io, &trouble);
    } else if (step == DiskRecovery::kRepaired) {
      spdlog::warn("disk: {}: {}; repairing, which reads every file", path, trouble);
      status = repair(directory, config, direct_io);
    } else if (step == DiskRecovery::kStartedEmpty) {
      spdlog::error("disk: {}: {}; cannot be repaired: moved to {}/damaged-*, starting empty", path, trouble, path);
      if (const error_code error = directory.set_aside(directory.database()))
        return Failure(error, path + ": is damaged and cannot be moved aside: " + error.message());
    }
    RocksHandles rocks;
    std::string mended;
    if (status.ok()) status = open_database(directory, config, direct_io, {}, rocks);
    if (status.ok()) status = mend(rocks, config, &mended);
    if (status.ok()) {
      set_lost_files_aside(directory, config);
      trouble += mended;
      if (!mended.empty()) spdlog::warn("disk: {}: {}", path, mended);
      opening->recovery = step == DiskRecovery::kNone && !mended.empty() ? DiskRecovery::kSalvaged : step;
      opening->text = trouble;
      return rocks;
    }
    trouble += (trouble.empty() ? "" : "; ") + status.ToString() + ". ";
    // Giving up data does not help against a full or read-only disk, and a read-only tool must not.
    if (is_of_the_place(status) || config.read_only || remedies == Remedies::kNone) break;
  }
  return Failure(
      Errc::kDiskFailed,
      fmt::format("{}: cannot be opened: {}{}", path, trouble,
                  config.read_only ? "A node that starts on it will repair it"
                                   : "Check free space, owner and mode of the files, the mount and the device"));
}

}  // namespace kv
