// gpu/layout.h: the memory layout of a KV cache: of every engine's pages, plain tensors, and the store's block.
//
// A cache holds *components* (keys, values, scales ...). Element f of head h of token o of block b lies at
//
//     base[layer][component] + b * block_stride + token(o) + head(h) + feature(f)                           (bytes)
//
// where each axis is one or two *digits*: an index i is split as i = low + low.extent * high, and each digit has its
// own stride. Tiles inside a row need two digits: [NB, H, D/x, BS, x] has features {x, 1} and {D/x, BS*x}.
//
//     layouts::nhd(shape)            a named layout
//     make_layout("mine", tensors)   any other, from the shapes and strides of a tensor library
//     bind_layout(layout, pointers)  a layout with its memory, for scatter and gather (gpu/permute.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/checked.h"
#include "gpu/element.h"

namespace kv {

struct Digit {
  std::int64_t extent = 1;
  std::int64_t stride_bytes = 0;
  friend bool operator==(const Digit&, const Digit&) = default;
};

/// Address offsets of an index. An axis of one digit has it in `low`; `high` then has extent 1.
struct Axis {
  Digit low;
  Digit high;

  constexpr std::int64_t extent() const { return low.extent * high.extent; }
  constexpr std::int64_t offset(std::int64_t index) const {
    if (high.extent == 1) return index * low.stride_bytes;
    return index % low.extent * low.stride_bytes + index / low.extent * high.stride_bytes;
  }
  constexpr std::int64_t last_offset() const {
    return (low.extent - 1) * low.stride_bytes + (high.extent - 1) * high.stride_bytes;
  }
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// Meaning of a component. Two layouts exchange the components whose roles they share.
enum class Role : std::uint8_t {
  kKey,
  kValue,
  kLatent,       ///< MLA's compressed K and V (kv_c), one head
  kRope,         ///< MLA's rotated part of the key (k_pe), one head
  kIndexKey,     ///< the sparse indexer's key
  kKeyScale,     ///< scales of kKey: features = kKey's features / values per scale
  kValueScale,   ///< of kValue
  kLatentScale,  ///< of kLatent
  kIndexScale,   ///< of kIndexKey
  kLogCount,     ///< ln(tokens averaged into this slot), to be added to q.k after scaling; 0 for an ordinary token
};
inline constexpr int kRoleCount = 10;
std::string_view role_name(Role role);

struct Component {
  Role role = Role::kKey;
  Element element = Element::kBf16;
  int tensor = 0;                       ///< The allocation that holds it.
  std::int64_t offset_bytes = 0;        ///< Of layer 0, block 0, token 0 from that allocation's start.
  std::int64_t layer_stride_bytes = 0;  ///< Used when Layout::has_all_layers_in_tensor.
  std::int64_t block_stride_bytes = 0;
  Axis token;
  Axis head;
  Axis feature;

  std::int64_t heads() const { return head.extent(); }
  std::int64_t features() const { return feature.extent(); }
};

/// Bounds on a layout's reach and layers, so that arithmetic on it cannot overflow.
inline constexpr std::int64_t kReachBytesMax = std::int64_t{1} << 56;
inline constexpr std::int64_t kLayersMax = 65536;

/// Plain data; made and checked by make_layout() or a named constructor. Element sizes, strides: bytes, int64.
struct Layout {
  std::string name;
  std::int64_t block_tokens = 0;
  std::int64_t block_count = 0;
  std::int64_t layer_count = 1;
  int tensor_count = 0;                   ///< Allocations, per layer or for all layers together:
  bool has_all_layers_in_tensor = false;  ///< one allocation holds every layer, layer_stride_bytes apart.
  std::vector<Component> components;

  std::int64_t slot_count() const { return block_count * block_tokens; }
  /// The component of that role, or null.
  const Component* find(Role role) const;
  /// One past the last byte of the layout in allocation `tensor`.
  std::int64_t tensor_bytes(int tensor) const;
};

/// A tensor as libraries describe it: one letter per axis of `shape`, in order. Upper case is an axis's high digit.
///     b block   l layer   c component (as many as `roles`)   t T token   h H head   f F feature
/// A missing letter has extent 1; a missing b or l also means that the tensor lacks the axis.
struct Tensor {
  std::string_view axes;              ///< "bthf" is NHD; "bhFtf" is x-packed.
  std::vector<std::int64_t> shape;    ///< In elements.
  std::vector<std::int64_t> strides;  ///< In elements; empty: contiguous, the last axis fastest.
  Element element = Element::kBf16;
  std::vector<Role> roles;        ///< One, or one for each index of axis c.
  int allocation = -1;            ///< -1: a new allocation. Else the number of an earlier tensor's allocation.
  std::int64_t offset_bytes = 0;  ///< Of its first element from the allocation's start.
};

/// The layout of these tensors, all of one layer or of every layer. Errors: a sentence naming the tensor's axis.
Checked<Layout> make_layout(std::string name, std::span<const Tensor> tensors, std::int64_t layer_count = 1);

/// The first flaw of a layout, naming component and axis. In a sound layout no two elements overlap, in one component
/// or in two; the token axes cover block_tokens, and every element is aligned to its own size.
std::optional<Flaw> find_flaw(const Layout& layout);

/// For people: one line for the whole, one for each component with its digits as extent:stride.
std::string to_string(const Layout& layout);

/// Only heads [first, first + count), renumbered from 0: one tensor-parallel rank's part. Errors: a range that is
/// neither within one group of a two-digit axis nor whole groups. One-head components stay whole beside cut ones.
Checked<Layout> slice_heads(const Layout& layout, std::int64_t first, std::int64_t count);

/// A layout and its components' addresses. Copying it copies pointers. Borrows the memory.
struct BoundLayout {
  Layout layout;
  std::vector<std::byte*> bases;  ///< [layer][component]: token 0 of block 0.

  std::byte* base(std::int64_t layer, std::size_t component) const {
    return bases[static_cast<std::size_t>(layer) * layout.components.size() + component];
  }
  /// Address of one element. Requires indices in range.
  std::byte* address(std::int64_t layer, std::size_t component, std::int64_t slot, std::int64_t head,
                     std::int64_t feature) const;
};

/// Requires: one pointer per allocation, tensors[layer][tensor]; a single row if has_all_layers_in_tensor.
Checked<BoundLayout> bind_layout(Layout layout, std::span<void* const> tensors);
/// slice_heads() of the layout, with the addresses of those heads.
Checked<BoundLayout> slice_heads(const BoundLayout& bound, std::int64_t first, std::int64_t count);
/// Layers [first, first + count) only, renumbered from 0.
BoundLayout slice_layers(const BoundLayout& bound, std::int64_t first, std::int64_t count);

}  // namespace kv
