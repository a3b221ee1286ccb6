// store/node/options/autotune.h: `kvstore-node --autotune`, which measures this machine and suggests settings.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "store/node/machine/advice.h"
#include "store/node/options/config.h"

namespace kv {

NodeWishes wishes_of(const NodeOptions& options, const GivenOptions& given);
/// Lines of a configuration file that set the advised options, with figures and reasons; other advice as comments.
std::string toml_of(const std::vector<Advice>& advices);
/// Measures, some seconds for each directory, and prints text, JSON or TOML as the options say. Returns the exit
/// status: 1 without output if the node would refuse the advised settings (`err` says why).
int run_autotune(const NodeOptions& options, const GivenOptions& given, std::ostream& out, std::ostream& err);

}  // namespace kv
