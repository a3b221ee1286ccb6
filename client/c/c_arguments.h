// client/c/c_arguments.h: a call's arguments in the client's types, after checks that must precede any use: null
// pointers and the sizes of structs.
#pragma once

#include <boost/container/small_vector.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "client/client.h"
#include "client/completion_queue.h"
#include "client/kvstore.h"

namespace kv::c_api {

std::chrono::microseconds microseconds(std::uint64_t count);

/// This thread's trace, set by kvs_traceparent().
TraceContext& trace_of_thread() noexcept;

inline Hashes hashes_of(const kvs_hash* hashes, std::size_t count) {
  static_assert(sizeof(kvs_hash) == sizeof(BlockHash) && alignof(kvs_hash) == alignof(BlockHash));
  return {reinterpret_cast<const BlockHash*>(hashes), count};
}

/// The blocks of one call; small lists, as in most calls, do not allocate.
template <class Byte>
using BlockList = boost::container::small_vector<std::span<Byte>, 64>;

// Each returns KVS_OK, or fails as a call does. `blocks` are `count` addresses of `block_bytes` each.
int read_chain(const kvs_hash* hashes, std::size_t count, Hashes& chain);
/// The names of a set's blocks; checks that `group_counts` cuts them into groups.
int read_names(const kvs_hash* hashes, std::size_t count, std::span<const std::uint32_t> group_counts, Hashes& names);
int read_blocks(void* const* blocks, std::size_t count, std::size_t block_bytes, BlockList<std::byte>& list);
int read_blocks(const void* const* blocks, std::size_t count, std::size_t block_bytes,
                BlockList<const std::byte>& list);
/// For a set: block i has sizes[i] bytes. Room beyond `bytes_max`, the set's largest block, is cut off, since it cannot
/// be filled; a length beyond it is an error.
int read_rooms(void* const* blocks, const std::size_t* rooms, std::size_t count, std::size_t bytes_max,
               BlockList<std::byte>& list);
int read_lengths(const void* const* blocks, const std::size_t* lengths, std::size_t count, std::size_t bytes_max,
                 BlockList<const std::byte>& list);
int read_match(const kvs_match_options* given, MatchOptions& options);
int read_get(const kvs_get_options* given, GetOptions& options);
int read_load(const kvs_load_options* given, LoadOptions& options);
int read_put(const kvs_put_options* given, PutOptions& options);
int read_match_set(const kvs_match_set_options* given, SetMatchOptions& options);
int read_get_set(const kvs_get_set_options* given, SetGetOptions& options);
int read_context_time(std::uint64_t ttl_us, int sliding, std::uint64_t until_us, ContextTime& life);
/// Negative: not given.
int read_priority(int priority, std::optional<std::uint8_t>& wanted);
int read_put_set(const kvs_put_set_options* given, SetPutOptions& options);

}  // namespace kv::c_api
