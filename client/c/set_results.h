// client/c/set_results.h: the outcome of each block of a set, in a C caller's lists.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/client.h"
#include "client/kvstore.h"

namespace kv::c_api {

// `count` is that of the caller's lists, which may be nullptr. A result without elements comes from a call that failed
// before any block: then `error` decides for each.
void write_held(const SetMatchResult& from, std::size_t count, std::uint8_t* held, std::uint32_t* block_bytes);
void write_landed(const SetGetResult& from, error_code error, std::size_t count, kvs_set_block* landed);
void write_outcomes(const SetPutResult& from, std::size_t count, std::uint8_t* outcomes);

}  // namespace kv::c_api
