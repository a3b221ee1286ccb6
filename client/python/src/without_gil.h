// client/python/src/without_gil.h: what runs without Python's GIL.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace kv::python {

/// Gives the GIL up for a while. Made and destroyed by the thread that holds it.
///
/// Beside what nanobind has for it: a daemon thread can come back when the interpreter is being taken apart. Python up
/// to 3.13 then ends the thread in PyEval_RestoreThread() by unwinding its stack, which at a destructor, or at the
/// catch-all of a binding, ends the process with SIGABRT. Such a thread stays here instead until the process has gone,
/// as newer Pythons have it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {  // to leave this handler would go on with the unwinding
      for (;;) ::pause();
    }
  }

 private:
  PyThreadState* const state_;
};

}  // namespace kv::python
