// store/node/options/option_table.h: options of a command line as rows of a table.
//
// One row holds all facts about an option. A value arrives as text, from a flag, the environment or a file, is checked
// against the row's limits, and is stored in the variable that the row points to.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace CLI {
class App;
}

namespace kv {

/// The value's destination. The type decides its notation: a Duration as "10s", "500ms" or bare seconds ("0.05"),
/// microseconds as "50us" or bare, other types as they are.
using OptionTarget = std::variant<std::string*, std::vector<std::string>*, bool*, double*, std::uint64_t*,
                                  std::uint32_t*, std::uint8_t*, Duration*, std::chrono::microseconds*>;

struct IntegerLimits {
  int min, max;
};
struct RealLimits {
  double min, max;
};
/// Also makes the value a size, which takes units: 4GiB is 4 * 2^30.
struct SizeLimits {
  std::uint64_t min = 0, max = 0;
  const char* text = nullptr;  ///< The limits in words; nullptr: unlimited.
};
inline constexpr SizeLimits kAnySize{};
inline constexpr SizeLimits kSizeOrZero{0, std::uint64_t{1} << 46, "0 to 64 TiB"};
inline constexpr SizeLimits kSize{1, std::uint64_t{1} << 46, "1 byte to 64 TiB"};  // "-1" would be 2^64 - 1
using OneOf = std::vector<std::string>;
/// The required form of a text, in words; the option's user checks it.
struct Form {
  const char* text;
};
inline constexpr std::monostate kAnyValue{};  ///< Any value of the type.
using OptionLimits = std::variant<std::monostate, IntegerLimits, RealLimits, SizeLimits, OneOf, Form>;

/// The usual reason why an option cannot be changed while the node runs.
inline constexpr const char* kReadAtStart = "it is read once, when the node starts";

struct OptionRow {
  const char* name;  ///< Without dashes: --NAME, NAME in the file, KVSTORE_NODE_NAME in the environment.
  OptionTarget to;   ///< Outlives the parse. Its value before is the default, as --help shows.
  OptionLimits limits;
  const char* help;
  const char* excludes = "";         ///< An earlier row that cannot be given together with this one.
  const char* group = "";            ///< Heading in --help; empty: "Options".
  const char* fixed = kReadAtStart;  ///< Why it needs a restart; empty: it can be changed while the node runs.
  bool is_secret = false;            ///< The value is left out of pages, logs and errors.
};
inline OptionRow secret(OptionRow row) {
  row.is_secret = true;
  return row;
}
inline OptionRow live(OptionRow row) {
  row.fixed = "";
  return row;
}
inline OptionRow fixed(const char* why, OptionRow row) {
  row.fixed = why;
  return row;
}

void add_options(CLI::App& app, const std::vector<OptionRow>& rows);

/// The variable's value in the form that assign() takes: one text, or one for each element of a list.
std::vector<std::string> values_of(const OptionRow& row);
std::string allowed_text(const OptionRow& row);  ///< "1 to 256", "trace, debug or info".
bool is_list(const OptionRow& row);
/// Sets the row's variable. Returns "", or an error with name, value and what is allowed; then it is unchanged.
std::string assign(const OptionRow& row, const std::vector<std::string>& values);

const OptionRow* find_row(const std::vector<OptionRow>& rows, std::string_view name);  ///< nullptr: there is none.
std::vector<std::string> names_of(const std::vector<OptionRow>& rows);
void copy_value(const OptionRow& to, const OptionRow& from);  ///< Both rows are of the same option.

}  // namespace kv
