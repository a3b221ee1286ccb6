// client/tools/bench/trace/trace_hints.h: reuse hints that callers could have given for a trace's requests.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/tools/bench/trace/trace_reader.h"
#include "index/reuse_hint.h"

namespace CLI {
class App;
}

namespace kv {

/// A caller's knowledge: none; whether a request is its session's last; also, whether the next one comes within ten
/// minutes; the interval of the next one, out of four.
enum class HintKind : std::uint8_t { kNone, kFinal, kSoon, kWhen };
inline constexpr std::array<std::string_view, 4> kHintKindNames = {"none", "final", "soon", "when"};

/// A hint for each request, from its future in the trace: the next request that has its last block but one (its only
/// block, if it has one). Other users of its shared beginning do not count. A share `wrong` of the requests, drawn by
/// `seed`, gets a different hint, each other one equally often.
std::vector<ReuseHint> trace_hints(const std::vector<TraceRequest>& requests, HintKind kind, double wrong,
                                   std::uint64_t seed);

void add_hint_options(CLI::App& command, std::string& kind, double& wrong);
HintKind hint_kind(std::string_view name);  ///< Requires: one of kHintKindNames.

}  // namespace kv
