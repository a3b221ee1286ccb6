// base/spelling.h: which word somebody meant who wrote another one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kv {

/// The word that is nearest to `text`, or "" where none is near: a letter in three may be wrong, missing, too many or
/// swapped with its neighbour. Case counts for nothing, and '-' is as good as '_'.
std::string nearest_word(std::string_view text, std::span<const std::string> words);
/// "; did you mean 'capacity'?", or "" where no word is near.
std::string did_you_mean(std::string_view text, std::span<const std::string> words);

}  // namespace kv
