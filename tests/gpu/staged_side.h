// tests/gpu/staged_side.h: both ends of a staged transfer: pages that play the device's memory, blocks in the host's.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "gpu/named_layouts.h"
#include "gpu/staging.h"
#include "tests/gpu/emulated_device.h"
#include "tests/gpu/matrix.h"
#include "tests/gpu/test_cache.h"

namespace kv {

/// An engine's pages on the device.
struct DevicePages {
  DevicePages(EmulatedDevice& device, Layout layout, std::mt19937_64& random) : cache(std::move(layout)) {
    cache.fill_random(random);
    for (Bytes& tensor : cache.memory()) device.map_device(tensor.data(), tensor.size());
  }
  TestCache cache;
};

/// The store's blocks on the host, and where their tokens lie in some pages.
struct HostBlocks {
  HostBlocks(EmulatedDevice& device, const Layout& pages, std::int64_t groups, std::int64_t count, bool is_locked,
             std::mt19937_64& random, std::int64_t block_tokens)
      : cache(layouts::store_block(pages, groups, count, block_tokens).value()) {
    cache.fill_random(random);
    slots = random_slots(random, count * block_tokens, pages.slot_count(), /*has_holes=*/false);
    Bytes& memory = cache.memory().front();
    if (is_locked) device.lock_pages(memory.data(), memory.size());
    is_page_locked = is_locked;
  }
  StagedBlocks staged(const DevicePages& pages) const {
    return {.pages = pages.cache.bound(),
            .rows = Rows::slots(slots.data()),
            .blocks = cache.bound(),
            .block_count = cache.layout().block_count,
            .is_page_locked = is_page_locked};
  }
  std::int64_t tokens() const { return cache.layout().slot_count(); }

  TestCache cache;
  std::vector<std::int64_t> slots;
  bool is_page_locked = false;
};

}  // namespace kv
