#include "base/text/spelling.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace kv {
namespace {

std::string plain(std::string_view text) {
  constexpr std::size_t kLengthMax = 64;  // a longer one is not a misspelt name, and the cost is quadratic
  std::string word(text.substr(0, kLengthMax));
  for (char& c : word) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

/// The number of letters to change, add, remove or swap with their neighbour to turn `a` into `b`.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_word(std::string_view text, std::span<const std::string> words) {
  const std::string given = plain(text);
  const std::string* nearest = nullptr;
  std::size_t least = std::max<std::size_t>(1, given.size() / 3) + 1;
  for (const std::string& word : words) {
    if (const std::size_t steps = distance(given, plain(word)); steps < least) {
      least = steps;
      nearest = &word;
    }
  }
  return nearest == nullptr ? "" : *nearest;
}

std::string did_you_mean(std::string_view text, std::span<const std::string> words) {
  const std::string word = nearest_word(text, words);
  return word.empty() ? "" : "; did you mean '" + word + "'?";
}

}  // namespace kv
