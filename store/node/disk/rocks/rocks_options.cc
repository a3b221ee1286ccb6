#include "store/node/disk/rocks/rocks_options.h"

#include <rocksdb/env.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <string_view>

#include "base/assert.h"
#include "store/node/disk/rocks/purge_filter.h"
#include "store/node/disk/rocks/write_behind.h"

namespace kv {
namespace {

/// RocksDB's own log goes into ours. Its log file would be on the very disk that may be full, and Debian's library has
/// assertions on: the line after one that failed to be written ends the process.
class Log final : public rocksdb::Logger {
 public:
  Log() : rocksdb::Logger(rocksdb::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, std::va_list arguments) override { Logv(rocksdb::INFO_LEVEL, format, arguments); }
  void Logv(rocksdb::InfoLogLevel level, const char* format, std::va_list arguments) override {
    if (level < GetInfoLogLevel()) return;
    char text[1000];
    std::vsnprintf(text, sizeof text, format, arguments);
    std::string_view line(text);
    while (line.ends_with('\n') || line.ends_with(' ')) line.remove_suffix(1);
    // RocksDB logs stalls and failed jobs as warnings. The ones that matter come back as the status of a call.
    spdlog::log(level >= rocksdb::ERROR_LEVEL ? spdlog::level::warn : spdlog::level::debug, "rocksdb: {}", line);
  }
};

/// A damaged byte costs its whole data block. A value larger than that, as most cache blocks are, has one of its own.
rocksdb::BlockBasedTableOptions table_options(std::size_t data_block_bytes) {
  rocksdb::BlockBasedTableOptions table;
  // By far the cheapest as Debian builds the library. Blocks of 2 MiB cost 0.52 s of processor time for each GB written
  // and 0.24 s for each GB read; with XXH3 0.68 s and 0.43 s; CRC32C is computed in software, at 1.4 GB/s.
  table.checksum = rocksdb::kxxHash64;
  table.block_size = data_block_bytes;
  table.no_block_cache = true;  // hot blocks are in the arena; cached here they would take memory twice
  table.format_version = 5;
  table.index_block_restart_interval = 16;
  return table;
}

rocksdb::ColumnFamilyOptions small_family(std::size_t data_block_bytes) {
  rocksdb::ColumnFamilyOptions family;
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = 16 << 20;
  family.ttl = 0;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table_options(data_block_bytes)));
  return family;
}

rocksdb::ColumnFamilyOptions block_family(const RocksDiskConfig& config) {
  constexpr int kNever = std::numeric_limits<int>::max() / 2;
  rocksdb::ColumnFamilyOptions family;
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = config.memtable_bytes;
  family.max_write_buffer_number = config.memtable_count;
  // Keys only grow, so files never overlap, and a "compaction" from level 0 to 1 only renames them. It is needed, since
  // files can be dropped by range from level 1 on only. All other triggers of compactions are off.
  family.num_levels = 2;
  family.level_compaction_dynamic_level_bytes = false;
  family.level0_file_num_compaction_trigger = 1;
  family.level0_slowdown_writes_trigger = kNever;
  family.level0_stop_writes_trigger = kNever;
  family.soft_pending_compaction_bytes_limit = 0;
  family.hard_pending_compaction_bytes_limit = 0;
  family.max_bytes_for_level_base = std::uint64_t{1} << 62;
  family.target_file_size_base = std::uint64_t{1} << 40;
  family.ttl = 0;  // RocksDB's default rewrites every file after 30 days
  family.periodic_compaction_seconds = 0;
  family.compaction_filter_factory = config.purge_filter;
  // 16 KiB: small blocks share an index entry, which costs memory; reading 16 KiB takes hardly longer than reading 4.
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table_options(16 << 10)));
  return family;
}

/// Every file stays open if descriptors allow: opening a file for one read costs three more reads.
int open_files_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 500'000) return -1;
  return static_cast<int>(std::max<rlim_t>(limit.rlim_cur / 2, 64));
}

/// Never destroyed: every database needs it to its end, and some end with the process.
rocksdb::Env* write_behind_env() {
  static rocksdb::Env* const env = rocksdb::NewCompositeEnv(write_behind(rocksdb::FileSystem::Default())).release();
  return env;
}

}  // namespace

rocksdb::DBOptions database_options(bool direct_io) {
  rocksdb::DBOptions options;
  options.create_missing_column_families = true;
  options.atomic_flush = true;  // RocksDisk, 1
  options.use_direct_reads = direct_io;
  options.use_direct_io_for_flush_and_compaction = direct_io;
  if (direct_io) options.env = write_behind_env();
  options.writable_file_max_buffer_size = 64 << 10;  // larger writes go to the file without another copy
  options.max_open_files = open_files_max();
  options.skip_stats_update_on_db_open = true;
  // One at a time, since two can wait for each other for ever. If the first of two atomic flushes meets a full disk,
  // RocksDB 7.8 makes the second wait until the first is repeated, and the repetition wait until the second is over.
  options.max_background_flushes = 1;
  options.max_background_compactions = 1;
  // Flushes run in the background, so serving goes first. The pools are the process's, but only RocksDB uses them.
  for (const auto pool : {rocksdb::Env::Priority::HIGH, rocksdb::Env::Priority::LOW})
    options.env->LowerThreadPoolCPUPriority(pool, rocksdb::CpuPriority::kLow);
  options.avoid_flush_during_shutdown = true;  // a stuck disk must not delay the end; flush() is explicit
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = std::make_shared<Log>();
  options.statistics = rocksdb::CreateDBStatistics();
  options.statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  return options;
}

std::vector<rocksdb::ColumnFamilyDescriptor> column_families(const RocksDiskConfig& config) {
  KV_ASSERT(config.memtable_count >= 2);  // with one, writes would wait for every flush
  return {{rocksdb::kDefaultColumnFamilyName, small_family(4 << 10)},
          {kStateFamily, small_family(64)},
          {kRecordsFamily, small_family(32 << 10)},
          {kBlocksFamily, block_family(config)}};
}

error_code to_error(const rocksdb::Status& status) {
  if (status.ok()) return {};
  if (status.IsNoSpace()) return {ENOSPC, boost::system::generic_category()};
  if (status.IsCorruption() || status.IsPathNotFound()) return make_error_code(Errc::kCorruptBlock);
  return make_error_code(Errc::kDiskFailed);
}

}  // namespace kv
