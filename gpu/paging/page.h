// gpu/paging/page.h: what the paged cache and the plans speak of: pages, and the names of the blocks that lie in them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace kv {

/// GPU memory for one block in the engine's cache: an index into its page array.
enum class PageId : std::int32_t {};

/// Page 0 is nobody's: it stands in page tables where there is no page (left behind by a sliding window). It is never
/// taken, shared, named or freed, and its slots are negative.
inline constexpr PageId kNullPage{0};

inline constexpr std::size_t page_index(PageId page) { return static_cast<std::size_t>(page); }
inline constexpr PageId page_at(std::size_t index) { return static_cast<PageId>(index); }

/// What a block is called inside one engine: its block hash, and the cache group of the layers whose bytes it holds
/// (full attention, sliding window, draft model: each keeps blocks of its own for the same tokens). An engine that
/// serves several models or adapters has them in the hash.
struct BlockName {
  std::array<std::byte, 32> hash{};
  std::uint32_t group = 0;
  friend bool operator==(const BlockName&, const BlockName&) = default;
};

}  // namespace kv

template <>
struct std::hash<kv::BlockName> {
  /// A block hash is uniform already; the odd factor keeps the groups of one hash apart.
  std::size_t operator()(const kv::BlockName& name) const noexcept {
    std::uint64_t prefix;
    std::memcpy(&prefix, name.hash.data(), sizeof prefix);
    return prefix + name.group * std::uint64_t{0x9E3779B97F4A7C15};
  }
};
