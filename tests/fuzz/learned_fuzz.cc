// The file that keeps what a node has learned. A checksum that nobody guesses stands before the rest: so what follows
// the head is tried with a right one, too.
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "index/block_hash.h"
#include "store/policy/yield_counts.h"
#include "store/policy/yield_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view given(reinterpret_cast<const char*>(data), size);
  constexpr std::size_t kHead = 20;
  std::string mended(given);
  if (mended.size() >= kHead) {
    const auto length = static_cast<std::uint32_t>(mended.size() - kHead);
    const BlockHash sum = sha256(std::as_bytes(std::span(mended)).subspan(kHead));
    std::memcpy(mended.data() + 8, &length, sizeof length);
    std::memcpy(mended.data() + 12, sum.bytes.data(), 8);
  }
  for (const std::string_view bytes : {given, std::string_view(mended)}) {
    const auto counts = read_learned(bytes);
    if (!counts) {
      KV_ASSERT(counts.error() == Errc::kBadRequest && counts.error().text.size() < 10000);
      continue;
    }
    KV_ASSERT(read_learned(write_learned(*counts)));
    if (counts->unit < 1) continue;
    // What was read is learned from, whatever memory there is.
    YieldPolicy policy(1);
    policy.set_before(counts->unit, counts->classes);
    for (const std::uint64_t capacity : {std::uint64_t{300}, std::uint64_t{40'000}}) {
      policy.set_capacity(capacity);
      while (policy.learn()) {
      }
      for (std::uint32_t i = 0; i < YieldTable::kClassCount; ++i) {
        const double yield = policy.table()->yield(i, 1000);
        KV_ASSERT(yield >= 0 && yield < 1e30);  // and a number
      }
    }
  }
  return 0;
}
