// The end of a table. The first byte: of a metaindex of that length the checksum is set right. The second and third:
// which byte of a sound footer is then changed, and how. The rest is the file. No changed footer is sound.
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "store/node/disk/rocks/table_footer.h"
#include "tests/fuzz/input.h"

namespace {

using namespace kv;

TableEnd look(const std::string& file) {
  const std::size_t tail_bytes = std::min(file.size(), kTableTailBytes);
  return look_at_table_end(std::string_view(file).substr(file.size() - tail_bytes), file.size());
}

/// Where most inputs would fail.
void mend_checksum(std::string& file, std::size_t metaindex_bytes) {
  if (file.size() < kTableFooterBytes + 5 + metaindex_bytes) return;
  const std::size_t at = file.size() - kTableFooterBytes - 4;
  const std::uint64_t sum = XXH64(file.data() + at - 1 - metaindex_bytes, metaindex_bytes + 1, 0);
  for (int i = 0; i < 4; ++i) file[at + i] = static_cast<char>(sum >> (8 * i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::size_t mended_bytes = input.byte();
  const std::size_t changed = input.below(kTableFooterBytes);
  const std::uint8_t flip = input.byte();
  const auto rest = input.take(size);
  std::string file(rest.begin(), rest.end());
  if (mended_bytes > 0) mend_checksum(file, mended_bytes);
  if (look(file) != TableEnd::kSound) return 0;
  char& byte = file[file.size() - kTableFooterBytes + changed];
  byte = static_cast<char>(byte ^ flip);
  KV_ASSERT((look(file) == TableEnd::kSound) == (flip == 0));
  return 0;
}
