// store/node/machine/autotune.h: `kvstore-node --autotune`, which measures this machine and suggests settings.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "store/node/config.h"
#include "store/node/machine/advice.h"

namespace kv {

NodeWishes wishes_of(const NodeOptions& options, const GivenOptions& given);
/// The options to set as lines of a configuration file, each with its figures and reason as comments; optional settings
/// and changes of the machine as comments only.
std::string toml_of(const std::vector<Advice>& advices);
/// Measures, some seconds for each directory, and prints text, JSON or TOML as the options say. Returns the exit
/// status: 1 without output if the node would refuse the advised settings (`err` says why).
int run_autotune(const NodeOptions& options, const GivenOptions& given, std::ostream& out, std::ostream& err);

}  // namespace kv
