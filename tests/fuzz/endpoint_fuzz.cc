#include <string_view>

#include "base/assert.h"
#include "transport/endpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto endpoint = parse_endpoint(text);
  if (!endpoint) {
    KV_ASSERT(endpoint.error() == Errc::kBadRequest && !endpoint.error().text.empty() &&
              endpoint.error().text.size() < 1000);
    return 0;
  }
  KV_ASSERT(endpoint->to_string() == text || endpoint->to_string() + "/" == text);  // as in a URL
  const auto again = parse_endpoint(endpoint->to_string());
  KV_ASSERT(again && *again == *endpoint);
  (void)endpoint->is_loopback();
  return 0;
}
