#include <cstdio>
#include <string>

#include "base/assert.h"
#include "store/node/status/tree_query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const auto scope = read_tree_query({reinterpret_cast<const char*>(data), size});
  if (!scope) return 0;
  KV_ASSERT(scope->space || scope->top == kNoBlock);
  std::string text = scope->tier == BlockTier::kDisk ? "tier=disk" : "tier=memory";
  if (scope->space) text += "&space=" + std::to_string(static_cast<std::uint64_t>(*scope->space));
  if (scope->top != kNoBlock) {
    char name[32];
    std::snprintf(name, sizeof name, "&name=%llx", static_cast<unsigned long long>(scope->top_name));
    text += "&top=" + std::to_string(static_cast<std::uint32_t>(scope->top)) + name;
  }
  const auto again = read_tree_query(text);
  KV_ASSERT(again && again->tier == scope->tier && again->space == scope->space && again->top == scope->top &&
            again->top_name == scope->top_name);
  return 0;
}
