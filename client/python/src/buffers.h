// client/python/src/buffers.h: memory of Python objects, by the buffer protocol or DLPack, without a copy.
//
// Unusable memory is refused with a sentence that names the argument: read-only memory for results, device memory where
// only host memory works, gaps between elements, misaligned numbers. A CUDA device's memory is taken by DLPack or
// __cuda_array_interface__ where a call can use it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/python/src/errors.h"
#include "index/block_hash.h"

namespace kv::python {

namespace nb = nanobind;

enum class Place : std::uint8_t { kHost, kHostOrCuda };

/// One array and its owner. Made and destroyed with the GIL held; its memory may be used without.
class Array {
 public:
  /// `name` names the argument in refusals; its memory may lie in `place`. Throws StatusError, or the object's error.
  Array(nb::handle object, std::string name, bool is_written, Place place = Place::kHost);
  Array(Array&&) noexcept;
  Array& operator=(Array&&) noexcept;
  ~Array();

  std::byte* data() const { return data_; }
  std::size_t item_bytes() const { return item_bytes_; }
  std::size_t dimensions() const { return shape_.size(); }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::vector<std::int64_t>& strides() const { return strides_; }  ///< In bytes.
  std::size_t bytes() const;
  /// 'i', 'u', 'f' as in NumPy, 'b' bfloat16, '4' float8_e4m3fn, '5' float8_e5m2, 'o' anything else.
  char kind() const { return kind_; }
  bool is_read_only() const { return is_read_only_; }
  bool is_on_device() const { return is_on_device_; }  ///< Then the host must not read or write it.
  const std::string& name() const { return name_; }

  /// Without gaps, in C order, from axis `first_axis` on.
  bool is_contiguous(std::size_t first_axis = 0) const;
  /// All bytes as one span. Throws if there are gaps.
  std::span<std::byte> all_bytes() const;

 private:
  struct Source;  ///< A Py_buffer, a DLPack tensor, or an object with __cuda_array_interface__.
  void read_dlpack(nb::handle object, bool is_written, bool is_cuda);
  void read_cuda_interface(nb::handle object, bool is_written);
  std::unique_ptr<Source> source_;
  std::string name_;
  std::byte* data_ = nullptr;
  std::size_t item_bytes_ = 1;
  char kind_ = 'u';
  bool is_read_only_ = false, is_on_device_ = false;
  std::vector<std::int64_t> shape_, strides_;
};

/// All elements of an array of whole numbers of T's size. Throws for other elements, gaps and misaligned memory.
template <class T>
std::span<T> integers_of(const Array& array) {
  if (array.item_bytes() != sizeof(T) || (array.kind() != 'u' && array.kind() != 'i'))
    throw bad_request(array.name() + ": the elements are not uint" + std::to_string(8 * sizeof(T)));
  const std::span<std::byte> bytes = array.all_bytes();
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) != 0)
    throw bad_request(array.name() + ": misaligned");
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

/// A call's arrays, alive until the call has ended.
using Holds = std::vector<Array>;

/// Whole numbers in one dimension, borrowed or converted. Refuses negative and too large ones for unsigned types.
template <class T>
class Numbers {
 public:
  /// None gives an empty span.
  Numbers(nb::handle object, const std::string& name);
  std::span<const T> values() const { return values_; }

 private:
  std::vector<Array> array_;
  std::vector<T> converted_;
  std::span<const T> values_;
};

/// Block hashes: an array of uint8 [n, 32], or a sequence of `bytes` of any length (block_hash_from_engine()).
std::vector<BlockHash> hashes_from(nb::handle object, const std::string& name);
/// Extra digests: uint8 [n, 16], or None.
std::vector<ExtraDigest> extras_from(nb::handle object, const std::string& name);

/// The memory of a call's blocks: `object` is an array whose first axis counts blocks and whose other axes hold
/// block_bytes without gaps (the first axis may have any stride), or a sequence of arrays of block_bytes each. With
/// `rows`, block i lies in row rows[i] of the array. Adds the owners to `holds`. Throws if written blocks overlap.
std::vector<std::span<std::byte>> blocks_from(nb::handle object, nb::handle rows, std::size_t block_count,
                                              std::size_t block_bytes, bool is_written, Holds& holds,
                                              Place place = Place::kHost);

/// The same for blocks of individual sizes: a sequence of arrays, or the rows of one.
std::vector<std::span<std::byte>> sized_blocks_from(nb::handle object, nb::handle rows, std::size_t block_count,
                                                    bool is_written, Holds& holds);

}  // namespace kv::python
