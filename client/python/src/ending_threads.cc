// Threads that Python ends at the interpreter's shutdown stay in this module until the process has gone.
//
// Python up to 3.13 ends a daemon thread that asks for the GIL after the shutdown began: by pthread_exit(), which
// unwinds the thread's stack. Any Python code that a binding runs can ask for the GIL: an error's class, an array's
// attribute, a collected object's finalizer. Below that code lie frames of this module that must not be unwound:
// nanobind's are noexcept or catch all, which ends the process with SIGABRT, and destructors would release Python
// objects without the GIL. So the unwinding ends at the first C++ frame that has something to do in it. Python 3.14
// keeps such threads, too.
//
//   Python   take_gil() -> pthread_exit() -> unwinder        unwinds
//   C        PyObject_Call() ...                             no personality: passed by
//   C++      results.cc, errors.cc, WithoutGil, nanobind     personality: the thread stays here
#include <unistd.h>
#include <unwind.h>

#include <cstdint>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, std::uint64_t exception_class,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

/// In place of the C++ runtime's, for every frame of this module (--wrap in CMakeLists.txt): the one place that covers
/// all bindings, and those to come. Other unwinding, that of exceptions, is the runtime's.
_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, std::uint64_t exception_class,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  while ((actions & _UA_FORCE_UNWIND) != 0) ::pause();
  return __real___gxx_personality_v0(version, actions, exception_class, exception, context);
}

}  // extern "C"
