#include "store/node/option_table.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <sstream>
#include <type_traits>

#include "base/assert.h"

namespace kv {
namespace {

/// As CLI11 writes defaults of its own.
template <class T>
std::string text_of(T value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

/// An option whose value is read as T and kept as something else, which CLI11 can neither read nor show.
template <class T, class Keep>
CLI::Option* add_converted(CLI::App& app, const std::string& flag, const char* help, T before, Keep keep) {
  return app
      .add_option_function<T>(
          flag, [keep](const T& value) { keep(value); }, help)
      ->default_str(text_of(before));
}

/// CLI11 shows a default as it prints the value. Types that it prints or reads wrongly go through one that it knows.
CLI::Option* add_target(CLI::App& app, const std::string& flag, const OptionTarget& target, const char* help) {
  return std::visit(
      [&](auto* to) -> CLI::Option* {
        using T = std::remove_pointer_t<decltype(to)>;
        KV_ASSERT(to != nullptr);
        if constexpr (std::is_same_v<T, Duration>) {
          using Seconds = std::chrono::duration<double>;
          const auto keep = [to](double value) { *to = std::chrono::duration_cast<Duration>(Seconds(value)); };
          return add_converted<double>(app, flag, help, Seconds(*to).count(), keep);
        } else if constexpr (std::is_same_v<T, std::chrono::microseconds>) {
          const auto keep = [to](std::size_t value) { *to = std::chrono::microseconds(value); };
          return add_converted<std::size_t>(app, flag, help, static_cast<std::size_t>(to->count()), keep);
        } else if constexpr (std::is_same_v<T, std::uint8_t>) {  // which CLI11 would take for a letter
          const auto keep = [to](unsigned value) {
            KV_ASSERT(value <= 255);  // its limits
            *to = static_cast<std::uint8_t>(value);
          };
          return add_converted<unsigned>(app, flag, help, *to, keep);
        } else {
          return app.add_option(flag, *to, help)->capture_default_str();
        }
      },
      target);
}

void limit(CLI::Option& option, std::monostate) { static_cast<void>(option); }
void limit(CLI::Option& option, IntegerLimits limits) { option.check(CLI::Range(limits.min, limits.max)); }
void limit(CLI::Option& option, RealLimits limits) { option.check(CLI::Range(limits.min, limits.max)); }
void limit(CLI::Option& option, const OneOf& words) { option.check(CLI::IsMember(words)); }
void limit(CLI::Option& option, SizeLimits limits) {
  option.transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  if (limits.text != nullptr) option.check(CLI::Range(limits.min, limits.max, limits.text));
}

}  // namespace

std::string environment_name(std::string_view option) {
  std::string name = "KVSTORE_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// `excludes` names an option of an earlier row: CLI11 knows only those that were added before.
void add_options(CLI::App& app, const std::vector<OptionRow>& rows) {
  for (const OptionRow& row : rows) {
    CLI::Option* const option = add_target(app, std::string("--") + row.name, row.to, row.help);
    option->envname(environment_name(row.name));
    std::visit([option](const auto& limits) { limit(*option, limits); }, row.limits);
    if (*row.group != '\0') option->group(row.group);
    if (*row.excludes != '\0') option->excludes(app.get_option(std::string("--") + row.excludes));
  }
}

}  // namespace kv
