// client/tools/ctl/ctl_contexts.h: what the commands about contexts share.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/tools/ctl/ctl.h"

namespace kv {

/// What is kept, how long, and before what else.
struct ContextKeepOptions {
  std::string until;
  std::chrono::microseconds ttl{0};
  bool is_sliding = false;
  std::optional<std::uint8_t> priority;
};
/// --ttl, --sliding, --until and --priority, without which it is `priority_default`.
void add_keep_options(CLI::App& verb, const std::shared_ptr<ContextKeepOptions>& options,
                      const std::string& priority_default);
/// Nothing: no time was given. Throws what main() tells: two times, a date that is none.
std::optional<ContextTime> time_of(const ContextKeepOptions& options);

nlohmann::json json_of(const NamedContext& context);
/// A table, and what is amiss; or JSON.
void print_one(const NamedContext& context, bool as_json);

void add_context_archive_commands(CLI::App& contexts);

}  // namespace kv
