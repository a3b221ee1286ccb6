# KV_SANITIZE and KV_BUILD_FUZZERS apply to every target, so that all code in one process is built alike.
if(KV_SANITIZE)
  add_compile_options(-fsanitize=${KV_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KV_SANITIZE})
endif()

if(KV_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "KV_BUILD_FUZZERS needs Clang (libFuzzer); use `cmake --preset asan`. This is ${CMAKE_CXX_COMPILER}.")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# The presets, except debug, join the sources of a target (CMAKE_UNITY_BUILD). kv_compile_alone(FILE...) excludes sources whose unnamed
# namespace defines a name that another source of the target defines too. Call it where the target is.
function(kv_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
