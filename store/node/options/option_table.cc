#include "store/node/options/option_table.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <iterator>
#include <limits>
#include <string_view>
#include <type_traits>

#include "base/text/printable.h"
#include "base/text/quantity.h"
#include "base/text/spelling.h"
#include "base/text/variables.h"

namespace kv {
namespace {

template <class T>
std::string shortest(T value) {  // the shortest text that reads back as the same value
  char text[40];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

/// In the largest unit that gives a whole number: 64GiB.
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
std::string text_of_limits(const OptionTarget& to, IntegerLimits limits) {
  const std::string range = fmt::format("{} to {}", limits.min, limits.max);
  return std::holds_alternative<std::chrono::microseconds*>(to) ? range + " microseconds, such as 50us or 1ms" : range;
}
std::string text_of_limits(const OptionTarget& to, RealLimits limits) {
  const std::string range = shortest(limits.min) + " to " + shortest(limits.max);
  return std::holds_alternative<Duration*>(to) ? range + " seconds, such as 10s or 500ms" : range;
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
std::string text_of_limits(const OptionTarget&, Form form) { return form.text; }

/// The type shown behind the flag in --help.
std::string type_of(const OptionRow& row) {
  if (const auto* const words = std::get_if<OneOf>(&row.limits)) {
    std::string text;
    for (const std::string& word : *words) text += (text.empty() ? "TEXT:{" : ",") + word;
    return text + "}";
  }
  if (std::holds_alternative<SizeLimits>(row.limits)) return "SIZE";
  if (std::holds_alternative<bool*>(row.to)) return "BOOLEAN";
  if (is_list(row) || std::holds_alternative<std::string*>(row.to)) return "TEXT";
  const bool is_time =
      std::holds_alternative<Duration*>(row.to) || std::holds_alternative<std::chrono::microseconds*>(row.to);
  return is_time ? "TIME" : "NUMBER";
}

// -- from text into a variable: true if the text is valid and within limits

template <class Limits>
bool is_within(double value, const Limits& limits) {
  if constexpr (std::is_same_v<Limits, IntegerLimits> || std::is_same_v<Limits, RealLimits>)
    return value >= limits.min && value <= limits.max;
  return true;
}

bool is_within_all(double value, const OptionLimits& limits) {
  return std::visit([value](const auto& each) { return is_within(value, each); }, limits);
}

bool read(const std::string& text, const OptionLimits& limits, std::string* to) {
  const auto* const words = std::get_if<OneOf>(&limits);
  if (words != nullptr && std::ranges::find(*words, text) == words->end()) return false;
  *to = text;
  return true;
}

bool read(const std::string& text, const OptionLimits&, bool* to) {
  const bool is_true = text == "true" || text == "on" || text == "yes" || text == "1";
  if (!is_true && text != "false" && text != "off" && text != "no" && text != "0") return false;
  *to = is_true;
  return true;
}

bool read(const std::string& text, const OptionLimits& limits, double* to) {
  const auto number = parse_number<double>(text);
  if (!number || !std::isfinite(*number) || !is_within_all(*number, limits)) return false;
  *to = *number;
  return true;
}

bool read(const std::string& text, const OptionLimits& limits, Duration* to) {
  constexpr double kSecondsMax = 1e9;  // fits into nanoseconds
  double seconds = 0;
  if (!parse_seconds(text, &seconds) || seconds > kSecondsMax || !is_within_all(seconds, limits)) return false;
  *to = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return true;
}

bool read(const std::string& text, const OptionLimits& limits, std::chrono::microseconds* to) {
  double microseconds = 0;
  if (!parse_microseconds(text, &microseconds) || microseconds > 1e15 || !is_within_all(microseconds, limits))
    return false;
  *to = std::chrono::microseconds(std::llround(microseconds));
  return true;
}

template <std::unsigned_integral T>
bool read(const std::string& text, const OptionLimits& limits, T* to) {
  std::uint64_t number = 0;
  if (const auto* const sizes = std::get_if<SizeLimits>(&limits)) {
    if (!parse_bytes(text, &number)) return false;
    if (sizes->text != nullptr && (number < sizes->min || number > sizes->max)) return false;
  } else {
    const auto read = parse_number<std::uint64_t>(text);
    if (!read || !is_within_all(static_cast<double>(*read), limits)) return false;
    number = *read;
  }
  if (number > std::numeric_limits<T>::max()) return false;
  *to = static_cast<T>(number);
  return true;
}

}  // namespace

const OptionRow* find_row(const std::vector<OptionRow>& rows, std::string_view name) {
  const auto found = std::ranges::find(rows, name, [](const OptionRow& row) { return std::string_view(row.name); });
  return found == rows.end() ? nullptr : &*found;
}

std::vector<std::string> names_of(const std::vector<OptionRow>& rows) {
  std::vector<std::string> names;
  for (const OptionRow& row : rows) names.emplace_back(row.name);
  return names;
}

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

bool is_list(const OptionRow& row) { return std::holds_alternative<std::vector<std::string>*>(row.to); }

std::string assign(const OptionRow& row, const std::vector<std::string>& values) {
  if (auto* const* const list = std::get_if<std::vector<std::string>*>(&row.to)) return **list = values, "";
  const auto refused = [&row](const std::string& given) {
    return std::string(row.name) + ": " + given + "; allowed: " + allowed_text(row);
  };
  std::string given;
  for (const std::string& value : values)
    given += (given.empty() ? "'" : ", '") + (row.is_secret ? "(set)" : printable(value)) + "'";
  if (values.empty()) return refused("no value");
  if (values.size() > 1) return refused(given + " are several values, where it takes one");
  const bool is_read = std::visit(
      [&](auto* to) {
        if constexpr (std::is_same_v<decltype(to), std::vector<std::string>*>)
          return false;  // handled above
        else
          return read(values.front(), row.limits, to);
      },
      row.to);
  if (is_read) return "";
  const auto* const words = std::get_if<OneOf>(&row.limits);
  return refused(given) + (words == nullptr ? "" : did_you_mean(values.front(), *words));
}

/// `excludes` names an option of an earlier row: CLI11 only accepts options already added.
void add_options(CLI::App& app, const std::vector<OptionRow>& rows) {
  for (const OptionRow& row : rows) {
    const std::string flag = std::string("--") + row.name;
    CLI::Option* const option = is_list(row) ? app.add_option_function<std::vector<std::string>>(
                                                   flag, [](const auto&) {}, row.help)
                                             : app.add_option_function<std::string>(
                                                   flag, [](const auto&) {}, row.help);
    std::string otherwise;
    for (const std::string& value : values_of(row)) otherwise += (otherwise.empty() ? "" : ",") + value;
    option->type_name(type_of(row))->default_str(otherwise)->envname(node_variable(row.name));
    if (*row.group != '\0') option->group(row.group);
    if (*row.excludes != '\0') option->excludes(app.get_option(std::string("--") + row.excludes));
  }
}

}  // namespace kv
