# The libraries of the Python extension, all linked statically, so that a wheel needs only glibc, and keeps its own OpenSSL.
set(missing "")
find_package(Threads REQUIRED)

find_package(Boost 1.81 QUIET)
if(NOT Boost_FOUND)
  list(APPEND missing "Boost 1.81 or newer (Debian 12: libboost1.81-dev, newer: libboost-dev)")
endif()

set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL QUIET COMPONENTS Crypto SSL)
if(NOT OPENSSL_CRYPTO_LIBRARY MATCHES "\\.a$")
  list(APPEND missing "OpenSSL's static libcrypto.a (libssl-dev)")
endif()

find_package(FlatBuffers NAMES FlatBuffers flatbuffers QUIET)
find_program(FLATC flatc)
if(NOT FLATC OR NOT (FlatBuffers_FOUND OR flatbuffers_FOUND))
  list(APPEND missing "FlatBuffers with its compiler (flatbuffers-compiler, libflatbuffers-dev)")
endif()

# Header-only, inlined. On x86-64 base uses the library's run-time choice of instructions, which here is client/python/src/xxh3.c.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  list(APPEND missing "xxHash (libxxhash-dev)")
else()
  add_library(PkgConfig::xxhash INTERFACE IMPORTED)
  set_target_properties(PkgConfig::xxhash PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64" AND EXISTS ${XXHASH_INCLUDE_DIR}/xxh_x86dispatch.h)
    set(KV_XXHASH_DISPATCHES ON)
    set_target_properties(PkgConfig::xxhash PROPERTIES INTERFACE_COMPILE_DEFINITIONS
                          $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,kv_base>>:XXH_INLINE_ALL>)
  else()
    set_target_properties(PkgConfig::xxhash PROPERTIES INTERFACE_COMPILE_DEFINITIONS XXH_INLINE_ALL)
  endif()
endif()

find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  list(APPEND missing "JSON for Modern C++ (nlohmann-json3-dev)")
endif()

if(missing)
  list(JOIN missing "\n  - " text)
  message(FATAL_ERROR "kvstore: the C++ client inside the Python package needs these, in brackets Debian's packages:\n  - ${text}\n"
          "deploy/install-dependencies.sh installs them all.")
endif()
