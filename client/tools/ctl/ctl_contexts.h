// client/tools/ctl/ctl_contexts.h: shared code of the commands about contexts.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "client/tools/ctl/ctl.h"

namespace kv {

struct ContextKeepOptions {
  std::string until;
  std::chrono::microseconds ttl{0};
  bool is_sliding = false;
  std::optional<std::uint8_t> priority;
};
/// --ttl, --sliding, --until and --priority, which defaults to `priority_default`.
void add_keep_options(CLI::App& command, ContextKeepOptions& options, const std::string& priority_default);
/// nullopt: no time was given. Throws messages for main(): two times, an invalid date.
std::optional<ContextTime> time_of(const ContextKeepOptions& options);

nlohmann::json json_of(const NamedContext& context);
/// Prints a table and any faults, or JSON.
void print_one(const NamedContext& context, bool as_json);

void add_context_archive_commands(CLI::App& contexts);

}  // namespace kv
