#include <string_view>

#include "base/assert.h"
#include "transport/trace_context.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto context = TraceContext::parse(text)) {
    const std::string again = context->text();
    KV_ASSERT(context->is_set() && size >= TraceContext::kTextBytes && again.size() == TraceContext::kTextBytes);
    KV_ASSERT(again.substr(2) == text.substr(2, TraceContext::kTextBytes - 2));
    KV_ASSERT(TraceContext::parse(again) == context);
  }
  if (size >= TraceContext::kBytes) {  // as they come from the wire
    const TraceContext context = TraceContext::from_bytes(data);
    for (const char c : context.text()) KV_ASSERT(c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
    KV_ASSERT(!context.is_set() || TraceContext::parse(context.text()) == context);
  }
  return 0;
}
