// base/printable.h: text that came from elsewhere, for a line of a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace kv {

/// `text` as one line of valid UTF-8 that cannot move a terminal's cursor: control characters, backslashes and bytes
/// that are no UTF-8 are written as \n, \\ or \x1b. Different texts stay different.
std::string printable(std::string_view text);

/// Whether `text` is UTF-8 throughout, control characters included.
bool is_utf8(std::string_view text);

}  // namespace kv
