// Bytes as operations on an Arena. Every slot holds bytes that name it, so that two slots that overlap are seen.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/memory/arena.h"
#include "tests/fuzz/input.h"
#include "tests/store/oldest_window.h"

namespace kv {
namespace {

struct Held {
  SlotId slot;
  std::size_t block_bytes;
  std::uint8_t mark;
};

void fill(Arena& arena, const Held& held) {
  std::memset(arena.bytes(held.slot).data(), held.mark, held.block_bytes);
  for (auto& sum : arena.checksums(held.slot)) sum = held.mark;
}

void expect_intact(const Arena& arena, const Held& held) {
  KV_ASSERT(arena.is_allocated(held.slot) && arena.block_bytes(held.slot) == held.block_bytes);
  const auto bytes = arena.bytes(held.slot);
  KV_ASSERT(bytes.size() == held.block_bytes && arena.checksums(held.slot).size() == stripe_count(held.block_bytes));
  for (const std::byte each : bytes) KV_ASSERT(each == std::byte{held.mark});
  for (const std::uint64_t sum : arena.checksums(held.slot)) KV_ASSERT(sum == held.mark);
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  constexpr std::size_t kSizes[] = {1, 64, 100, 4096, 5000, 8192, 12'288, 65'536, 70'000, 200'000};
  Input input(data, std::min<std::size_t>(size, 4096));
  ArenaConfig config;
  config.granule_bytes = 4096 * (1 + input.below(4));
  config.capacity_bytes = 1 + input.below(512) * 1024 + input.below(4096);
  config.huge_pages = false;
  config.touch = false;
  const auto arena = Arena::create(config).value();
  std::vector<Held> held;
  std::size_t held_bytes = 0;
  std::uint8_t mark = 0;
  std::uint64_t tick = 0;
  while (!input.empty()) {
    const std::uint8_t operation = input.byte();
    if (operation < 150) {
      const std::size_t block_bytes = kSizes[input.below(std::size(kSizes))];
      const auto slot = arena->allocate(block_bytes);
      if (!slot) {
        KV_ASSERT(!held.empty() || !arena->fits(block_bytes));
        continue;
      }
      held.push_back({*slot, block_bytes, ++mark});
      held_bytes += block_bytes;
      fill(*arena, held.back());
    } else if (operation < 230 && !held.empty()) {
      const std::size_t at = input.below(held.size());
      expect_intact(*arena, held[at]);
      arena->free(held[at].slot);
      held_bytes -= held[at].block_bytes;
      held[at] = held.back();
      held.pop_back();
    } else if (!held.empty()) {
      arena->use(held[input.below(held.size())].slot, Tick{++tick});
      if (operation > 250) {  // clear the oldest window of some size, as the evictor does
        const std::size_t block_bytes = kSizes[input.below(std::size(kSizes))];
        const auto window = oldest_window(*arena, block_bytes);
        if (!window) continue;
        Arena::Cursor cursor = arena->begin(*window);
        Steps steps(1'000'000);
        while (const auto slot = arena->next_slot(*window, cursor, steps)) {
          const auto found =
              std::find_if(held.begin(), held.end(), [&](const Held& each) { return each.slot == *slot; });
          KV_ASSERT(found != held.end());
          expect_intact(*arena, *found);
          arena->free(*slot);
          held_bytes -= found->block_bytes;
          *found = held.back();
          held.pop_back();
        }
        const auto slot = arena->allocate(block_bytes);
        KV_ASSERT(slot);
        held.push_back({*slot, block_bytes, ++mark});
        held_bytes += block_bytes;
        fill(*arena, held.back());
      }
    }
    KV_ASSERT(arena->allocated_bytes() == held_bytes && held_bytes <= arena->capacity_bytes());
  }
  KV_ASSERT(arena->check().empty());
  for (const Held& each : held) expect_intact(*arena, each);
  for (const Held& each : held) arena->free(each.slot);
  KV_ASSERT(arena->allocated_bytes() == 0 && arena->slab_bytes() == 0 && arena->check().empty());
  return 0;
}
