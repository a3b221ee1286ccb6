// client/c/set_results.h: what became of each block of a set, in the lists of a caller of the C ABI.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/client.h"
#include "client/kvstore.h"

namespace kv::c_api {

// `count` is that of the caller's lists. A result without elements is that of a call that failed before any block was
// looked at: then each gets what `error` says of it. Lists may be nullptr.
void write_held(const SetMatchResult& from, std::size_t count, std::uint8_t* held, std::uint32_t* block_bytes);
void write_landed(const SetGetResult& from, error_code error, std::size_t count, kvs_set_block* landed);
void write_outcomes(const SetPutResult& from, std::size_t count, std::uint8_t* outcomes);

}  // namespace kv::c_api
