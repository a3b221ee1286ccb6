// store/node/option_table.h: options of a command line as rows of a table.
//
// One row is all that is said of an option. A value arrives as text, from a flag, the environment or a file, is held
// against the row's limits, and leaves in the variable that the row points to.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace CLI {
class App;
}

namespace kv {

/// Where the value goes. The type says how it is written: a Duration in seconds ("0.05"), the rest as it is.
using OptionTarget = std::variant<std::string*, std::vector<std::string>*, bool*, double*, std::uint64_t*,
                                  std::uint32_t*, std::uint8_t*, Duration*, std::chrono::microseconds*>;

struct IntegerLimits {
  int min, max;
};
struct RealLimits {
  double min, max;
};
/// Also says that the value is a size and takes units: 4GiB is 4 * 2^30.
struct SizeLimits {
  std::uint64_t min = 0, max = 0;
  const char* text = nullptr;  ///< The limits in words; nullptr: there are none.
};
inline constexpr SizeLimits kAnySize{};
inline constexpr SizeLimits kSizeOrZero{0, std::uint64_t{1} << 46, "0 to 64 TiB"};
inline constexpr SizeLimits kSize{1, std::uint64_t{1} << 46, "1 byte to 64 TiB"};  // "-1" would be 2^64 - 1
using OneOf = std::vector<std::string>;
inline constexpr std::monostate kAny{};  ///< Whatever the type can hold.
using OptionLimits = std::variant<std::monostate, IntegerLimits, RealLimits, SizeLimits, OneOf>;

struct OptionRow {
  const char* name;  ///< Without dashes: --NAME, NAME in the file, KVSTORE_NAME in the environment.
  OptionTarget to;   ///< Outlives the parse. What it holds before is the default, and --help shows it.
  OptionLimits limits;
  const char* help;
  const char* group = "";     ///< Heading in --help; empty: "Options".
  const char* excludes = "";  ///< The name of an earlier row that cannot be given with this one; empty: none.
};

/// Adds the rows to `app` in their order, which is that of --help.
void add_options(CLI::App& app, const std::vector<OptionRow>& rows);

std::string environment_name(std::string_view option);  ///< spill-path: KVSTORE_SPILL_PATH

}  // namespace kv
