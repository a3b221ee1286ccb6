// store/node/events/event_query.h: queries for changes or blocks on the admin server.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "store/node/session/tables/space_handles.h"
#include "store/store.h"

namespace kv {

struct EventQuery {
  std::uint64_t from = 0;
  std::optional<InstanceId> life = {};  ///< The life to which `from` belongs. nullopt: the present one.
};

/// "from=123&life=00112233445566778899aabbccddeeff", each at most once. nullopt for all else: the query may come from
/// anybody who reaches the admin port.
std::optional<EventQuery> read_event_query(std::string_view query);
/// "", or "at=memory.123", or "at=disk.123": where a list of all blocks continues.
std::optional<LookDesk::BlockCursor> read_block_query(std::string_view query);

}  // namespace kv
