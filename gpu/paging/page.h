// gpu/paging/page.h: pages, and the names of the blocks in them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace kv {

/// GPU memory for one block in the engine's cache: an index into its page array.
enum class PageId : std::int32_t {};

/// Page 0 belongs to no sequence: it fills page tables where a page is missing (released by a sliding window). It is
/// never taken, shared, named or freed, and its slots are negative.
inline constexpr PageId kNullPage{0};

inline constexpr std::size_t page_index(PageId page) { return static_cast<std::size_t>(page); }
inline constexpr PageId page_at(std::size_t index) { return static_cast<PageId>(index); }

/// A block's name within one engine: its block hash, and the cache group of the layers whose bytes it holds (full
/// attention, sliding window, draft model: each keeps separate blocks for the same tokens). An engine that serves
/// several models or adapters includes them in the hash.
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
