#include <string_view>

#include "base/assert.h"
#include "base/text/printable.h"
#include "index/namespace_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto record = NamespaceRecord::parse(text);
  if (!record) {
    const std::string why = record.error().text;
    KV_ASSERT(record.error() == Errc::kBadRequest && !why.empty() && why.size() < 10'000);
    KV_ASSERT(is_utf8(why));  // it goes to a terminal or a log
    for (const unsigned char c : why) KV_ASSERT(c == '\n' || (c >= ' ' && c != 127));
    return 0;
  }
  KV_ASSERT(record->text() == text);  // one namespace has one text
  KV_ASSERT(record->block_bytes() >= 1 && record->block_bytes() <= 1u << 30);
  KV_ASSERT((record->block_size() == 0) == record->is_set());
  const auto again = NamespaceRecord::parse(record->text());
  KV_ASSERT(again && again->id() == record->id());
  return 0;
}
