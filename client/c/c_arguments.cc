#include "client/c/c_arguments.h"

#include <algorithm>

#include "base/assert.h"
#include "client/c/c_status.h"

namespace kv::c_api {
namespace {

std::span<const ExtraDigest> extras_of(const kvs_extra* extras, std::size_t count) {
  static_assert(sizeof(kvs_extra) == sizeof(ExtraDigest) && alignof(kvs_extra) == alignof(ExtraDigest));
  return {reinterpret_cast<const ExtraDigest*>(extras), count};
}

/// A list that is counted but not there would be read.
bool is_missing(const void* list, std::size_t count) { return list == nullptr && count > 0; }

template <class Byte, class Address>
int read_addresses(Address* blocks, std::size_t count, std::size_t block_bytes, BlockList<Byte>& list) {
  if (is_missing(blocks, count)) return fail(KVS_BAD_REQUEST, "blocks is NULL");
  list.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (blocks[i] == nullptr) return fail(KVS_BAD_REQUEST, "a block pointer is NULL");
    list[i] = {static_cast<Byte*>(blocks[i]), block_bytes};
  }
  KV_ASSERT(list.size() == count);
  return KVS_OK;
}

}  // namespace

std::chrono::microseconds microseconds(std::uint64_t count) {
  constexpr std::uint64_t kMax = 24ull * 3600 * 1'000'000;  // more is refused by the client
  return std::chrono::microseconds(std::min(count, kMax + 1));
}

int read_chain(const kvs_hash* hashes, std::size_t count, std::span<const BlockHash>& chain) {
  if (is_missing(hashes, count)) return fail(KVS_BAD_REQUEST, "hashes is NULL");
  chain = hashes_of(hashes, count);
  return KVS_OK;
}

int read_blocks(void* const* blocks, std::size_t count, std::size_t block_bytes, BlockList<std::byte>& list) {
  return read_addresses(blocks, count, block_bytes, list);
}

int read_blocks(const void* const* blocks, std::size_t count, std::size_t block_bytes,
                BlockList<const std::byte>& list) {
  return read_addresses(blocks, count, block_bytes, list);
}

int read_match(const kvs_match_options* given, MatchOptions& options) {
  kvs_match_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.token_ids, own.token_count)) return fail(KVS_BAD_REQUEST, "token_ids is NULL");
  if (is_missing(own.extras, own.extra_count)) return fail(KVS_BAD_REQUEST, "extras is NULL");
  options.deadline = microseconds(own.deadline_us);
  options.lease = own.lease != 0;
  options.prefetch = own.prefetch != 0;
  options.token_ids = {own.token_ids, own.token_count};
  options.extras = extras_of(own.extras, own.extra_count);
  return KVS_OK;
}

int read_get(const kvs_get_options* given, GetOptions& options) {
  kvs_get_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.segment_ends, own.segment_count)) return fail(KVS_BAD_REQUEST, "segment_ends is NULL");
  if (is_missing(own.checksums, own.checksum_count)) return fail(KVS_BAD_REQUEST, "checksums is NULL");
  options.deadline = microseconds(own.deadline_us);
  options.lease = Lease{own.lease};
  options.segment_ends = {own.segment_ends, own.segment_count};
  options.on_segment = {own.on_segment, own.context};
  options.memory_only = own.memory_only != 0;
  options.checksums = {own.checksums, own.checksum_count};
  return KVS_OK;
}

int read_load(const kvs_load_options* given, LoadOptions& options) {
  kvs_load_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.segment_ends, own.segment_count)) return fail(KVS_BAD_REQUEST, "segment_ends is NULL");
  if (is_missing(own.checksums, own.checksum_count)) return fail(KVS_BAD_REQUEST, "checksums is NULL");
  options.deadline = microseconds(own.deadline_us);
  options.block_count_min = own.block_count_min;
  options.tell_match = own.tell_match != 0;
  options.segment_ends = {own.segment_ends, own.segment_count};
  options.on_segment = {own.on_segment, own.context};
  options.memory_only = own.memory_only != 0;
  options.checksums = {own.checksums, own.checksum_count};
  return KVS_OK;
}

int read_put(const kvs_put_options* given, PutOptions& options) {
  kvs_put_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.token_ids, own.token_count)) return fail(KVS_BAD_REQUEST, "token_ids is NULL");
  if (is_missing(own.extras, own.extra_count)) return fail(KVS_BAD_REQUEST, "extras is NULL");
  if (is_missing(own.checksums, own.checksum_count)) return fail(KVS_BAD_REQUEST, "checksums is NULL");
  options.deadline = microseconds(own.deadline_us);
  options.token_ids = {own.token_ids, own.token_count};
  options.extras = extras_of(own.extras, own.extra_count);
  options.checksums = {own.checksums, own.checksum_count};
  return KVS_OK;
}

}  // namespace kv::c_api
