// client/c/c_arguments.h: a call's arguments in the client's types, after checks that must precede any use: null
// pointers and the sizes of structs.
#pragma once

#include <boost/container/small_vector.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "client/c/c_status.h"
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

/// Block size of an open namespace, which `argument` names. `calls`: a BlockingClient or a CompletionQueue.
template <class Calls>
std::size_t block_bytes_of(const Calls& calls, kvs_space space, const char* argument) {
  const std::size_t bytes = calls.block_bytes(Space{space});
  if (bytes == 0) refuse(KVS_BAD_REQUEST, std::string(argument) + ": not opened by this client");
  return bytes;
}

// All refuse wrong arguments. `blocks` are `count` addresses of `block_bytes` each.
Hashes read_chain(const kvs_hash* hashes, std::size_t count);
/// The names of a set's blocks; checks that `group_counts` cuts them into groups.
Hashes read_names(const kvs_hash* hashes, std::size_t count, std::span<const std::uint32_t> group_counts);
BlockList<std::byte> read_blocks(void* const* blocks, std::size_t count, std::size_t block_bytes);
BlockList<const std::byte> read_blocks(const void* const* blocks, std::size_t count, std::size_t block_bytes);
/// For a set: block i has sizes[i] bytes. Room beyond `bytes_max`, the set's largest block, is cut off, since it cannot
/// be filled; a length beyond it is an error.
BlockList<std::byte> read_rooms(void* const* blocks, const std::size_t* rooms, std::size_t count,
                                std::size_t bytes_max);
BlockList<const std::byte> read_lengths(const void* const* blocks, const std::size_t* lengths, std::size_t count,
                                        std::size_t bytes_max);
MatchOptions read_match(const kvs_match_options* given);
GetOptions read_get(const kvs_get_options* given);
LoadOptions read_load(const kvs_load_options* given);
PutOptions read_put(const kvs_put_options* given);
SetMatchOptions read_match_set(const kvs_match_set_options* given);
SetGetOptions read_get_set(const kvs_get_set_options* given);
SetPutOptions read_put_set(const kvs_put_set_options* given);
ContextTime read_context_time(std::uint64_t ttl_us, int sliding, std::uint64_t until_us);
/// Negative: not given.
std::optional<std::uint8_t> read_priority(int priority);

}  // namespace kv::c_api
