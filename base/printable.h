// base/printable.h: text that came from elsewhere, for a line of a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace kv {

/// One line of valid UTF-8 that moves no cursor: control characters, backslashes and bytes that are no UTF-8 become \n,
/// \\, \x1b. Different texts stay different.
std::string printable(std::string_view text);

}  // namespace kv
