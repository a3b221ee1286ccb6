#include "store/node/disk_worker/disk_tool.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "base/assert.h"
#include "base/checksum.h"
#include "index/namespace_record.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/disk_worker/disk_report.h"

namespace kv {
namespace {

constexpr const char* kAbout =
    R"(kvstore-node disk: looks at the disk directory of a node that does not run.

Examples:
  kvstore-node disk inspect /var/lib/kvstore/disk          what is in it
  kvstore-node disk verify /var/lib/kvstore/disk           reads every block and checks it against its name
  kvstore-node disk compact /var/lib/kvstore/disk          gives back files that hold nothing any more

With encrypted blocks each needs --key-file or --key-command, as the node has --disk-key-file or --disk-key-command.

inspect and verify change nothing. Exit status: 0 done, 1 it failed or damage was found, 2 the command line is wrong.)";

struct DiskToolOptions {
  std::string path;
  OperatorKeySource keys;
  bool json = false;
};

/// Opens the directory, or prints the reason for a failure to `err`.
std::unique_ptr<RocksDisk> open_disk(const DiskToolOptions& options, bool read_only, std::ostream& err) {
  RocksDiskConfig config{.path = options.path, .read_only = read_only};
  if (options.keys.is_given()) {
    auto keys = OperatorKeys::open(options.keys);
    if (!keys) {
      err << "kvstore-node disk: " << keys.error().text << "\n";
      return nullptr;
    }
    config.keys = std::move(*keys);
  }
  DiskOpening opening;
  auto disk = RocksDisk::open(config, &opening);
  if (!disk) {
    err << "kvstore-node disk: " << disk.error().text << "\n";
    return nullptr;
  }
  if (!opening.text.empty()) err << "kvstore-node disk: " << opening.text << "\n";
  return std::move(*disk);
}

/// Whether a key of `sorted` (ascending) lies in the file. A block is found by its record only: a file without a
/// recorded key is dead, whichever bytes it holds.
bool is_alive(const BlockFile& file, const std::vector<DiskKey>& sorted) {
  const auto at_or_after = std::ranges::lower_bound(sorted, file.first);
  return at_or_after != sorted.end() && *at_or_after <= file.last;
}

struct Contents {
  DiskReport report;
  std::vector<DiskRecord> records;  // oldest first, as they lie in the files
  std::vector<BlockFile> dead;
};

/// False if the records cannot be read; then `err` has the reason.
bool read_contents(const RocksDisk& disk, Contents& contents, std::ostream& err) {
  DiskReport& report = contents.report;
  const error_code error =
      disk.load([&](const NamespaceId& id, const std::string& record) { report.spaces[id].record = record; },
                [&](const DiskRecord& record) {
                  contents.records.push_back(record);
                  return true;
                });
  if (error) {
    err << "kvstore-node disk: the records cannot be read: " << error.message() << "\n";
    return false;
  }
  std::ranges::reverse(contents.records);
  std::vector<DiskKey> keys;
  keys.reserve(contents.records.size());
  for (const DiskRecord& record : contents.records) {
    NamespaceTotals& space = report.spaces[record.space];
    ++space.blocks;
    space.bytes += record.block_bytes;
    space.block_bytes = record.block_bytes;
    ++report.blocks;
    report.bytes += record.block_bytes;
    keys.push_back(record.key);
  }
  KV_ASSERT(std::ranges::is_sorted(keys));  // is_alive() searches by halving
  report.epoch = disk.epoch();
  report.stats = disk.stats();
  report.files = disk.block_files();
  for (const BlockFile& file : report.files) {
    if (is_alive(file, keys)) continue;
    ++report.dead_files;
    report.dead_file_bytes += file.bytes;
    contents.dead.push_back(file);
  }
  return true;
}

int inspect(const DiskToolOptions& options, std::ostream& out, std::ostream& err) {
  const auto disk = open_disk(options, /*read_only=*/true, err);
  Contents contents;
  if (!disk || !read_contents(*disk, contents, err)) return 1;
  print_report(options.path, contents.report, options.json, out);
  return 0;
}

/// A line every ten percent: readable in a log, and independent of a terminal.
class Progress {
 public:
  Progress(std::uint64_t total, std::ostream& err) : total_(total), err_(err) {}
  void add(std::uint64_t bytes) {
    done_ += bytes;
    const std::uint64_t percent = total_ == 0 ? 100 : 100 * done_ / total_;
    if (percent < next_percent_) return;
    err_ << "verify: " << percent << " % (" << size_words(done_) << " of " << size_words(total_) << ")\n" << std::flush;
    next_percent_ = percent - percent % 10 + 10;
  }

