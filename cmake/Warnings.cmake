# kv_warnings: flags of our own targets. Warnings are errors; KV_ASSERT stays on in every build.
# Off in packages: a compiler newer than kvstore, or a hardening flag, must not break the build.
option(KV_WARNINGS_ARE_ERRORS "Warnings of our own code are errors" ON)
add_library(kv_warnings INTERFACE)
target_compile_options(kv_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                                             -Wconversion -Wno-sign-conversion $<$<BOOL:${KV_WARNINGS_ARE_ERRORS}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these in correct standard library and coroutine code.
  target_compile_options(kv_warnings INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                                               -Wno-stringop-overread -Wno-dangling-pointer -Wno-missing-field-initializers)
  if(CMAKE_UNITY_BUILD)  # To GCC, a source that others are joined with is a header, which must not have an unnamed namespace.
    target_compile_options(kv_warnings INTERFACE -Wno-subobject-linkage)
  endif()
  if(KV_SANITIZE MATCHES "thread")
    target_compile_options(kv_warnings INTERFACE -Wno-tsan)  # Asio's fences; the presets use Clang here
  endif()
else()
  target_compile_options(kv_warnings INTERFACE -Wno-missing-field-initializers)
endif()
