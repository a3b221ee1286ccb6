// The file that keeps named contexts over a restart, sealed and in plain text. A checksum that nobody guesses stands
// before the rest: so what follows the head is tried with a right one, too.
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "index/block_hash.h"
#include "store/contexts/context_file.h"
#include "store/node/disk/files/kept_file.h"
#include "store/store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view given(reinterpret_cast<const char*>(data), size);
  const std::vector<OperatorKeys::Key> keys = {{"k", Secret(std::string(32, 'x'))}};
  if (const auto opened = open_sealed_file(keys, given); !opened) KV_ASSERT(opened.error() == Errc::kBadRequest);
  constexpr std::size_t kHead = 24;
  std::string mended(given);
  if (mended.size() >= kHead) {
    const auto length = static_cast<std::uint64_t>(mended.size() - kHead);
    const BlockHash sum = sha256(std::as_bytes(std::span(mended)).subspan(kHead));
    std::memcpy(mended.data() + 8, &length, sizeof length);
    std::memcpy(mended.data() + 16, sum.bytes.data(), 8);
  }
  const ClockPair now{TimePoint(std::chrono::hours(1)), 1'800'000'000'000'000};
  for (const std::string_view bytes : {given, std::string_view(mended)}) {
    auto file = read_contexts(bytes, now);
    if (!file) {
      KV_ASSERT(file.error() == Errc::kBadRequest && file.error().text.size() < 10000);
      continue;
    }
    const std::string again = write_contexts(file->contexts, now);
    KV_ASSERT(read_contexts(again, now));
    // What was read is taken up as far as there is room.
    StoreConfig config;
    config.arena.capacity_bytes = 1 << 20;
    config.arena.granule_bytes = 4096;
    config.arena.huge_pages = false;
    config.arena.touch = false;
    config.contexts = {.count_max = 8, .blocks_max = 64, .owner_count_max = 4, .owner_blocks_max = 32};
    const auto store = Store::create(config).value();
    std::size_t back = 0;
    for (KeptContext& each : file->contexts)
      back += store->restore_context(std::move(each), now.steady) == ContextDesk::Restored::kBack;
    for (int i = 0; i < 4; ++i) store->tend_contexts(now.steady + std::chrono::hours(1));
    KV_ASSERT(store->context_changes().count <= back && store->check().empty());
  }
  return 0;
}
