// store/node/events/event_query.h: which changes, or which blocks, a request of the admin server asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "store/node/session/space_handles.h"
#include "store/store.h"

namespace kv {

struct EventQuery {
  std::uint64_t from = 0;
  std::optional<InstanceId> life = {};  ///< In which `from` is a number. Nothing: whichever this is.
};

/// "from=123&life=00112233445566778899aabbccddeeff", each once or not at all. Nothing for all else: whoever reaches the
/// admin port may have written it.
std::optional<EventQuery> read_event_query(std::string_view query);
/// "", or "at=memory.123", or "at=disk.123": where a list of all blocks goes on.
std::optional<Store::BlockCursor> read_block_query(std::string_view query);

}  // namespace kv
