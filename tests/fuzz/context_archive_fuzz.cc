// A context as a file, of anybody's bytes. SHA-256 and checksums that nobody guesses stand in it: so what they cover is
// tried with right ones, too.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "client/archive/archive_form.h"
#include "tests/client/text_source.h"

namespace {

using namespace kv;

void put_digest(std::string& text, std::size_t at) {
  const BlockHash digest = sha256(std::as_bytes(std::span(text)).first(at));
  std::memcpy(text.data() + at, digest.bytes.data(), digest.bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view given(reinterpret_cast<const char*>(data), size);
  std::string mended(given);
  std::uint32_t head_bytes = 0;
  if (mended.size() >= 12) std::memcpy(&head_bytes, mended.data() + 8, sizeof head_bytes);
  if (head_bytes >= 32 && head_bytes <= mended.size()) put_digest(mended, head_bytes - 32);
  if (mended.size() >= 32) put_digest(mended, mended.size() - 32);
  for (const std::string_view text : {given, std::string_view(mended)}) {
    const auto head = read_archive_head(text.substr(0, std::min<std::size_t>(text.size(), head_bytes)));
    if (head) {
      KV_ASSERT(wrong_head(*head).empty());
      KV_ASSERT(write_archive_head(*head) == text.substr(0, head_bytes));
    } else {
      KV_ASSERT(!head.error().text.empty() && head.error().text.size() < 10'000);
    }
    TextSource source(text, 1 + size % 97);
    const auto archive = check_archive(source, nullptr);
    if (!archive) {
      KV_ASSERT(!archive.error().text.empty() && archive.error().text.size() < 10'000);
      continue;
    }
    KV_ASSERT(archive->head.file_bytes(archive->head_bytes) == text.size());
    KV_ASSERT(archive->checksums.size() == archive->head.hashes.size() * archive->head.stripes());
  }
  return 0;
}
