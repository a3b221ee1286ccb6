// What an operator's request and a configuration file may hold: any bytes. A request is read or refused; a file with an
// option set has that option once, and everything else as it was.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "store/node/options/config_file.h"
#include "store/node/options/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto assignments = kv::parse_assignments(text)) {
    for (std::size_t i = 0; i < assignments->size(); ++i) {
      KV_ASSERT(!(*assignments)[i].values.empty());
      for (std::size_t k = 0; k < i; ++k) KV_ASSERT((*assignments)[i].name != (*assignments)[k].name);
    }
  }
  const std::string once = kv::with_options(text, {{"capacity", {"8GiB"}}, {"disk-path", {"/a", "/b"}, true}});
  const std::string twice = kv::with_options(once, {{"capacity", {"8GiB"}}, {"disk-path", {"/a", "/b"}, true}});
  KV_ASSERT(once == twice);
  KV_ASSERT(once.find("capacity = \"8GiB\"") != std::string::npos);
  return 0;
}
