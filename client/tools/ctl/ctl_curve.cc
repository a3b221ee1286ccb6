// kvstorectl curve: the estimated hit rate of each node with less or more memory, from a sample that it keeps.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <utility>

#include "client/tools/ctl/ctl.h"
#include "client/tools/json_text.h"
#include "client/tools/options.h"
#include "client/tools/text_table.h"

namespace kv {
namespace {

struct CurveOptions : CtlOptions {
  std::size_t more_bytes = std::size_t{64} << 30;
};

struct CurvePoint {
  double blocks = 0, scale = 0, lru = 0, lru_error = 0;
  bool has_disk = false;
  std::optional<double> own, own_error;  ///< Absent where the policy is LRU.

  double best() const { return own.value_or(lru); }
};

/// In the node's order: by tier, then by capacity. Empty: the node is empty, or keeps no sample.
std::vector<CurvePoint> points_of(const nlohmann::json& curve) {
  std::vector<CurvePoint> points;
  for (const nlohmann::json& row : rows_in(curve, "points")) {
    CurvePoint& point = points.emplace_back();
    point.blocks = number_in(row, "blocks");
    point.scale = number_in(row, "scale");
    point.lru = number_in(row, "lru");
    point.lru_error = number_in(row, "lru_error");
    point.has_disk = number_in(row, "has_disk") != 0;
    if (!row.contains("own")) continue;
    point.own = number_in(row, "own");
    point.own_error = number_in(row, "own_error");
  }
  return points;
}

/// The policy's gain from more blocks of a tier, interpolated over log(capacity); nullopt beyond the curve.
std::optional<double> gain(const std::vector<CurvePoint>& points, bool has_disk, double more_blocks) {
  const CurvePoint* now = nullptr;
  for (const CurvePoint& point : points)
    if (point.has_disk == has_disk && point.scale == 1) now = &point;
  if (now == nullptr || now->blocks <= 0) return {};
  const double wanted = now->blocks + more_blocks;
  const CurvePoint* below = now;
  for (const CurvePoint& point : points) {
    if (point.has_disk != has_disk || point.blocks <= now->blocks) continue;
    if (point.blocks >= wanted) {
      const double share = std::log(wanted / below->blocks) / std::log(point.blocks / below->blocks);
      return below->best() + share * (point.best() - below->best()) - now->best();
    }
    below = &point;
  }
  return {};
}

void print_gain(const std::vector<CurvePoint>& points, bool has_disk, const CurveOptions& options, double block_bytes) {
  const char* const of = has_disk ? "of disk " : "of memory ";
  const auto more = gain(points, has_disk, static_cast<double>(options.more_bytes) / block_bytes);
  std::cout << "One more " << format_bytes(options.more_bytes) << " " << of;
  if (more) {
    std::cout << "would give " << (*more < 0 ? "" : "+") << format_share(*more) << " of all blocks asked for.\n";
  } else {
    std::cout << "is beyond what the sample can tell.\n";
  }
}

void print_curve(const std::string& name, const nlohmann::json& curve, const std::vector<CurvePoint>& points,
                 const CurveOptions& options) {
  const double block_bytes = number_in(curve, "block_bytes");
  const bool has_disk = std::ranges::any_of(points, &CurvePoint::has_disk);
  std::cout << name << ": found " << format_share(number_in(curve, "memory_hit_rate")) << " in memory";
  if (has_disk) std::cout << ", " << format_share(number_in(curve, "hit_rate")) << " with the disk,";
  std::cout << " of " << count_text(curve, "asked_blocks") << " blocks asked for in the last hour or so; sampled "
            << count_text(curve, "sampled_blocks") << ", one in " << count_text(curve, "one_in") << "\n";
  TextTable table({"capacity", "of", "blocks", "bytes", "LRU", "+-", "this node's policy", "+-"});
  for (const CurvePoint& point : points) {
    table.add({format_number(point.scale, 2) + " x", point.has_disk ? "memory and disk" : "memory",
               format_count(static_cast<std::uint64_t>(point.blocks)),
               format_bytes(static_cast<std::uint64_t>(point.blocks * block_bytes)), format_share(point.lru),
               format_share(point.lru_error), point.own ? format_share(*point.own) : "-",
               point.own_error ? format_share(*point.own_error) : "-"});
  }
  table.print(std::cout);
  if (block_bytes <= 0) return;
  print_gain(points, false, options, block_bytes);
  if (has_disk) print_gain(points, true, options, block_bytes);
}

nlohmann::json curve_json(const NodeStats& node, const nlohmann::json& curve, const std::vector<CurvePoint>& points,
                          const CurveOptions& options) {
  const double block_bytes = number_in(curve, "block_bytes");
  nlohmann::json entry = {{"name", node.name},
                          {"answers", !node.error},
                          {"block_bytes", block_bytes},
                          {"one_in", number_in(curve, "one_in")},
                          {"asked_blocks", number_in(curve, "asked_blocks")},
                          {"sampled_blocks", number_in(curve, "sampled_blocks")},
                          {"memory_hit_rate", number_in(curve, "memory_hit_rate")},
                          {"hit_rate", number_in(curve, "hit_rate")},
                          {"more_bytes", options.more_bytes},
                          {"points", nlohmann::json::array()}};
  if (node.error) entry["error"] = describe(node.error);
  for (const CurvePoint& point : points) {
    entry["points"].push_back({{"tier", point.has_disk ? "memory_and_disk" : "memory"},
                               {"scale", point.scale},
                               {"blocks", point.blocks},
                               {"bytes", point.blocks * block_bytes},
                               {"lru", point.lru},
                               {"lru_error", point.lru_error}});
    if (point.own) entry["points"].back()["own"] = *point.own;
    if (point.own_error) entry["points"].back()["own_error"] = *point.own_error;
  }
  if (block_bytes <= 0) return entry;
  const double more_blocks = static_cast<double>(options.more_bytes) / block_bytes;
  if (const auto more = gain(points, false, more_blocks)) entry["more_memory_gain"] = *more;
  if (const auto more = gain(points, true, more_blocks)) entry["more_disk_gain"] = *more;
  return entry;
}

void run_curve(CurveOptions options) {
  ToolClient client(ctl_config(options.node));
  const auto stats = answer_of(ask_stats(client, options.node.deadline));
  nlohmann::json document = {{"nodes", nlohmann::json::array()}};
  bool is_first = true;
  for (const NodeStats& node : stats) {
    const nlohmann::json curve = node.said.value("curve", nlohmann::json::object());
    const std::vector<CurvePoint> points = points_of(curve);
    if (options.json) {
      document["nodes"].push_back(curve_json(node, curve, points, options));
    } else {
      if (!std::exchange(is_first, false)) std::cout << '\n';
      if (node.error) {
        std::cout << node.name << ": down: " << describe(node.error) << '\n';
      } else if (points.empty()) {
        std::cout << node.name
                  << ": nothing was stored yet, or it keeps no sample (--curve=false, or an older version)\n";
      } else {
        print_curve(node.name, curve, points, options);
      }
    }
  }
  if (options.json) std::cout << json_text(document) << '\n';
  fail_if_silent(stats);
}

}  // namespace

void add_curve_command(CLI::App& app) {
  const auto [command, options] = add_ctl_command<CurveOptions>(
      app, "curve", "What the hit rate would be with less memory, or more, on each node", run_curve);
  add_bytes_option(*command, "--more", options->more_bytes, "Say what so much more memory, or disk, would bring");
  command->footer(
      "Each node keeps a sample of the blocks asked for, whether it has them or not. +- is the error of the sample: "
      "19\ntimes in 20 the truth is within. Exit status 1 if a node does not answer.\n\n"
      "Example:\n  kvstorectl curve -e tcp://127.0.0.1:7400 --more 128GiB\n");
}

}  // namespace kv
