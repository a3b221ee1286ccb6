#include "store/node/events/event_query.h"

#include <algorithm>

#include "base/hex.h"
#include "base/quantity.h"

namespace kv {
namespace {

template <class Number>
bool read_decimal(std::string_view text, Number& number) {
  const auto read = parse_number<Number>(text);
  number = read.value_or(0);
  return read.has_value();
}

}  // namespace

std::optional<EventQuery> read_event_query(std::string_view query) {
  EventQuery asked;
  bool has_from = false;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    if (key == "from" && !has_from) {
      has_from = true;
      if (!read_decimal(value, asked.from)) return std::nullopt;
    } else if (key == "life" && !asked.life) {
      if (!from_hex(value, asked.life.emplace())) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
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
  if (!read_decimal(query, cursor.next)) return std::nullopt;
  return cursor;
}

}  // namespace kv
