#include "client/c/set_results.h"

#include "base/assert.h"
#include "client/c/c_status.h"

namespace kv::c_api {

static_assert(KVS_HELD_NOWHERE == static_cast<int>(Held::kNowhere) &&
              KVS_HELD_IN_MEMORY == static_cast<int>(Held::kInMemory) &&
              KVS_HELD_ON_DISK == static_cast<int>(Held::kOnDisk));
static_assert(KVS_PUT_REFUSED == static_cast<int>(SetPutBlock::kRefused) &&
              KVS_PUT_STORED == static_cast<int>(SetPutBlock::kStored) &&
              KVS_PUT_ALREADY_STORED == static_cast<int>(SetPutBlock::kAlreadyStored) &&
              KVS_PUT_CONFLICT == static_cast<int>(SetPutBlock::kConflict));

void write_held(const SetMatchResult& from, std::size_t count, std::uint8_t* held, std::uint32_t* block_bytes) {
  const bool is_empty = from.held.empty();
  KV_ASSERT(from.held.size() == from.block_bytes.size() && (is_empty || from.held.size() == count));
  for (std::size_t i = 0; i < count && held != nullptr; ++i) {
    held[i] = is_empty ? std::uint8_t{KVS_HELD_NOWHERE} : static_cast<std::uint8_t>(from.held[i]);
  }
  for (std::size_t i = 0; i < count && block_bytes != nullptr; ++i) {
    block_bytes[i] = is_empty ? 0 : from.block_bytes[i];
  }
}

void write_landed(const SetGetResult& from, error_code error, std::size_t count, kvs_set_block* landed) {
  KV_ASSERT(from.blocks.empty() || from.blocks.size() == count);
  for (std::size_t i = 0; i < count && landed != nullptr; ++i) {
    const SetGetBlock block = from.blocks.empty() ? SetGetBlock{.why = error} : from.blocks[i];
    KV_ASSERT(!block.has_landed || (!block.why && block.block_bytes > 0));
    landed[i] = {.status = block.has_landed ? KVS_OK
                           : block.why      ? status_of(block.why)
                                            : KVS_NOT_FOUND,
                 .block_bytes = block.block_bytes};
  }
}

void write_outcomes(const SetPutResult& from, std::size_t count, std::uint8_t* outcomes) {
  KV_ASSERT(from.blocks.empty() || from.blocks.size() == count);
  for (std::size_t i = 0; i < count && outcomes != nullptr; ++i) {
    outcomes[i] = from.blocks.empty() ? std::uint8_t{KVS_PUT_REFUSED} : static_cast<std::uint8_t>(from.blocks[i]);
  }
}

}  // namespace kv::c_api