 private:
  std::uint64_t total_, done_ = 0, next_percent_ = 10;
  std::ostream& err_;
};

int verify(const DiskToolOptions& options, std::ostream& out, std::ostream& err) {
  const auto disk = open_disk(options, /*read_only=*/true, err);
  Contents contents;
  if (!disk || !read_contents(*disk, contents, err)) return 1;
  DiskVerification result;
  Progress progress(contents.report.bytes, err);
  const auto started = std::chrono::steady_clock::now();
  std::map<NamespaceId, NamespaceRecord> spaces;
  for (const auto& [id, space] : contents.report.spaces) {
    auto record = NamespaceRecord::parse(space.record);
    if (record && record->id() == id) spaces.emplace(id, *std::move(record));
  }
  for (const DiskRecord& record : contents.records) {
    const auto space = spaces.find(record.space);
    const std::uint64_t seed = space == spaces.end() ? checksum_seed(record.space, record.hash)
                                                     : space->second.checksum_seed(record.hash, record.block_bytes);
    // Oldest first, which is the order of the files: the disk is read from front to back.
    const auto block = disk->read(record.key);
    if (block.has_error() && block.error() == Errc::kNotFound) {
      ++result.dangling;
    } else if (!block) {
      result.damages.push_back({record, block.error().message()});
    } else if (block->bytes.size() != record.block_bytes) {
      result.damages.push_back({record, "it has another size than its record says"});
    } else if (!verify_block(seed, block->bytes, block->checksums)) {
      result.damages.push_back({record, "its bytes are not those of its name"});
    }
    ++result.blocks;
    result.bytes += record.block_bytes;
    progress.add(record.block_bytes);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  print_verification(options.path, result, options.json, out);
  return result.damages.empty() ? 0 : 1;
}

/// The only command that writes. It opens the directory like a start: with the lock and repairs, never beside a node.
int compact(const DiskToolOptions& options, std::ostream& out, std::ostream& err) {
  const auto disk = open_disk(options, /*read_only=*/false, err);
  Contents contents;
  if (!disk || !read_contents(*disk, contents, err)) return 1;
  // From the oldest on, one call each: files dropped before a failure stay dropped.
  for (const BlockFile& file : contents.dead) {
    if (const error_code error = disk->drop_files(file.first, file.last)) {
      err << "kvstore-node disk: file " << file.number << " cannot be dropped: " << error.message() << "\n";
      return 1;
    }
  }
  const std::uint64_t before = contents.report.stats.file_bytes, after = disk->stats().file_bytes;
  if (options.json) {
    out << "{\"dropped_files\": " << contents.dead.size() << ", \"file_bytes_before\": " << before
        << ", \"file_bytes\": " << after << "}\n";
  } else {
    out << options.path << ": " << contents.dead.size() << " files dropped, " << size_words(before) << " before, "
        << size_words(after) << " now\n";
  }
  return 0;
}

}  // namespace

int run_disk_tool(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  spdlog::set_level(spdlog::level::warn);
  CLI::App app(kAbout, "kvstore-node disk");
  app.require_subcommand(1);
  DiskToolOptions options;
  int status = 0;
  const auto add = [&](const char* name, const char* about,
                       int (*run)(const DiskToolOptions&, std::ostream&, std::ostream&)) {
    CLI::App* const command = app.add_subcommand(name, about);
    command->add_option("directory", options.path, "What --disk-path of the node names")->required();
    CLI::Option* const file =
        command->add_option("--key-file", options.keys.file, "What --disk-key-file of the node names");
    command->add_option("--key-command", options.keys.command, "What --disk-key-command of the node says")
        ->excludes(file);
    command->add_flag("--json", options.json, "One JSON document, for scripts");
    command->callback([&, run] { status = run(options, out, err); });
  };
  add("inspect", "What the directory holds", &inspect);
  add("verify", "Reads every block and checks it against its name; 1 if one is damaged", &verify);
  add("compact", "Gives back the files of which no block is named any more; repairs a damaged directory first",
      &compact);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? 0 : 2;
  }
  return status;
}

}  // namespace kv
