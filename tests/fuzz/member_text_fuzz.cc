#include <string_view>

#include "base/assert.h"
#include "store/node/membership/member_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const auto member = read_member({reinterpret_cast<const char*>(data), size});
  if (!member) {
    KV_ASSERT(member.error() == Errc::kBadRequest && member.error().text.size() < 10000);
    return 0;
  }
  KV_ASSERT(check_member(*member).empty());
  const auto again = read_member(write_member(*member));
  KV_ASSERT(again && *again == *member);
  return 0;
}
