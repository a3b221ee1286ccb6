// client/python/src/numpy_arrays.h: C++ vectors as NumPy arrays, without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <utility>
#include <vector>

namespace kv::python {

namespace nb = nanobind;

/// An array that owns `values`. The product of `shape` is the number of values.
template <class T, class Values>
nb::object numpy_of(Values values, std::vector<std::size_t> shape) {
  auto owned = std::make_unique<Values>(std::move(values));
  void* const data = const_cast<void*>(static_cast<const void*>(owned->data()));
  const nb::capsule owner(owned.get(), [](void* held) noexcept { delete static_cast<Values*>(held); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
}
template <class T>
nb::object numpy_of(std::vector<T> values) {
  const std::size_t count = values.size();
  return numpy_of<T>(std::move(values), {count});
}

}  // namespace kv::python
