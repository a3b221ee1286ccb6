// store/store_events.cc: changes and present blocks, for routers that mirror them (event_log.h).
#include <algorithm>

#include "store/store_impl.h"

namespace kv {
namespace {

/// Per call, some 100 us: a block's hash and its parent's are cache misses, an entry of the log is not.
constexpr std::size_t kChangesPerCall = 2048;
constexpr std::uint32_t kListedPerCall = 512;

}  // namespace

void Store::read_events(std::uint64_t from, EventPage& page) const {
  KV_ASSERT(impl_->events != nullptr);
  impl_->events->read(from, kChangesPerCall, page);
}

void Store::list_blocks(BlockCursor& cursor, EventPage& page) const {
  if (impl_->events) page.next = impl_->events->next();
  const PrefixIndex* const index = impl_->index_of(cursor.tier);
  if (index != nullptr) {
    const std::uint32_t end = std::min(index->block_id_end(), cursor.next + std::min(kListedPerCall, ~cursor.next));
    const bool has_detached = index->has_detached();
    for (; cursor.next < end; ++cursor.next) {
      const BlockId block{cursor.next};
      if (!index->is_linked(block) || (has_detached && !index->is_attached(block))) continue;
      const TreeId tree = index->tree(block);
      const BlockId parent = index->parent(block);
      EventPage::Event& event = page.events.emplace_back();
      event.is_stored = true;
      event.tier = cursor.tier;
      event.space = page.index_of(impl_->spaces.find(tree)->record);
      event.hash = index->hash(block);
      if (parent != kNoBlock) event.parent = index->hash(parent);
      event.position = index->position(block);
    }
    if (cursor.next < index->block_id_end()) return;
  }
  cursor.is_done = cursor.tier == Tier::kDisk;
  cursor.tier = Tier::kDisk;
  cursor.next = 0;
}

}  // namespace kv
