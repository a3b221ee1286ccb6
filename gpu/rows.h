// gpu/rows.h: the slot of each row of a call. A row is one token; a slot is block * block_tokens + offset.
//
// Engines name rows by slot mappings, padded block tables, CSR page tables with positions, ranges. A device supports
// slot(row) alone, so the rest is first converted to slots: gpu/plans/row_plan.h.
#pragma once

#include <cstdint>

namespace kv {

/// Largest block id of any cache: even 2^32 blocks of one byte are 4 GiB, and real blocks have thousands of bytes. Ids
/// up to here times the tokens of a block (2^31 at most) do not wrap.
inline constexpr std::int64_t kBlockIdMax = (std::int64_t{1} << 32) - 1;

/// Row r's slot. Borrows its array until the call is done (on a device: until the stream has passed it).
struct Rows {
  enum class Kind : std::uint8_t { kRange, kSlots32, kSlots64, kBlocks32, kBlocks64 };

  Kind kind = Kind::kRange;
  const void* ids = nullptr;      ///< Slots or blocks; a negative one: skip its row or rows.
  std::int64_t id_step = 1;       ///< Between ids: 2 for one column of pairs, 0 to repeat one id.
  std::int64_t first = 0;         ///< kRange: slot(row) = first + row.
  std::int64_t block_tokens = 1;  ///< kBlocks*: rows of a block.

  static Rows range(std::int64_t first = 0) { return {.first = first}; }
  static Rows slots(const std::int32_t* slots) { return {.kind = Kind::kSlots32, .ids = slots}; }
  static Rows slots(const std::int64_t* slots) { return {.kind = Kind::kSlots64, .ids = slots}; }
  /// Whole blocks: rows [i * block_tokens, (i + 1) * block_tokens) are block ids[i].
  static Rows blocks(const std::int32_t* blocks, std::int64_t block_tokens, std::int64_t step = 1) {
    return {.kind = Kind::kBlocks32, .ids = blocks, .id_step = step, .block_tokens = block_tokens};
  }
  static Rows blocks(const std::int64_t* blocks, std::int64_t block_tokens, std::int64_t step = 1) {
    return {.kind = Kind::kBlocks64, .ids = blocks, .id_step = step, .block_tokens = block_tokens};
  }

  constexpr bool is_blocks() const { return kind == Kind::kBlocks32 || kind == Kind::kBlocks64; }
  /// The slot, or a negative number: skip the row. The caller must check for a slot beyond the cache.
  constexpr std::int64_t slot(std::int64_t row) const {
    switch (kind) {
      case Kind::kRange: return first + row;
      case Kind::kSlots32: return static_cast<const std::int32_t*>(ids)[row * id_step];
      case Kind::kSlots64: return static_cast<const std::int64_t*>(ids)[row * id_step];
      case Kind::kBlocks32: return in_block(static_cast<const std::int32_t*>(ids)[row / block_tokens * id_step], row);
      case Kind::kBlocks64: return in_block(static_cast<const std::int64_t*>(ids)[row / block_tokens * id_step], row);
    }
    return -1;
  }

  /// These rows from `row` on. For blocks, `row` must begin one.
  constexpr Rows after(std::int64_t row) const {
    Rows rest = *this;
    switch (kind) {
      case Kind::kRange: rest.first += row; break;
      case Kind::kSlots32: rest.ids = static_cast<const std::int32_t*>(ids) + row * id_step; break;
      case Kind::kSlots64: rest.ids = static_cast<const std::int64_t*>(ids) + row * id_step; break;
      case Kind::kBlocks32: rest.ids = static_cast<const std::int32_t*>(ids) + row / block_tokens * id_step; break;
      case Kind::kBlocks64: rest.ids = static_cast<const std::int64_t*>(ids) + row / block_tokens * id_step; break;
    }
    return rest;
  }

 private:
  constexpr std::int64_t in_block(std::int64_t block, std::int64_t row) const {
    return block < 0 || block > kBlockIdMax ? -1 : block * block_tokens + row % block_tokens;
  }
};

}  // namespace kv
