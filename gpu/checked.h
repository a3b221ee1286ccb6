// gpu/checked.h: a value, or a sentence for the person who described it wrongly. Layouts come from engines' shapes and
// strides; which axis is wrong is worth more to whoever wires an engine up than an error number.
#pragma once

#include <boost/system/result.hpp>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace kv {

struct Flaw {
  std::string text;
};

template <class T>
using Checked = boost::system::result<T, Flaw>;

/// Whether the factors' product is at most `most`. Sizes come from outside: they may be anything, negative or huge.
constexpr bool is_product_within(std::int64_t most, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product) || product > most) return false;
  }
  return true;
}

/// What value() of a Checked<T> throws: for tests and for start-up code.
[[noreturn]] inline void throw_exception_from_error(const Flaw& flaw, const boost::source_location&) {
  throw std::invalid_argument(flaw.text);
}

}  // namespace kv
