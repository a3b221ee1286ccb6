#include "client/c/c_arguments.h"

#include <algorithm>
#include <string>

#include "index/name_groups.h"

namespace kv::c_api {
namespace {

/// The caller's list as our type, without a copy: both are 16 bytes, as asserted.
std::span<const ExtraDigest> extras_of(const kvs_extra* extras, std::size_t count) {
  static_assert(sizeof(kvs_extra) == sizeof(ExtraDigest) && alignof(kvs_extra) == alignof(ExtraDigest));
  return {reinterpret_cast<const ExtraDigest*>(extras), count};
}

void refuse_missing(const char* name, const void* list, std::size_t count) {
  if (list == nullptr && count > 0) refuse(KVS_BAD_REQUEST, std::string(name) + " is NULL");
}

/// An address for each block. Null is refused here, in the caller's call; later it would crash the I/O thread.
template <class Byte, class Address>
BlockList<Byte> read_addresses(Address* blocks, std::size_t count, std::size_t block_bytes) {
  refuse_missing("blocks", blocks, count);
  BlockList<Byte> list(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (blocks[i] == nullptr) refuse(KVS_BAD_REQUEST, "a block pointer is NULL");
    list[i] = {static_cast<Byte*>(blocks[i]), block_bytes};
  }
  return list;
}

/// From the options of the three set calls.
template <class SetOptions>
std::span<const std::uint32_t> read_groups(const SetOptions& own) {
  refuse_missing("group_counts", own.group_counts, own.group_count);
  return {own.group_counts, own.group_count};
}

/// Tokens and extras, from the options of a match or a put.
template <class Own, class Options>
void read_tokens(const Own& own, Options& options) {
  refuse_missing("token_ids", own.token_ids, own.token_count);
  refuse_missing("extras", own.extras, own.extra_count);
  options.token_ids = {own.token_ids, own.token_count};
  options.extras = extras_of(own.extras, own.extra_count);
}

/// Segments and checksums, from the options of a get or a load.
template <class Own, class Options>
void read_segments(const Own& own, Options& options) {
  refuse_missing("segment_ends", own.segment_ends, own.segment_count);
  refuse_missing("checksums", own.checksums, own.checksum_count);
  options.segment_ends = {own.segment_ends, own.segment_count};
  options.on_segment = {own.on_segment, own.context};
  options.memory_only = own.memory_only != 0;
  options.checksums = {own.checksums, own.checksum_count};
}

ReuseHint read_reuse(std::uint64_t given) {
  if (given > kReuseHintMax) {
    refuse(KVS_BAD_REQUEST, "reuse is " + std::to_string(given) + ", allowed are 0 to " +
                                std::to_string(kReuseHintMax) + " (KVS_REUSE_...)");
  }
  return static_cast<ReuseHint>(given);
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

Hashes read_chain(const kvs_hash* hashes, std::size_t count) {
  refuse_missing("hashes", hashes, count);
  return hashes_of(hashes, count);
}

ContextTime read_context_time(std::uint64_t ttl_us, int sliding, std::uint64_t until_us) {
  constexpr std::uint64_t kLast = 9'000'000'000'000'000;  // in the year 2255: fits in nanoseconds
  if ((ttl_us > 0) == (until_us > 0) || ttl_us > kLast || until_us > kLast || (sliding != 0 && ttl_us == 0))
    refuse(KVS_BAD_REQUEST, "ttl_us, or until_us, and not both; sliding goes with ttl_us");
  ContextTime life;
  life.ttl = std::chrono::microseconds(ttl_us);  // may exceed a day
  life.is_sliding = sliding != 0;
  if (until_us > 0) life.until = std::chrono::system_clock::time_point(std::chrono::microseconds(until_us));
  return life;
}

std::optional<std::uint8_t> read_priority(int priority) {
  if (priority > 9) refuse(KVS_BAD_REQUEST, "priority: " + std::to_string(priority) + ", allowed are 0 to 9");
  return priority >= 0 ? std::optional(static_cast<std::uint8_t>(priority)) : std::nullopt;
}

Hashes read_names(const kvs_hash* hashes, std::size_t count, std::span<const std::uint32_t> group_counts) {
  const Hashes names = read_chain(hashes, count);
  // The client refuses them too, but without a text.
  if (const std::string why = check_groups(names, group_counts); !why.empty()) refuse(KVS_BAD_REQUEST, why);
  return names;
}

BlockList<std::byte> read_blocks(void* const* blocks, std::size_t count, std::size_t block_bytes) {
  return read_addresses<std::byte>(blocks, count, block_bytes);
}

BlockList<const std::byte> read_blocks(const void* const* blocks, std::size_t count, std::size_t block_bytes) {
  return read_addresses<const std::byte>(blocks, count, block_bytes);
}

BlockList<std::byte> read_rooms(void* const* blocks, const std::size_t* rooms, std::size_t count,
                                std::size_t bytes_max) {
  refuse_missing("rooms", rooms, count);
  auto list = read_addresses<std::byte>(blocks, count, bytes_max);
  // 0 is allowed: a block named without room is reported as too long, with its length.
  for (std::size_t i = 0; i < count; ++i) list[i] = list[i].first(std::min(rooms[i], bytes_max));
  return list;
}

BlockList<const std::byte> read_lengths(const void* const* blocks, const std::size_t* lengths, std::size_t count,
                                        std::size_t bytes_max) {
  refuse_missing("lengths", lengths, count);
  auto list = read_addresses<const std::byte>(blocks, count, bytes_max);
  for (std::size_t i = 0; i < count; ++i) {
    // With its index: a set call may have thousands of blocks.
    if (lengths[i] == 0 || lengths[i] > bytes_max) {
      refuse(KVS_BAD_REQUEST, "lengths[" + std::to_string(i) + "]: " + std::to_string(lengths[i]) + ", not 1.." +
                                  std::to_string(bytes_max) + ", the set's block_bytes_max");
    }
    list[i] = list[i].first(lengths[i]);
  }
  return list;
}

MatchOptions read_match(const kvs_match_options* given) {
  const auto own = read_struct(given);
  MatchOptions options{};
  read_tokens(own, options);
  options.reuse = read_reuse(own.reuse);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = own.lease != 0;
  options.prefetch = own.prefetch != 0;
  return options;
}

// The lists of the options are borrowed. A blocking call ends before they may go; a submit copies those it keeps.
GetOptions read_get(const kvs_get_options* given) {
  const auto own = read_struct(given);
  GetOptions options{};
  read_segments(own, options);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = Lease{own.lease};
  return options;
}

LoadOptions read_load(const kvs_load_options* given) {
  const auto own = read_struct(given);
  LoadOptions options{};
  read_segments(own, options);
  options.reuse = read_reuse(own.reuse);
  options.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.block_count_min = own.block_count_min;
  options.tell_match = own.tell_match != 0;
  return options;
}

PutOptions read_put(const kvs_put_options* given) {
  const auto own = read_struct(given);
  PutOptions options{};
  read_tokens(own, options);
  refuse_missing("checksums", own.checksums, own.checksum_count);
  options.checksums = {own.checksums, own.checksum_count};
  options.reuse = read_reuse(own.reuse);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  return options;
}

SetMatchOptions read_match_set(const kvs_match_set_options* given) {
  const auto own = read_struct(given);
  SetMatchOptions options{};
  options.group_counts = read_groups(own);
  options.reuse = read_reuse(own.reuse);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = own.lease != 0;
  options.prefetch = own.prefetch != 0;
  return options;
}

SetGetOptions read_get_set(const kvs_get_set_options* given) {
  const auto own = read_struct(given);
  SetGetOptions options{};
  options.group_counts = read_groups(own);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  options.lease = Lease{own.lease};
  options.memory_only = own.memory_only != 0;
  return options;
}

SetPutOptions read_put_set(const kvs_put_set_options* given) {
  const auto own = read_struct(given);
  SetPutOptions options{};
  options.group_counts = read_groups(own);
  options.reuse = read_reuse(own.reuse);
  options.control.trace = trace_of_thread();
  options.deadline = microseconds(own.deadline_us);
  return options;
}

}  // namespace kv::c_api
