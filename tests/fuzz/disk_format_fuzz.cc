// What a disk directory holds besides RocksDB's own bytes: the first byte chooses the decoder, the rest is its input.
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/disk/files/disk_format.h"
#include "store/node/disk/files/operator_keys.h"

namespace {

using namespace kv;

void fuzz_record(std::string_view value) {
  const auto record = decode_record(DiskKey{7}, value);
  if (!record) {
    KV_ASSERT(record.error() == Errc::kCorruptBlock || record.error() == Errc::kUnsupported);
    return;
  }
  KV_ASSERT(record->key == DiskKey{7} && record->block_bytes > 0);
  const std::string again = encode_record(*record);  // one record has one value, unless an earlier version wrote it
  KV_ASSERT(again == value || (again.size() > value.size() && again[0] != value[0]));
}

void fuzz_format(std::string_view text) {
  const auto format = parse_format_text(text);
  if (!format) return;
  KV_ASSERT(text.starts_with(format_text(*format)));
}

/// The size of a value says all: never more bytes than it has, and every block's own size is found.
void fuzz_sizes(std::string_view text) {
  const std::size_t size = text.size() < 4
                               ? text.size()
                               : static_cast<unsigned char>(text[0]) | static_cast<unsigned char>(text[1]) << 8 |
                                     static_cast<unsigned char>(text[2]) << 16;
  if (const auto bytes = block_bytes_of_value(size)) {
    KV_ASSERT(*bytes > 0 && *bytes + 8 * stripe_count(*bytes) == size);
  }
  if (size > 0) {
    KV_ASSERT(block_bytes_of_value(size + 8 * stripe_count(size)) == size);
  }
}

/// One key has one entry: whoever may write the file can write checksums, so the rest must hold too.
void fuzz_wrapped_key(std::string_view entry) {
  std::string summed(entry.substr(0, kWrappedKeyBytes - 8));
  if (summed.size() == kWrappedKeyBytes - 8) {  // or hardly any input would get past the checksum
    const std::uint64_t sum = stripe_checksum(0, 0, std::as_bytes(std::span(summed)));
    for (int i = 0; i < 8; ++i) summed += static_cast<char>(sum >> (8 * i) & 0xff);
  }
  for (const std::string_view each : {entry, std::string_view(summed)}) {
    const auto key = decode_wrapped_key(each);
    if (!key) continue;
    KV_ASSERT(OperatorKeys::is_id(key->wrapped_by));
    KV_ASSERT(encode_wrapped_key(*key) == each);
  }
}

void fuzz_key_file(std::string_view text) {
  const auto keys = OperatorKeys::parse(text);
  if (!keys) {
    KV_ASSERT(keys.error().code == Errc::kBadRequest && !keys.error().text.empty());
    return;
  }
  KV_ASSERT(!keys->empty() && keys->size() <= OperatorKeys::kCountMax);
  for (const OperatorKeys::Key& key : *keys) KV_ASSERT(OperatorKeys::is_id(key.id) && key.bytes.text().size() == 32);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 5) fuzz_wrapped_key(rest);
  if (data[0] == 6) fuzz_key_file(rest);
  if (data[0] == 5 || data[0] == 6) return 0;
  switch (data[0] % 5) {
    case 0: fuzz_record(rest); break;
    case 1: fuzz_format(rest); break;
    case 2: fuzz_sizes(rest); break;
    case 3:
      if (const auto key = decode_key(rest)) {
        const DiskKeyText text = encode_key(*key);
        KV_ASSERT(std::string_view(text.data(), text.size()) == rest);
      }
      break;
    default:
      if (const auto epoch = decode_epoch(rest)) KV_ASSERT(encode_epoch(*epoch) == rest);
      if (const auto place = decode_place(rest)) KV_ASSERT(encode_place(*place) == rest);
  }
  return 0;
}
