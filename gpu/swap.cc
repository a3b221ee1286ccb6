#include "gpu/swap.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace kv {
namespace {

// Between two caches of one layout, a swap needs no kernel: blocks are a few runs of bytes, the copy engines' work.
// Blocks with holes, which belong to other data, and differing layouts are refused: the caller then uses permute().

/// From a block's first byte of the component to one past its last.
std::int64_t reach_bytes(const Component& each) {
  return each.token.last_offset() + each.head.last_offset() + each.feature.last_offset() + element_bytes(each.element);
}
std::int64_t data_bytes(const Component& each) {
  return each.token.extent() * each.heads() * each.features() * element_bytes(each.element);
}

/// Contiguous bytes of every block: one component of one layer, or interleaved ones (K and V; layers in a group).
struct Piece {
  std::size_t component;  ///< The first one in it,
  std::int64_t layer;     ///< and its layer, if one allocation holds all; else 0, and the piece is in each layer.
  std::int64_t offset_bytes;
  std::int64_t bytes;         ///< Of one block.
  std::int64_t filled_bytes;  ///< Bytes of the components in it; equal to `bytes` if there is no hole.
};

/// The pieces of a layout's block in the order of their addresses; nullopt if one has a hole.
std::optional<std::vector<Piece>> pieces_of(const Layout& layout) {
  std::vector<Piece> parts;
  for (std::int64_t layer = 0; layer < (layout.has_all_layers_in_tensor ? layout.layer_count : 1); ++layer) {
    for (std::size_t i = 0; i < layout.components.size(); ++i) {
      const Component& each = layout.components[i];
      parts.push_back(
          {i, layer, each.offset_bytes + layer * each.layer_stride_bytes, reach_bytes(each), data_bytes(each)});
    }
  }
  std::ranges::stable_sort(parts, {}, [&](const Piece& each) {
    return std::pair(layout.components[each.component].tensor, each.offset_bytes);
  });
  std::vector<Piece> pieces;
  for (const Piece& part : parts) {
    const Component& each = layout.components[part.component];
    const Component* first = pieces.empty() ? nullptr : &layout.components[pieces.back().component];
    if (!first || first->tensor != each.tensor ||
        part.offset_bytes >= pieces.back().offset_bytes + pieces.back().bytes) {
      pieces.push_back(part);
      continue;
    }
    Piece& piece = pieces.back();
    piece.bytes = std::max(piece.bytes, part.offset_bytes - piece.offset_bytes + part.bytes);
    piece.filled_bytes += part.filled_bytes;
    if (each.block_stride_bytes != first->block_stride_bytes) return std::nullopt;
  }
  // Elements do not overlap, so bytes that add up leave no hole.
  const bool is_filled = std::ranges::all_of(pieces, [](const Piece& each) { return each.filled_bytes == each.bytes; });
  return is_filled ? std::optional(std::move(pieces)) : std::nullopt;
}

/// Whether blocks have the same bytes in the same places, once their pieces are found.
bool has_equal_blocks(const Layout& a, const Layout& b) {
  return a.block_tokens == b.block_tokens && a.layer_count == b.layer_count &&
         a.has_all_layers_in_tensor == b.has_all_layers_in_tensor &&
         std::ranges::equal(a.components, b.components, [](const Component& x, const Component& y) {
           return x.role == y.role && x.element == y.element && x.tensor == y.tensor && x.token == y.token &&
                  x.head == y.head && x.feature == y.feature;
         });
}

/// Joins pieces that follow one another in the blocks of both layouts, whose pieces are `to` and `from`.
void join_neighbours(std::vector<Piece>& to, std::vector<Piece>& from, const Layout& to_layout,
                     const Layout& from_layout) {
  const auto follows = [](const Piece& first, const Piece& next, const Layout& layout) {
    const Component &a = layout.components[first.component], &b = layout.components[next.component];
    return a.tensor == b.tensor && a.block_stride_bytes == b.block_stride_bytes &&
           next.offset_bytes == first.offset_bytes + first.bytes;
  };
  KV_ASSERT(!to.empty() && to.size() == from.size());
  std::size_t last = 0;
  for (std::size_t i = 1; i < to.size(); ++i) {
    if (follows(to[last], to[i], to_layout) && follows(from[last], from[i], from_layout)) {
      to[last].bytes = from[last].bytes = to[last].bytes + to[i].bytes;
    } else {
      ++last;
      to[last] = to[i];
      from[last] = from[i];
    }
  }
  to.resize(last + 1);
  from.resize(last + 1);
}

void add_copy(CopyList& list, std::byte* to, const std::byte* from, std::int64_t bytes) {
  KV_ASSERT(bytes > 0);
  const auto size = static_cast<std::size_t>(bytes);
  if (!list.to.empty() && static_cast<std::byte*>(list.to.back()) + list.bytes.back() == to &&
      static_cast<const std::byte*>(list.from.back()) + list.bytes.back() == from) {
    list.bytes.back() += size;
    return;
  }
  list.to.push_back(to);
  list.from.push_back(from);
  list.bytes.push_back(size);
}

}  // namespace

Result<CopyList> plan_swap(const BoundLayout& to, const BoundLayout& from, std::span<const std::int64_t> pairs) {
  KV_ASSERT(pairs.size() % 2 == 0);
  if (!has_equal_blocks(to.layout, from.layout)) return Errc::kMismatch;
  auto to_pieces = pieces_of(to.layout), from_pieces = pieces_of(from.layout);
  const auto is_same = [](const Piece& x, const Piece& y) {
    return x.component == y.component && x.layer == y.layer && x.bytes == y.bytes;
  };
  if (!to_pieces || !from_pieces || !std::ranges::equal(*to_pieces, *from_pieces, is_same)) return Errc::kMismatch;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] >= from.layout.block_count || pairs[i + 1] >= to.layout.block_count) return Errc::kBadRequest;
  }
  join_neighbours(*to_pieces, *from_pieces, to.layout, from.layout);
  CopyList list;
  for (std::int64_t layer = 0; layer < (to.layout.has_all_layers_in_tensor ? 1 : to.layout.layer_count); ++layer) {
    for (const Piece& piece : *to_pieces) {  // blocks innermost: those in a row become one copy
      const std::int64_t to_stride = to.layout.components[piece.component].block_stride_bytes;
      const std::int64_t from_stride = from.layout.components[piece.component].block_stride_bytes;
      for (std::size_t i = 0; i < pairs.size(); i += 2) {
        if (pairs[i] < 0 || pairs[i + 1] < 0) continue;
        add_copy(list, to.base(layer + piece.layer, piece.component) + pairs[i + 1] * to_stride,
                 from.base(layer + piece.layer, piece.component) + pairs[i] * from_stride, piece.bytes);
      }
    }
  }
  return list;
}

}  // namespace kv
