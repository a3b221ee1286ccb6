// client/c/c_status.h: common to all C calls: statuses, the last error's text, structs of other versions, exceptions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "client/kvstore.h"
#include "index/namespace_record.h"

namespace kv::c_api {

/// The text for kvs_last_error(), per thread. Fixed memory: errors must be reported even when memory is exhausted.
const char* last_error() noexcept;
/// Stores the text, cut to size, and returns the status.
int fail(int status, const char* text) noexcept;
int fail(int status, const std::string& text) noexcept;
int fail(error_code error);
int status_of(error_code error);

/// What refuse() throws and guarded() catches.
struct Refused {
  int status;
};
/// Ends a guarded call as fail() does, from any depth: for wrong arguments. The nodes' answers are returned instead,
/// since they may fail often.
[[noreturn]] void refuse(int status, const std::string& text);
[[noreturn]] void refuse(error_code error);

/// Allowed sizes of a caller's struct. Above 64 KiB it is no struct but something misplaced.
inline void check_struct_size(const char* field, std::size_t size, std::size_t least) {
  if (size >= least && size <= 65536) return;
  refuse(KVS_BAD_REQUEST,
         std::string(field) + ": " + std::to_string(size) + ", allowed are " + std::to_string(least) + " to 65536");
}

/// Reads a caller's struct, which may be older or newer: missing members are zero, and unknown ones must be zero.
template <class T>
T read_struct(const T* from, const char* name = "a struct pointer") {
  if (from == nullptr) refuse(KVS_BAD_REQUEST, std::string(name) + " is NULL");
  const std::size_t size = from->struct_size;
  check_struct_size("struct_size", size, sizeof(std::size_t));
  T to;
  std::memset(static_cast<void*>(&to), 0, sizeof to);
  std::memcpy(static_cast<void*>(&to), from, std::min(size, sizeof to));
  const char* const bytes = reinterpret_cast<const char*>(from);
  for (std::size_t i = sizeof to; i < size; ++i) {
    if (bytes[i] == 0) continue;
    refuse(KVS_UNSUPPORTED, "struct_size: " + std::to_string(size) + ", and byte " + std::to_string(i) +
                                " is set; this version of libkvstore knows " + std::to_string(sizeof to));
  }
  return to;
}

template <class T>
void write_struct(T value, T* to) {
  if (to == nullptr) refuse(KVS_BAD_REQUEST, "a result pointer is NULL");
  const std::size_t size = to->struct_size;
  check_struct_size("struct_size", size, sizeof(std::size_t));
  value.struct_size = size;
  std::memcpy(static_cast<void*>(to), &value, std::min(size, sizeof value));
}

/// Writes text and a zero byte, as in kvs_metrics_text().
int write_text(const std::string& text, char* to, std::size_t capacity, std::size_t* length);

/// A record from its canonical text, or from its lines in any order.
Result<NamespaceRecord, Failure> parse_record(const char* text);

/// Runs `body`, which returns a status, or nothing if it can only refuse; turns exceptions into one.
template <class Body>
int guarded(Body body) noexcept {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return KVS_OK;
    } else {
      return body();
    }
  } catch (const Refused& refused) {
    return refused.status;
  } catch (const std::bad_alloc&) {
    return fail(KVS_SYSTEM, "out of memory");
  } catch (const std::length_error&) {
    return fail(KVS_SYSTEM, "out of memory");
  } catch (const std::exception& e) {
    return fail(KVS_INTERNAL, e.what());
  } catch (...) {
    return fail(KVS_INTERNAL, "unknown exception");
  }
}

}  // namespace kv::c_api
