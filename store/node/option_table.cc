#include "store/node/option_table.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <iterator>
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

CLI::Option* add_limited(CLI::App& app, const OptionRow& row) {
  CLI::Option* const option = add_target(app, std::string("--") + row.name, row.to, row.help);
  std::visit([option](const auto& limits) { limit(*option, limits); }, row.limits);
  return option;
}

template <class T>
std::string shortest(T value) {  // that is read back as the same value
  char text[40];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

/// In the largest unit in which it is a whole number: 64GiB.
std::string size_text(std::uint64_t bytes) {
  constexpr std::pair<const char*, int> kUnits[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, bits] : kUnits) {
    if (bytes > 0 && bytes % (std::uint64_t{1} << bits) == 0) return std::to_string(bytes >> bits) + unit;
  }
  return std::to_string(bytes);
}

std::string text_of_limits(const OptionTarget& to, std::monostate) {
  if (std::holds_alternative<bool*>(to)) return "true or false";
  if (std::holds_alternative<std::string*>(to) || std::holds_alternative<std::vector<std::string>*>(to)) return "text";
  return std::holds_alternative<double*>(to) || std::holds_alternative<Duration*>(to) ? "a number" : "a whole number";
}
std::string text_of_limits(const OptionTarget&, IntegerLimits limits) {
  return std::to_string(limits.min) + " to " + std::to_string(limits.max);
}
std::string text_of_limits(const OptionTarget&, RealLimits limits) {
  return shortest(limits.min) + " to " + shortest(limits.max);
}
std::string text_of_limits(const OptionTarget&, SizeLimits limits) {
  return limits.text == nullptr ? "a size such as 64GiB" : std::string(limits.text) + ", such as 64GiB";
}
std::string text_of_limits(const OptionTarget&, const OneOf& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

}  // namespace

void copy_value(const OptionRow& to, const OptionRow& from) {
  std::visit([&](auto* own) { *own = **std::get_if<decltype(own)>(&from.to); }, to.to);
}

std::string allowed_text(const OptionRow& row) {
  return std::visit([&](const auto& limits) { return text_of_limits(row.to, limits); }, row.limits);
}

std::vector<std::string> values_of(const OptionRow& row) {
  return std::visit(
      [&](const auto* from) -> std::vector<std::string> {
        using T = std::remove_cvref_t<decltype(*from)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return *from;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return {*from};
        } else if constexpr (std::is_same_v<T, bool>) {
          return {*from ? "true" : "false"};
        } else if constexpr (std::is_same_v<T, double>) {
          return {shortest(*from)};
        } else if constexpr (std::is_same_v<T, Duration>) {
          return {shortest(std::chrono::duration<double>(*from).count())};
        } else if constexpr (std::is_same_v<T, std::chrono::microseconds>) {
          return {std::to_string(from->count())};
        } else {
          const bool is_size = std::holds_alternative<SizeLimits>(row.limits);
          return {is_size ? size_text(*from) : std::to_string(*from)};
        }
      },
      row.to);
}

/// By CLI11, as at the start: what one takes the other takes too. Its words name flags, and not always what is allowed.
std::string assign(const OptionRow& row, const std::vector<std::string>& values) {
  if (auto* const* const list = std::get_if<std::vector<std::string>*>(&row.to)) return **list = values, "";
  if (values.empty()) return std::string(row.name) + ": no value; allowed: " + allowed_text(row);
  std::string given;
  for (const std::string& value : values) given += (given.empty() ? "'" : ", '") + value + "'";
  if (auto* const* const text = std::get_if<std::string*>(&row.to);
      text != nullptr && values.size() == 1 && std::holds_alternative<std::monostate>(row.limits))
    return **text = values.front(), "";  // it may be empty
  if (values.size() > 1) return std::string(row.name) + ": " + given + " are several values, it takes one";
  CLI::App app;
  add_limited(app, row);
  std::vector<std::string> arguments;  // last one first, as CLI11 wants them
  for (const std::string& value : values)
    arguments.insert(arguments.begin(), "--" + std::string(row.name) + "=" + value);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return std::string(row.name) + ": " + given + "; allowed: " + allowed_text(row);
  }
  return "";
}

std::string environment_name(std::string_view option) {
  std::string name = "KVSTORE_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// `excludes` names an option of an earlier row: CLI11 knows only those that were added before.
void add_options(CLI::App& app, const std::vector<OptionRow>& rows) {
  for (const OptionRow& row : rows) {
    CLI::Option* const option = add_limited(app, row);
    option->envname(environment_name(row.name));
    if (*row.group != '\0') option->group(row.group);
    if (*row.excludes != '\0') option->excludes(app.get_option(std::string("--") + row.excludes));
  }
}

}  // namespace kv
