#include <string>

#include "base/assert.h"
#include "store/node/events/event_query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view query(reinterpret_cast<const char*>(data), size);
  if (const auto asked = read_event_query(query)) {
    std::string text = "from=" + std::to_string(asked->from);
    if (asked->life) text += "&life=" + to_hex(*asked->life);
    const auto again = read_event_query(text);
    KV_ASSERT(again && again->from == asked->from && again->life == asked->life);
  }
  if (const auto cursor = read_block_query(query)) {
    const bool is_disk = cursor->tier == BlockTier::kDisk;
    const auto again = read_block_query((is_disk ? "at=disk." : "at=memory.") + std::to_string(cursor->next));
    KV_ASSERT(again && again->tier == cursor->tier && again->next == cursor->next && !again->is_done);
  }
  return 0;
}
