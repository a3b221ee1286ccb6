#include "store/node/spill/spill_report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "index/namespace_record.h"

namespace kv {
namespace {

using nlohmann::json;

/// The field of a record that identifies a namespace to people.
std::string model_of(const std::string& record) {
  const auto parsed = NamespaceRecord::parse(record);
  return record.empty() ? "(record lost)" : parsed ? std::string(parsed->field("model")) : "(record unreadable)";
}

void print_row(std::ostream& out, const char* format, auto... values) {
  char line[400];
  std::snprintf(line, sizeof line, format, values...);
  out << line << "\n";
}

json key_of(DiskKey key) { return static_cast<std::uint64_t>(key); }

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value == std::floor(value) ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

void print_report(const std::string& path, const SpillReport& report, bool as_json, std::ostream& out) {
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
  out << path << ": " << report.blocks << " blocks, " << human_bytes(report.bytes) << ", in " << report.files.size()
      << " files (" << human_bytes(report.stats.file_bytes) << " with records); started " << report.epoch << " times\n";
  if (report.dead_files > 0) {
    out << report.dead_files << " files (" << human_bytes(report.dead_file_bytes)
        << ") hold no block that is named any more: `spill compact` gives them back\n";
  }
  if (report.spaces.empty()) return;
  out << "\n";
  print_row(out, "%-32s  %10s  %10s  %10s  %s", "namespace", "blocks", "block", "bytes", "model");
  for (const auto& [id, space] : report.spaces) {
    print_row(out, "%-32s  %10llu  %10s  %10s  %s", to_hex(id.bytes).c_str(),
              static_cast<unsigned long long>(space.blocks), human_bytes(space.block_bytes).c_str(),
              human_bytes(space.bytes).c_str(), printable(model_of(space.record)).c_str());
  }
}

void print_verification(const std::string& path, const SpillVerification& result, bool as_json, std::ostream& out) {
  if (as_json) {
    json damages = json::array();
    for (const SpillDamage& each : result.damages) {
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
  for (const SpillDamage& each : result.damages)
    out << "damaged: " << to_hex(each.record.hash.bytes) << " of " << to_hex(each.record.space.bytes) << ": "
        << each.why << "\n";
  out << path << ": " << result.blocks << " blocks read (" << human_bytes(result.bytes) << " in "
      << static_cast<std::uint64_t>(result.seconds * 1000) << " ms), " << result.damages.size() << " damaged\n";
  if (result.dangling > 0) {
    out << result.dangling
        << " of these are names without a block: it was given back with its file, or not written yet "
        << "when the node ended. Nothing is damaged; whoever asks for one computes it again\n";
  }
  if (!result.damages.empty()) out << "A node drops a damaged block when it meets it, and serves the rest.\n";
}

}  // namespace kv
