// base/text/fields.h: consecutive numbers and texts in files, little endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace kv {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_number(std::string& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

/// Prefixed by its length, a `Length`, which the caller has checked to hold it.
template <class Length>
void append_text(std::string& bytes, std::string_view text) {
  append_number(bytes, static_cast<Length>(text.size()));
  bytes += text;
}

/// Takes fields from the front of untrusted bytes. After the first missing one, all are empty and `is_cut` is true.
struct FieldTaker {
  std::string_view bytes;
  bool is_cut = false;

  std::string_view raw(std::size_t count) {
    if (count > bytes.size()) {
      is_cut = true;
      bytes = {};
      return {};
    }
    const std::string_view taken = bytes.substr(0, count);
    bytes.remove_prefix(count);
    return taken;
  }
  template <class T>
  T number() {
    T value{};
    if (const std::string_view from = raw(sizeof value); !is_cut) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  template <class Length>
  std::string text() {
    return std::string(raw(number<Length>()));
  }
};

}  // namespace kv
