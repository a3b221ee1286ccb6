#include "store/node/events/event_query.h"

#include "base/text/hex.h"
#include "base/text/quantity.h"
#include "store/node/status/query.h"

namespace kv {
std::optional<EventQuery> read_event_query(std::string_view text) {
  Query query(text);
  const auto from = query.take("from"), life = query.take("life");
  const auto number = from ? parse_number<std::uint64_t>(*from) : 0;
  if (!query.is_read() || !number) return std::nullopt;
  EventQuery asked{.from = *number};
  if (life && !from_hex(*life, asked.life.emplace())) return std::nullopt;
  return asked;
}

std::optional<LookDesk::BlockCursor> read_block_query(std::string_view query) {
  LookDesk::BlockCursor cursor;
  if (query.empty()) return cursor;
  constexpr std::string_view kMemory = "at=memory.", kDisk = "at=disk.";
  if (query.starts_with(kDisk)) {
    cursor.tier = BlockTier::kDisk;
    query.remove_prefix(kDisk.size());
  } else if (query.starts_with(kMemory)) {
    query.remove_prefix(kMemory.size());
  } else {
    return std::nullopt;
  }
  const auto next = parse_number<decltype(cursor.next)>(query);
  if (!next) return std::nullopt;
  cursor.next = *next;
  return cursor;
}

}  // namespace kv
