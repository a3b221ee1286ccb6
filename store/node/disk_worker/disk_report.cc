#include "store/node/disk_worker/disk_report.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "index/namespace_record.h"
#include "store/node/machine/advice.h"

namespace kv {
namespace {

using nlohmann::json;

/// The field of a record that identifies a namespace to people.
std::string model_of(const std::string& record) {
  const auto parsed = NamespaceRecord::parse(record);
  return record.empty() ? "(record lost)" : parsed ? std::string(parsed->field("model")) : "(record unreadable)";
}

json key_of(DiskKey key) { return static_cast<std::uint64_t>(key); }

}  // namespace

void print_report(const std::string& path, const DiskReport& report, bool as_json, std::ostream& out) {
  if (as_json) {
    json spaces = json::array(), files = json::array();
    for (const auto& [id, space] : report.spaces) {
      spaces.push_back({{"id", to_hex(id.bytes)},
                        {"model", model_of(space.record)},
                        {"record", space.record},
                        {"blocks", space.blocks},
                        {"bytes", space.bytes}});
    }
    for (const BlockFile& file : report.files) {
      files.push_back({{"number", file.number},
                       {"bytes", file.bytes},
                       {"first_key", key_of(file.first)},
                       {"last_key", key_of(file.last)}});
    }
    out << json{{"path", path},
                {"epoch", report.epoch},
                {"blocks", report.blocks},
                {"bytes", report.bytes},
                {"file_bytes", report.stats.file_bytes},
                {"dead_files", report.dead_files},
                {"dead_file_bytes", report.dead_file_bytes},
                {"namespaces", spaces},
                {"files", files}}
               .dump(2, ' ', false, json::error_handler_t::replace)
        << "\n";
    return;
  }
  out << path << ": " << report.blocks << " blocks, " << size_words(report.bytes) << ", in " << report.files.size()
      << " files (" << size_words(report.stats.file_bytes) << " with records); started " << report.epoch << " times\n";
  if (report.dead_files > 0) {
    out << report.dead_files << " files (" << size_words(report.dead_file_bytes)
        << ") hold no block that is named any more: `disk compact` gives them back\n";
  }
  if (report.spaces.empty()) return;
  out << "\n";
  constexpr const char* kRow = "{:<32}  {:>10}  {:>10}  {:>10}  {}\n";
  out << fmt::format(kRow, "namespace", "blocks", "block", "bytes", "model");
  for (const auto& [id, space] : report.spaces)
    out << fmt::format(kRow, to_hex(id.bytes), space.blocks, size_words(space.block_bytes), size_words(space.bytes),
                       printable(model_of(space.record)));
}

void print_verification(const std::string& path, const DiskVerification& result, bool as_json, std::ostream& out) {
  if (as_json) {
    json damages = json::array();
    for (const DiskDamage& each : result.damages) {
      damages.push_back({{"key", key_of(each.record.key)},
                         {"namespace", to_hex(each.record.space.bytes)},
                         {"hash", to_hex(each.record.hash.bytes)},
                         {"why", each.why}});
    }
    out << json{{"path", path},
                {"blocks", result.blocks},
                {"bytes", result.bytes},
                {"seconds", result.seconds},
                {"dangling", result.dangling},
                {"damaged", result.damages.size()},
                {"damages", damages}}
               .dump(2, ' ', false, json::error_handler_t::replace)
        << "\n";
    return;
  }
  for (const DiskDamage& each : result.damages)
    out << "damaged: " << to_hex(each.record.hash.bytes) << " of " << to_hex(each.record.space.bytes) << ": "
        << each.why << "\n";
  out << path << ": " << result.blocks << " blocks read (" << size_words(result.bytes) << " in "
      << static_cast<std::uint64_t>(result.seconds * 1000) << " ms), " << result.damages.size() << " damaged\n";
  if (result.dangling > 0) {
    out << result.dangling
        << " of these are names without a block: it was given back with its file, or not written yet "
        << "when the node ended. Nothing is damaged; whoever asks for one computes it again\n";
  }
  if (!result.damages.empty()) out << "A node drops a damaged block when it meets it, and serves the rest.\n";
}

}  // namespace kv
