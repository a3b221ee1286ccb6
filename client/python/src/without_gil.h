// client/python/src/without_gil.h: code without Python's GIL.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace kv::python {

/// Releases the GIL for a while. Made and destroyed by the thread that holds it.
///
/// Unlike nanobind's class, it handles a daemon thread that returns at the interpreter's shutdown. Python up to 3.13
/// then ends the thread in PyEval_RestoreThread() by unwinding its stack, which at a destructor or a binding's
/// catch-all ends the process with SIGABRT. Such a thread stays here instead until the process has gone, as in newer
/// Pythons.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {  // leaving this handler would continue the unwinding
      for (;;) ::pause();
    }
  }

 private:
  PyThreadState* const state_;
};

template <class Work>
auto run_without_gil(Work work) {
  const WithoutGil without_gil;
  return work();
}

}  // namespace kv::python
