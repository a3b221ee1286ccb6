// client/python/src/without_gil.h: code without Python's GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace kv::python {

/// Releases the GIL for a while. Made and destroyed by the thread that holds it. A daemon thread that returns at the
/// interpreter's shutdown stays in the destructor (ending_threads.cc).
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* const state_;
};

template <class Work>
auto run_without_gil(Work work) {
  const WithoutGil without_gil;
  return work();
}

}  // namespace kv::python
