// tests/gpu/test_cache.h: a cache in memory of its own with canaries around it, and the slow way to say what a copy
// does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpu/layout.h"
#include "gpu/rows.h"

namespace kv {

/// The seed of this run: KV_SEED, or a new one. Print it with SCOPED_TRACE(seed_text(seed)).
inline std::uint64_t test_seed() {
  const char* env = std::getenv("KV_SEED");
  return env ? std::stoull(env) : std::random_device{}();
}
inline std::string seed_text(std::uint64_t seed) { return "KV_SEED=" + std::to_string(seed); }

inline void fill_random(std::span<std::byte> bytes, std::mt19937_64& random) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t bits = random();
    std::memcpy(&bytes[i], &bits, std::min<std::size_t>(8, bytes.size() - i));
  }
}

/// Memory that starts on a cache line, so that a clone lies as its original does.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* memory, std::size_t) { ::operator delete (memory, std::align_val_t{64}); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};
using Bytes = std::vector<std::byte, LineAllocator<std::byte>>;

/// A layout with memory: every byte is 0xA5 until written, 64 of them before and after each allocation too.
class TestCache {
 public:
  explicit TestCache(Layout layout, std::int64_t misalign_bytes = 0) : misalign_bytes_(misalign_bytes) {
    const int copies = static_cast<int>(layout.has_all_layers_in_tensor ? 1 : layout.layer_count);
    for (int i = 0; i < copies * layout.tensor_count; ++i) {
      const std::int64_t bytes = layout.tensor_bytes(i % layout.tensor_count) + 2 * kMargin + misalign_bytes;
      memory_.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xA5});
    }
    bind(std::move(layout));
  }
  TestCache(const TestCache& other) : misalign_bytes_(other.misalign_bytes_), memory_(other.memory_) {
    bind(other.bound_.layout);
  }
  TestCache& operator=(const TestCache&) = delete;

  const BoundLayout& bound() const { return bound_; }
  const Layout& layout() const { return bound_.layout; }
  std::vector<Bytes>& memory() { return memory_; }
  const std::vector<Bytes>& memory() const { return memory_; }

  /// Random bytes inside the allocations; the margins stay canaries.
  void fill_random(std::mt19937_64& random) {
    const std::size_t first = kMargin + static_cast<std::size_t>(misalign_bytes_);
    for (auto& tensor : memory_)
      kv::fill_random(std::span(tensor).subspan(first, tensor.size() - kMargin - first), random);
  }

  std::byte* at(std::int64_t layer, std::size_t component, std::int64_t slot, std::int64_t head,
                std::int64_t feature) const {
    return bound_.address(layer, component, slot, head, feature);
  }
  std::size_t column(Role role) const {
    return static_cast<std::size_t>(layout().find(role) - layout().components.data());
  }
  /// One number, by role.
  float value(std::int64_t layer, Role role, std::int64_t slot, std::int64_t head, std::int64_t feature) const {
    const Element element = layout().find(role)->element;
    std::uint32_t code = 0;
    std::memcpy(&code, at(layer, column(role), slot, head, feature), static_cast<std::size_t>(element_bytes(element)));
    return decode_element(element, code);
  }
  void set(std::int64_t layer, Role role, std::int64_t slot, std::int64_t head, std::int64_t feature, float number) {
    const Element element = layout().find(role)->element;
    const std::uint32_t code = encode_element(element, number);
    std::memcpy(at(layer, column(role), slot, head, feature), &code, static_cast<std::size_t>(element_bytes(element)));
  }
  std::uint32_t code(std::int64_t layer, Role role, std::int64_t slot, std::int64_t head, std::int64_t feature) const {
    std::uint32_t code = 0;
    std::memcpy(&code, at(layer, column(role), slot, head, feature),
                static_cast<std::size_t>(element_bytes(layout().find(role)->element)));
    return code;
  }

 private:
  static constexpr std::int64_t kMargin = 64;

  void bind(Layout layout) {
    std::vector<void*> pointers;
    for (Bytes& tensor : memory_) pointers.push_back(tensor.data() + kMargin + misalign_bytes_);
    bound_ = bind_layout(std::move(layout), pointers).value();
  }

  std::int64_t misalign_bytes_;
  std::vector<Bytes> memory_;
  BoundLayout bound_;
};

/// What a copy should do, element by element through BoundLayout::address() and nothing else.
inline void copy_elements(TestCache& to, const Rows& to_rows, const TestCache& from, const Rows& from_rows,
                          std::int64_t row_count, std::uint32_t roles = ~0U) {
  for (std::size_t c = 0; c < to.layout().components.size(); ++c) {
    const Component& target = to.layout().components[c];
    if ((roles >> static_cast<unsigned>(target.role) & 1) == 0) continue;
    const std::size_t source = from.column(target.role);
    const auto bytes = static_cast<std::size_t>(element_bytes(target.element));
    for (std::int64_t layer = 0; layer < to.layout().layer_count; ++layer) {
      for (std::int64_t row = 0; row < row_count; ++row) {
        const std::int64_t to_slot = to_rows.slot(row);
        const std::int64_t from_slot = from_rows.slot(row);
        if (to_slot < 0 || from_slot < 0) continue;
        for (std::int64_t head = 0; head < target.heads(); ++head) {
          for (std::int64_t f = 0; f < target.features(); ++f) {
            std::memcpy(to.at(layer, c, to_slot, head, f), from.at(layer, source, from_slot, head, f), bytes);
          }
        }
      }
    }
  }
}

/// Whether two clones hold the same bytes, margins included; the first difference otherwise.
inline testing::AssertionResult same_bytes(const TestCache& got, const TestCache& want) {
  for (std::size_t i = 0; i < want.memory().size(); ++i) {
    const Bytes& a = got.memory()[i];
    const Bytes& b = want.memory()[i];
    if (a == b) continue;
    const std::size_t j = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    return testing::AssertionFailure() << "tensor " << i << " byte " << j
                                       << " of its memory: " << static_cast<int>(a[j]) << ", expected "
                                       << static_cast<int>(b[j]);
  }
  return testing::AssertionSuccess();
}

}  // namespace kv
