// base/text/printable.h: foreign text, made safe for a log line or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace kv {

/// `text` as one line of valid UTF-8 that cannot move a terminal's cursor: control characters, backslashes and invalid
/// bytes are written as \n, \\ or \x1b. Different texts stay different.
std::string printable(std::string_view text);

/// Whether all of `text` is UTF-8, control characters included.
bool is_utf8(std::string_view text);

}  // namespace kv
