// gpu/checked.h: a value, or a sentence for the person who described it wrongly. Layouts come from engines' shapes and
// strides; the name of the wrong axis helps an integrator more than an error number.
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

/// Whether the factors' product is at most `most`. Factors come from outside: they may be negative or huge.
constexpr bool is_product_within(std::int64_t most, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product) || product > most) return false;
  }
  return true;
}

/// Thrown by value() of a Checked<T>: for tests and start-up code.
[[noreturn]] inline void throw_exception_from_error(const Flaw& flaw, const boost::source_location&) {
  throw std::invalid_argument(flaw.text);
}

}  // namespace kv
