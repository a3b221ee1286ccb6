#include "store/node/options/settings.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
#include "store/node/options/config_file.h"

namespace kv {
namespace {

using Entry = GivenOptions::Entry;

const Entry* find_entry(const std::vector<Entry>& entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, [](const Entry& entry) { return std::string_view(entry.name); });
  return found == entries.end() ? nullptr : &*found;
}

std::string joined(const Entry& entry) {
  std::string text;
  for (const std::string& value : entry.shown(entry.values)) text += (text.empty() ? "" : ", ") + value;
  return printable(text);
}

/// The names of options whose values differ.
std::vector<std::string> differences(const std::vector<Entry>& before, const std::vector<Entry>& after) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < before.size(); ++i) {
    KV_ASSERT(before[i].name == after[i].name);
    if (before[i].values != after[i].values) names.push_back(before[i].name);
  }
  return names;
}

nlohmann::json value_json(const Entry& entry, const std::vector<std::string>& given) {
  const std::vector<std::string> values = entry.shown(given);
  if (entry.is_list) return values;
  return values.empty() ? "" : values.front();
}

}  // namespace

void Settings::on(std::initializer_list<const char*> names, const Apply& apply) {
  const std::vector<Entry> entries = given_.list();
  for (const char* const name : names) {
    const Entry* const entry = find_entry(entries, name);
    KV_ASSERT(entry != nullptr && entry->fixed.empty());  // the option table says that it is live
    applies_[name] = apply;
  }
}

void Settings::on_demand(std::initializer_list<const char*> names) {
  on(names, [](const NodeOptions&) { return std::string(); });
}

/// Assigns to `next`, which starts as the values in force.
std::string Settings::check(const std::vector<Assignment>& assignments, GivenOptions& next) const {
  const std::vector<Entry> entries = next.list();
  if (assignments.empty()) return "no option is named; NAME=VALUE is wanted";
  for (const Assignment& each : assignments) {
    const Entry* const entry = find_entry(entries, each.name);
    if (entry != nullptr && !entry->fixed.empty())
      return fmt::format("{}: cannot be changed while the node runs: {}. Change the configuration and restart",
                         each.name, entry->fixed);
    if (entry != nullptr && !applies_.contains(each.name)) {
      return fmt::format("{}: is of no use as this node was started{}", each.name,
                         each.name.starts_with("capacity") ? ": capacity-max says how far it may go, and was not given"
                         : (each.name.starts_with("disk-") || each.name.starts_with("spill-"))
                             ? ": it has no disk tier. Give it disk-path and restart"
                             : "");
    }
    if (std::string wrong = next.set(each.name, each.values, GivenOptions::Source::kSet); !wrong.empty()) return wrong;
  }
  return "";
}

void Settings::put_in_force(GivenOptions& next, const NodeOptions& options, const std::vector<std::string>& names,
                            const std::string& by, Outcome& outcome) {
  const std::vector<Entry> before = given_.list(), after = next.list();
  for (const std::string& name : names) {
    const auto apply = applies_.find(name);
    KV_ASSERT(apply != applies_.end());
    if (outcome.wrong.empty()) outcome.wrong = apply->second(options);
    if (!outcome.wrong.empty()) {
      next.take(name, given_);  // the same for all that follow
      continue;
    }
    ++changes_;
    outcome.changed.push_back(name);
    spdlog::info("config: {} = {} (was {}), by {}", name, joined(*find_entry(after, name)),
                 joined(*find_entry(before, name)), by);
  }
  given_ = std::move(next);
  std::string wrong;
  auto now = given_.options(&wrong, /*reads_files=*/false);
  // Each prefix of good changes is good: checks across options concern their bounds, which all fit.
  if (now) in_force_ = *std::move(now);
}

Settings::Outcome Settings::set(const std::vector<Assignment>& assignments, bool writes, const std::string& who) {
  const std::lock_guard lock(mutex_);
  Outcome outcome;
  GivenOptions next = given_;
  outcome.wrong = is_open_ ? check(assignments, next) : "the node is starting or stopping";
  const auto options = outcome.wrong.empty() ? next.options(&outcome.wrong, /*reads_files=*/false) : std::nullopt;
  if (outcome.wrong.empty() && writes && given_.file().empty())
    outcome.wrong = "--write: this node was started without a file (--config), so there is none to write to";
  if (!outcome.wrong.empty()) {
    ++refusals_;
    return outcome;
  }
  // In the requested order. Options that one excludes fall back to their defaults with it.
  const std::vector<std::string> different = differences(given_.list(), next.list());
  std::vector<std::string> names;
  for (const Assignment& each : assignments) {
    if (std::ranges::find(different, each.name) != different.end()) names.push_back(each.name);
  }
  put_in_force(next, *options, names, who, outcome);
  refusals_ += !outcome.wrong.empty();
  if (!outcome.wrong.empty() || !writes) return outcome;
  if (const std::string wrong = write(assignments); !wrong.empty()) {
    outcome.wrong = "in force, but not written: " + wrong;
    return outcome;
  }
  outcome.notes.push_back("written to " + given_.file());
  std::string unread;
  const auto again = read_(&unread);
  if (!again) {
    outcome.wrong = "written, but the file cannot be read any more: " + unread;
    return outcome;
  }
  const std::vector<Entry> then = again->list();
  for (const Assignment& each : assignments) {
    const Entry* const entry = find_entry(then, each.name);
    if (entry->source == GivenOptions::Source::kFlag || entry->source == GivenOptions::Source::kEnvironment)
      outcome.notes.push_back(
          fmt::format("{}: at the next start the {} wins over the file", each.name, source_name(entry->source)));
  }
  return outcome;
}

