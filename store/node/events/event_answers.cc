#include "store/node/events/event_answers.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "store/node/events/event_query.h"
#include "store/node/status/record_fields.h"

namespace kv {
namespace {

constexpr std::chrono::microseconds kBetweenLooksAtEvents(100);
constexpr std::size_t kFieldCharsTold = 1024;  ///< More than any value has.

const char* tier_name(BlockTier tier) { return tier == BlockTier::kDisk ? "disk" : "memory"; }

/// `"spaces":[...],"NAME":[...]`. Written by hand, since there are thousands of rows of hex digits and numbers.
std::string event_rows(const EventPage& page, const EventAnswers::MaySee& may_see, const char* name, bool with_kind) {
  constexpr std::uint32_t kHidden = ~std::uint32_t{0};
  std::vector<std::uint32_t> shown_as;
  nlohmann::json spaces = nlohmann::json::array();
  for (const auto& record : page.spaces) {
    shown_as.push_back(may_see(*record) ? static_cast<std::uint32_t>(spaces.size()) : kHidden);
    if (shown_as.back() == kHidden) continue;
    spaces.push_back({{"name", to_hex(record->callers_id().bytes)},
                      {"is_set", record->is_set()},
                      {"fields", shown_fields(*record, kFieldCharsTold)}});
  }
  std::string text = "\"spaces\":" + spaces.dump() + ",\"" + name + "\":[";
  bool is_first = true;
  for (const EventPage::Event& event : page.events) {
    if (shown_as[event.space] == kHidden) continue;
    if (!std::exchange(is_first, false)) text += ',';
    text += '[';
    if (with_kind) text += event.is_stored ? "\"stored\"," : "\"removed\",";
    text += std::string("\"") + tier_name(event.tier) + "\"," + std::to_string(shown_as[event.space]) + ",\"" +
            to_hex(event.hash.bytes) + '"';
    if (event.is_stored) {
      text += event.parent == BlockHash{} ? ",null," : ",\"" + to_hex(event.parent.bytes) + "\",";
      text += std::to_string(event.position);
    }
    text += ']';
  }
  return text + "]}";
}

}  // namespace

std::optional<std::string> EventAnswers::answer(std::string_view path, std::string_view query,
                                                const MaySee& may_see) const {
  const std::string head = "{\"version\":" + std::to_string(kVersion) + ",\"life\":\"" + to_hex(life_) + "\",";
  EventPage page;
  if (path == "/events.json") {
    const auto asked = read_event_query(query);
    if (!asked) return std::nullopt;
    std::uint64_t from = asked->from;
    // Numbers of another life are treated like numbers that are yet to come.
    if (asked->life && *asked->life != life_) from = ~std::uint64_t{0};
    bool has_gap = false;
    for (std::size_t look = 0; look < kLooksMax; ++look) {
      const std::size_t before = page.events.size();
      store_.with([&](const Store& store) { store.read_events(from, page); });
      const bool is_behind = page.is_unknown || from < page.oldest(may_see);
      if (is_behind) page.events.resize(before);
      // The next request finds a gap behind the changes already read.
      has_gap = is_behind && look == 0;
      if (page.next == from || (is_behind && !has_gap)) break;
      from = page.next;
      if (has_gap) break;
      std::this_thread::sleep_for(kBetweenLooksAtEvents);
    }
    return head + "\"oldest\":" + std::to_string(page.oldest(may_see)) + ",\"next\":" + std::to_string(from) +
           ",\"has_gap\":" + (has_gap ? "true," : "false,") + event_rows(page, may_see, "events", /*with_kind=*/true);
  }
  if (path != "/events/blocks.json") return std::nullopt;
  auto cursor = read_block_query(query);
  if (!cursor) return std::nullopt;
  std::uint64_t next = 0;
  for (std::size_t look = 0; look < kLooksMax && !cursor->is_done; ++look) {
    store_.with([&](const Store& store) { store.list_blocks(*cursor, page); });
    if (look == 0) next = page.next;  // the client must also apply changes between two holds
    std::this_thread::sleep_for(kBetweenLooksAtEvents);
  }
  const std::string at = cursor->is_done
                             ? "null"
                             : std::string("\"") + tier_name(cursor->tier) + "." + std::to_string(cursor->next) + "\"";
  return head + "\"next\":" + std::to_string(next) + ",\"at\":" + at + "," +
         event_rows(page, may_see, "blocks", /*with_kind=*/false);
}

}  // namespace kv
