#include "client/c/c_arguments.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "client/c/c_status.h"
#include "index/name_groups.h"

namespace kv::c_api {
namespace {

/// The caller's list as our type, without a copy: both are 16 bytes, as asserted.
std::span<const ExtraDigest> extras_of(const kvs_extra* extras, std::size_t count) {
  static_assert(sizeof(kvs_extra) == sizeof(ExtraDigest) && alignof(kvs_extra) == alignof(ExtraDigest));
  return {reinterpret_cast<const ExtraDigest*>(extras), count};
}

/// NULL, although counted.
bool is_missing(const void* list, std::size_t count) { return list == nullptr && count > 0; }

/// An address for each block. Null is refused here, in the caller's call; later it would crash the I/O thread.
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

/// From the options of the three set calls.
template <class SetOptions>
int read_groups(const SetOptions& own, std::span<const std::uint32_t>& group_counts) {
  if (is_missing(own.group_counts, own.group_count)) return fail(KVS_BAD_REQUEST, "group_counts is NULL");
  group_counts = {own.group_counts, own.group_count};
  return KVS_OK;
}

}  // namespace

std::chrono::microseconds microseconds(std::uint64_t count) {
  constexpr std::uint64_t kMax = 24ull * 3600 * 1'000'000;  // the client's limit
  // Cut to one over the limit: still refused, and cannot overflow when added to a time.
  return std::chrono::microseconds(std::min(count, kMax + 1));
}

TraceContext& trace_of_thread() noexcept {
  thread_local TraceContext trace;
  return trace;
}

int read_chain(const kvs_hash* hashes, std::size_t count, Hashes& chain) {
  if (is_missing(hashes, count)) return fail(KVS_BAD_REQUEST, "hashes is NULL");
  chain = hashes_of(hashes, count);
  return KVS_OK;
}

int read_context_time(std::uint64_t ttl_us, int sliding, std::uint64_t until_us, ContextTime& life) {
  constexpr std::uint64_t kLast = 9'000'000'000'000'000;  // in the year 2255: fits in nanoseconds
  if ((ttl_us > 0) == (until_us > 0) || ttl_us > kLast || until_us > kLast || (sliding != 0 && ttl_us == 0))
    return fail(KVS_BAD_REQUEST, "ttl_us, or until_us, and not both; sliding goes with ttl_us");
  life.ttl = std::chrono::microseconds(ttl_us);  // may exceed a day
  life.is_sliding = sliding != 0;
  if (until_us > 0) life.until = std::chrono::system_clock::time_point(std::chrono::microseconds(until_us));
  return KVS_OK;
}

int read_priority(int priority, std::optional<std::uint8_t>& wanted) {
  if (priority > 9) return fail(KVS_BAD_REQUEST, "priority: " + std::to_string(priority) + ", allowed are 0 to 9");
  if (priority >= 0) wanted = static_cast<std::uint8_t>(priority);
  return KVS_OK;
}

int read_names(const kvs_hash* hashes, std::size_t count, std::span<const std::uint32_t> group_counts, Hashes& names) {
  if (const int bad = read_chain(hashes, count, names); bad != KVS_OK) return bad;
  // The client refuses them too, but without a text.
  const std::string why = check_groups(names, group_counts);
  return why.empty() ? KVS_OK : fail(KVS_BAD_REQUEST, why);
}

int read_blocks(void* const* blocks, std::size_t count, std::size_t block_bytes, BlockList<std::byte>& list) {
  return read_addresses(blocks, count, block_bytes, list);
}

int read_blocks(const void* const* blocks, std::size_t count, std::size_t block_bytes,
                BlockList<const std::byte>& list) {
  return read_addresses(blocks, count, block_bytes, list);
}

int read_rooms(void* const* blocks, const std::size_t* rooms, std::size_t count, std::size_t bytes_max,
               BlockList<std::byte>& list) {
  if (is_missing(rooms, count)) return fail(KVS_BAD_REQUEST, "rooms is NULL");
  if (const int bad = read_addresses(blocks, count, bytes_max, list); bad != KVS_OK) return bad;
  // 0 is allowed: a block named without room is reported as too long, with its length.
  for (std::size_t i = 0; i < count; ++i) list[i] = list[i].first(std::min(rooms[i], bytes_max));
  return KVS_OK;
}

int read_lengths(const void* const* blocks, const std::size_t* lengths, std::size_t count, std::size_t bytes_max,
                 BlockList<const std::byte>& list) {
  if (is_missing(lengths, count)) return fail(KVS_BAD_REQUEST, "lengths is NULL");
  if (const int bad = read_addresses(blocks, count, bytes_max, list); bad != KVS_OK) return bad;
  for (std::size_t i = 0; i < count; ++i) {
    // With its index: a set call may have thousands of blocks.
    if (lengths[i] == 0 || lengths[i] > bytes_max) {
      return fail(KVS_BAD_REQUEST, "lengths[" + std::to_string(i) + "]: " + std::to_string(lengths[i]) + ", not 1.." +
                                       std::to_string(bytes_max) + ", the set's block_bytes_max");
    }
    list[i] = list[i].first(lengths[i]);
  }
  return KVS_OK;
}

namespace {
int read_reuse(std::uint64_t given, ReuseHint& hint) {
  if (given > kReuseHintMax) {
    return fail(KVS_BAD_REQUEST, "reuse is " + std::to_string(given) + ", allowed are 0 to " +
                                     std::to_string(kReuseHintMax) + " (KVS_REUSE_...)");
  }
  hint = static_cast<ReuseHint>(given);
  return KVS_OK;
}
}  // namespace

int read_match(const kvs_match_options* given, MatchOptions& options) {
  kvs_match_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.token_ids, own.token_count)) return fail(KVS_BAD_REQUEST, "token_ids is NULL");
  if (is_missing(own.extras, own.extra_count)) return fail(KVS_BAD_REQUEST, "extras is NULL");
  if (const int bad = read_reuse(own.reuse, options.reuse); bad != KVS_OK) return bad;
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = own.lease != 0;
  options.prefetch = own.prefetch != 0;
  options.token_ids = {own.token_ids, own.token_count};
  options.extras = extras_of(own.extras, own.extra_count);
  return KVS_OK;
}

