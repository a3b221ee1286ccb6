// transport/context_act.h: what a request about a named context asks for.
#pragma once

#include <cstdint>

namespace kv {

/// `act` of wire::ContextRequest. docs/wire.md has what goes with each.
enum class ContextAct : std::uint8_t {
  kCreate = 1,
  kList = 2,
  kExtend = 3,
  kDelete = 4,
  kWarm = 5,
  kStopWarming = 6,
  kTell = 7
};

}  // namespace kv