std::string Settings::write(const std::vector<Assignment>& assignments) const {
  const std::vector<Entry> entries = given_.list();
  std::vector<ConfigLine> lines;
  for (const Assignment& each : assignments) {
    const Entry& entry = *find_entry(entries, each.name);
    lines.push_back({each.name, entry.values, entry.is_list});
  }
  return write_config_file(given_.file(), lines);
}

Settings::Outcome Settings::reload() {
  const std::lock_guard lock(mutex_);
  Outcome outcome;
  if (!is_open_) return outcome;
  auto next = read_(&outcome.wrong);
  const auto options_of = [&] { return next->options(&outcome.wrong, /*reads_files=*/false); };
  if (next) {
    // Options that must stay come first, or the rest would be checked against their new values.
    const std::vector<Entry> before = given_.list(), read = next->list();
    for (const std::string& name : differences(before, read)) {
      const Entry& now = *find_entry(before, name);
      if (now.source == GivenOptions::Source::kSet) {
        next->take(name, given_);
      } else if (!now.fixed.empty() || !applies_.contains(name)) {
        outcome.notes.push_back(name + " = " + joined(*find_entry(read, name)) + " needs a restart");
        next->take(name, given_);
      }
    }
  }
  const auto options = next ? options_of() : std::nullopt;
  if (options) put_in_force(*next, *options, differences(given_.list(), next->list()), "SIGHUP", outcome);
  ++(outcome.wrong.empty() ? reloads_ : reload_failures_);
  if (!outcome.wrong.empty()) spdlog::error("config: what was in force stays: {}", printable(outcome.wrong));
  for (const std::string& note : outcome.notes) spdlog::warn("config: {}", note);
  return outcome;
}

void Settings::open(const std::function<void()>& wire) {
  const std::lock_guard lock(mutex_);
  wire();
  is_open_ = true;
}

NodeOptions Settings::close() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  return in_force_;
}

NodeOptions Settings::in_force() const {
  const std::lock_guard lock(mutex_);
  return in_force_;
}

std::string Settings::list_json() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json options = nlohmann::json::array();
  for (const Entry& entry : given_.list()) {
    std::string why = entry.fixed;
    if (why.empty() && !applies_.contains(entry.name)) why = "it is of no use as this node was started";
    options.push_back({{"name", entry.name},
                       {"value", value_json(entry, entry.values)},
                       {"default", value_json(entry, entry.otherwise)},
                       {"source", source_name(entry.source)},
                       {"is_live", why.empty()},
                       {"why_not", why},
                       {"allowed", entry.allowed}});
  }
  const nlohmann::json document = {{"file", given_.file()}, {"options", std::move(options)}};
  return document.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::vector<NodeMetrics::Value> Settings::stats() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t set_count = 0;
  for (const Entry& entry : given_.list()) set_count += entry.source == GivenOptions::Source::kSet;
  return {{"config_changes", changes_, true, "Options changed while the node ran"},
          {"config_refusals", refusals_, true, "Changes that were asked for and refused"},
          {"config_reloads", reloads_, true, "Times that SIGHUP had the configuration read again"},
          {"config_reload_failures", reload_failures_, true, "The same where it was bad"},
          {"config_set_options", set_count, false,
           "Options that were set while the node ran, and are not what a restart would bring"}};
}

std::optional<std::vector<Settings::Assignment>> parse_assignments(std::string_view query) {
  constexpr std::size_t kAssignmentsMax = 256;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  const auto decode = [&](std::string_view text) -> std::optional<std::string> {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        plain += text[i];
        continue;
      }
      if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return std::nullopt;
      plain += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    }
    return plain;
  };
  std::vector<Settings::Assignment> assignments;
  std::size_t count = 0;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || ++count > kAssignmentsMax) return std::nullopt;
    auto name = decode(pair.substr(0, equals)), value = decode(pair.substr(equals + 1));
    if (!name || !value) return std::nullopt;
    const auto same = std::ranges::find(assignments, *name, &Settings::Assignment::name);
    if (same == assignments.end()) {
      assignments.push_back({*std::move(name), {*std::move(value)}});
    } else {
      same->values.push_back(*std::move(value));
    }
  }
  return assignments;
}

}  // namespace kv