// The lists of the options are borrowed. A blocking call ends before they may go; a submit copies those it keeps.
int read_get(const kvs_get_options* given, GetOptions& options) {
  kvs_get_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (is_missing(own.segment_ends, own.segment_count)) return fail(KVS_BAD_REQUEST, "segment_ends is NULL");
  if (is_missing(own.checksums, own.checksum_count)) return fail(KVS_BAD_REQUEST, "checksums is NULL");
  options.control.trace = trace_of_thread();
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
  if (const int bad = read_reuse(own.reuse, options.reuse); bad != KVS_OK) return bad;
  options.trace = trace_of_thread();
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
  if (const int bad = read_reuse(own.reuse, options.reuse); bad != KVS_OK) return bad;
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.token_ids = {own.token_ids, own.token_count};
  options.extras = extras_of(own.extras, own.extra_count);
  options.checksums = {own.checksums, own.checksum_count};
  return KVS_OK;
}

int read_match_set(const kvs_match_set_options* given, SetMatchOptions& options) {
  kvs_match_set_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (const int bad = read_groups(own, options.group_counts); bad != KVS_OK) return bad;
  if (const int bad = read_reuse(own.reuse, options.reuse); bad != KVS_OK) return bad;
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = own.lease != 0;
  options.prefetch = own.prefetch != 0;
  return KVS_OK;
}

int read_get_set(const kvs_get_set_options* given, SetGetOptions& options) {
  kvs_get_set_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (const int bad = read_groups(own, options.group_counts); bad != KVS_OK) return bad;
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = Lease{own.lease};
  options.memory_only = own.memory_only != 0;
  return KVS_OK;
}

int read_put_set(const kvs_put_set_options* given, SetPutOptions& options) {
  kvs_put_set_options own;
  if (const int bad = read_struct(given, &own); bad != KVS_OK) return bad;
  if (const int bad = read_groups(own, options.group_counts); bad != KVS_OK) return bad;
  if (const int bad = read_reuse(own.reuse, options.reuse); bad != KVS_OK) return bad;
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  return KVS_OK;
}

}  // namespace kv::c_api
