// client/tools/bench/trace_hints.h: what callers could have said of a trace's requests.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/tools/bench/trace_reader.h"
#include "index/reuse_hint.h"

namespace kv {

/// What callers know: nothing; whether a request is the last of its session; that, and whether the next one comes
/// within ten minutes; within which of the four times.
enum class HintKind : std::uint8_t { kNone, kFinal, kSoon, kWhen };
inline constexpr std::array<std::string_view, 4> kHintKindNames = {"none", "final", "soon", "when"};

/// A hint for each request, made from what follows it in the trace: the next request that has its last block but one
/// (its only block, if it has one). Who else uses the beginning that it shares does not count. A share `wrong` of the
/// requests, drawn by `seed`, says something else, each other thing as often.
std::vector<ReuseHint> trace_hints(const std::vector<TraceRequest>& requests, HintKind kind, double wrong,
                                   std::uint64_t seed);

/// --hints and --wrong-hints.
void add_hint_options(CLI::App& command, std::string& kind, double& wrong);
HintKind hint_kind(std::string_view name);  ///< Requires: one of kHintKindNames.

}  // namespace kv
