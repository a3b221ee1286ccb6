// base/text/spelling.h: suggests the intended word for a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kv {

/// The word nearest to `text`, or "" if all are far: one letter in three may be wrong, missing, surplus or swapped with
/// its neighbour. Ignores case, and treats '-' as '_'.
std::string nearest_word(std::string_view text, std::span<const std::string> words);
/// "; did you mean 'capacity'?", or "" without a near word.
std::string did_you_mean(std::string_view text, std::span<const std::string> words);

}  // namespace kv
