// transport/context_act.h: the acts of a request about a named context.
#pragma once

#include <cstdint>

namespace kv {

/// `act` of wire::ContextRequest. docs/wire.md lists the fields of each.
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
