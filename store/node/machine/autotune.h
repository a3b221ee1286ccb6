// store/node/machine/autotune.h: `kvstore-node --autotune`, which measures this machine and says what to set.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "store/node/config.h"
#include "store/node/machine/advice.h"

namespace kv {

NodeWishes wishes_of(const NodeOptions& options, const GivenOptions& given);
/// The options to set as lines of a configuration file, each with its figures and its reason as comments; what may be
/// set, and what is the machine's, as comments alone.
std::string toml_of(const std::vector<Advice>& advices);
/// Measures, which takes some seconds a directory, and prints as the options say: text, JSON or TOML. Returns the exit
/// status: 1 if the node would not take what is advised (`err` says why), for then nothing is printed.
int run_autotune(const NodeOptions& options, const GivenOptions& given, std::ostream& out, std::ostream& err);

}  // namespace kv
