# Declares tests. Everything that ctest runs goes through one of these functions.
find_package(GTest REQUIRED)
include(GoogleTest)

# A label says why a sanitizer runs a program in `deploy/test.sh --sanitize`, not only before a release.
# `ctest -L LABEL` runs the tests of its programs; the target of the same name builds them. About fifteen programs each, besides the
# fuzzers' corpora: the build is most of the cost.
#   parses   AddressSanitizer. The program feeds bytes of a peer, a file or a caller to the code that reads them (frames, sessions, layouts,
#            disk directories, exported contexts, tests/attack), or covers code that owns memory by hand (index, arena, staging, pages,
#            verbs). The parsers of configuration, policies and queries are small, and each has a fuzzer.
#   threads  ThreadSanitizer. The program's threads share data: servers and sessions, the client's links and queues, the disk's writers,
#            keepers of files, name servers.
set(KV_TEST_LABELS parses threads)

# kv_add_test(NAME SOURCES file... LIBS target... [SERIAL [ALONE_TESTS filter] | ALONE] [ONE_THREAD] [TIMEOUT seconds] [LABELS label...]):
# one GoogleTest binary; every TEST in it is a ctest test of its own. SERIAL: such programs' tests run one at a time (real processes, much
# memory). They begin first, so that other tests run beside them and not after them; under sanitizers, which make them CPU-bound, they run
# alone. ALONE: its tests always run alone; ALONE_TESTS: only those that match the filter, as of --gtest_filter. ONE_THREAD: its tests start
# no threads, which is checked; ThreadSanitizer's build omits them, since they cannot race.
function(kv_add_test name)
  cmake_parse_arguments(ARG "SERIAL;ALONE;ONE_THREAD" "TIMEOUT;ALONE_TESTS" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(ARG_ONE_THREAD AND "threads" IN_LIST ARG_LABELS)
    message(FATAL_ERROR "kv_add_test(${name}): ONE_THREAD contradicts the label threads")
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT})
  set(label)
  if(ARG_LABELS)
    # One label, "parses,threads", stands for two: gtest_discover_tests passes no lists on, and -L matches a part.
    list(JOIN ARG_LABELS "," label)
    list(PREPEND label LABELS)
  endif()
  if(ARG_ALONE OR (ARG_SERIAL AND KV_SANITIZE))
    list(APPEND properties RUN_SERIAL TRUE)
  elseif(ARG_SERIAL)
    list(APPEND properties RESOURCE_LOCK processes COST 100)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest_main GTest::gmock kv_warnings)
  if(ARG_ONE_THREAD)
    if(KV_SANITIZE MATCHES thread)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
      return()
    endif()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/one_thread.cc)
    kv_compile_alone(${PROJECT_SOURCE_DIR}/cmake/one_thread.cc)
  endif()
  set(filter)
  if(ARG_ALONE_TESTS)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_FILTER ${ARG_ALONE_TESTS} TEST_LIST ${name}_alone
                         PROPERTIES TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL TRUE ${label})
    set(filter TEST_FILTER -${ARG_ALONE_TESTS})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST ${filter} PROPERTIES ${properties} ${label})
  set_property(GLOBAL APPEND PROPERTY KV_TEST_TARGETS ${name})
  foreach(each IN LISTS ARG_LABELS)
    set_property(GLOBAL APPEND PROPERTY KV_TEST_TARGETS_${each} ${name})
  endforeach()
endfunction()

# kv_add_fuzzer(NAME SOURCES file... LIBS target... CORPUS directory [THREADS]): a decoder under hostile bytes, as a file that defines
# LLVMFuzzerTestOneInput. With KV_BUILD_FUZZERS it is a libFuzzer program, else it has a small main that replays inputs. Either way one
# ctest test replays the seed corpus, so that past findings stay fixed under every compiler and sanitizer. Its label is parses. THREADS:
# it starts threads. Others must not, which is checked, and ThreadSanitizer's build omits them.
function(kv_add_fuzzer name)
  cmake_parse_arguments(ARG "THREADS" "CORPUS" "SOURCES;LIBS" ${ARGN})
  if(KV_SANITIZE MATCHES thread AND NOT ARG_THREADS)
    return()
  endif()
  get_filename_component(corpus ${ARG_CORPUS} ABSOLUTE)
  if(NOT IS_DIRECTORY ${corpus})
    message(FATAL_ERROR "kv_add_fuzzer(${name}): no corpus at ${corpus}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} kv_warnings)
  if(KV_BUILD_FUZZERS)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME ${name}.corpus COMMAND ${name} -runs=0 -timeout=10 -rss_limit_mb=0 ${corpus})
    set_property(GLOBAL APPEND PROPERTY KV_FUZZ_TARGETS ${name})
    set_property(GLOBAL APPEND PROPERTY KV_FUZZ_LINES "$<TARGET_FILE:${name}> ${corpus}")
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/replay_corpus.cc)
    if(ARG_THREADS)
      target_compile_definitions(${name} PRIVATE KV_STARTS_THREADS)
    endif()
    add_test(NAME ${name}.corpus COMMAND ${name} ${corpus})
  endif()
  set_tests_properties(${name}.corpus PROPERTIES TIMEOUT 120 LABELS parses)
  set_property(GLOBAL APPEND PROPERTY KV_TEST_TARGETS ${name})
  set_property(GLOBAL APPEND PROPERTY KV_TEST_TARGETS_parses ${name})
endfunction()

# kv_add_benchmark(NAME SOURCES file... LIBS target...): one Google Benchmark program; built, never run by ctest.
function(kv_add_benchmark name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  if(NOT KV_BUILD_BENCHMARKS)
    return()
  endif()
  find_package(benchmark REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} benchmark::benchmark_main kv_warnings)
endfunction()

# Called once, after all tests are declared: the target `tests`, which builds exactly the programs that ctest runs, a target for each
# label, and in the asan preset the target `fuzzers` and fuzz_targets.txt (one line per target: program, corpus), for deploy/test.sh.
function(kv_finish_tests)
  get_property(targets GLOBAL PROPERTY KV_TEST_TARGETS)
  list(APPEND targets installed)  # a test installs everything
  foreach(program kvstore-node kvstorectl kvstore-bench kvstore-policies)  # the end-to-end tests start these
    if(TARGET ${program})
      list(APPEND targets ${program})
    endif()
  endforeach()
  add_custom_target(tests DEPENDS ${targets})
  foreach(label IN LISTS KV_TEST_LABELS)
    get_property(labelled GLOBAL PROPERTY KV_TEST_TARGETS_${label})
    add_custom_target(${label} DEPENDS ${labelled})
  endforeach()
  if(KV_BUILD_FUZZERS)
    get_property(fuzzers GLOBAL PROPERTY KV_FUZZ_TARGETS)
    add_custom_target(fuzzers DEPENDS ${fuzzers})
    get_property(lines GLOBAL PROPERTY KV_FUZZ_LINES)
    list(JOIN lines "\n" lines)
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzz_targets.txt CONTENT "${lines}\n")
  endif()
endfunction()
