// gpu/checked.h: a value, or a sentence for the person who described it wrongly. Layouts come from engines' shapes and
// strides; which axis is wrong is worth more to whoever wires an engine up than an error number.
#pragma once

#include <boost/system/result.hpp>
#include <stdexcept>
#include <string>

namespace kv {

struct Flaw {
  std::string text;
};

template <class T>
using Checked = boost::system::result<T, Flaw>;

/// What value() of a Checked<T> throws: for tests and for start-up code.
[[noreturn]] inline void throw_exception_from_error(const Flaw& flaw, const boost::source_location&) {
  throw std::invalid_argument(flaw.text);
}

}  // namespace kv
