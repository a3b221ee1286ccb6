#include "store/node/options/config_file.h"

#include <spdlog/fmt/fmt.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text/printable.h"

namespace kv {
namespace {

constexpr std::size_t kFileBytesMax = 1 << 20;

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

/// Numbers and booleans as they are, the rest as strings.
std::string toml_value(const std::string& value) {
  const bool is_number = !value.empty() && value.find_first_not_of("0123456789.") == std::string::npos;
  return is_number || value == "true" || value == "false" ? value : quoted(value);
}

std::string toml_line(const ConfigLine& line) {
  if (!line.is_list) return line.name + " = " + toml_value(line.values.empty() ? "" : line.values.front());
  std::string text = line.name + " = [";
  for (std::size_t i = 0; i < line.values.size(); ++i) text += (i == 0 ? "" : ", ") + quoted(line.values[i]);
  return text + "]";
}

/// The start of the line's comment, or its length; `*open` counts brackets left open, `*open_quote` a quote.
std::size_t comment_of(std::string_view line, int* open, char* open_quote = nullptr) {
  char quote = '\0';
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quote == '"' && line[i] == '\\') {
      ++i;
    } else if (quote != '\0') {
      if (line[i] == quote) quote = '\0';
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#') {
      return i;
    } else {
      *open += line[i] == '[' ? 1 : line[i] == ']' ? -1 : 0;
    }
  }
  if (open_quote != nullptr) *open_quote = quote;
  return line.size();
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

/// Removes one value from the front: a quoted text, whose quotes are closed, or all up to a comma or bracket. Returns
/// "" or an error.
std::string take_value(std::string_view& text, std::string* value) {
  const char quote = text.front();
  if (quote != '"' && quote != '\'') {
    const std::string_view bare = trimmed(text.substr(0, text.find_first_of(",]")));
    text.remove_prefix(std::min(text.size(), text.find_first_of(",]")));
    *value = bare;
    return bare.empty() ? "a value is missing before ','" : "";
  }
  for (text.remove_prefix(1); !text.starts_with(quote); text.remove_prefix(1)) {
    if (text.size() < 2) return "a quote is not closed";
    if (quote == '"' && text.front() == '\\') {
      text.remove_prefix(1);
      const char c = text.front();
      if (c != '"' && c != '\\' && c != 'n' && c != 't')
        return "'\\" + std::string(1, c) + "' is not understood; allowed after '\\' are '\"', '\\', 'n' and 't'";
      *value += c == 'n' ? '\n' : c == 't' ? '\t' : c;
    } else {
      *value += text.front();
    }
  }
  text = trimmed(text.substr(1));
  return "";
}

/// One value, or several in brackets. The text's quotes and brackets are closed.
std::string take_values(std::string_view text, std::vector<std::string>* values) {
  const bool is_list = text.starts_with('[');
  if (is_list) text = trimmed(text.substr(1));
  while (!text.empty() && !(is_list && text.front() == ']')) {
    if (std::string wrong = take_value(text, &values->emplace_back()); !wrong.empty()) return wrong;
    if (is_list && text.starts_with(',')) {
      text = trimmed(text.substr(1));
    } else if (!(is_list && text.starts_with(']')) && !text.empty()) {
      return fmt::format("'{}' stands behind the value{}", text.substr(0, 40),
                         is_list ? "; values of a list have commas between them" : "; a list stands in []");
    }
  }
  if (is_list && text.empty()) return "a '[' is not closed";
  if (is_list && trimmed(text.substr(1)) != "")
    return "'" + std::string(text.substr(1, 40)) + "' stands behind the list";
  return "";
}

bool is_name(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; });
}

bool sets(std::string_view line, std::string_view name) {
  const std::size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  if (!line.substr(begin).starts_with(name)) return false;
  const std::size_t behind = line.find_first_not_of(" \t", begin + name.size());
  return behind != std::string_view::npos && line[behind] == '=';
}

}  // namespace

std::string read_config_text(std::string_view toml, std::vector<ConfigStatement>* statements) {
  std::size_t next = 1;
  while (!toml.empty()) {
    const std::size_t number = next;
    const auto wrong = [number](const std::string& why) { return fmt::format("line {}: {}", number, why); };
    int open = 0;
    char quote = '\0';
    // The line without its comment; for a list, all its lines.
    const auto take = [&] {
      const std::string_view line = take_line(toml);
      ++next;
      return std::string(trimmed(line.substr(0, comment_of(line, &open, &quote))));
    };
    std::string text = take();
    const bool is_section = text.starts_with('[');
    while (open > 0 && quote == '\0' && !toml.empty() && !is_section) text += " " + take();
    if (text.empty()) continue;
    const std::string shown = "'" + printable(text.substr(0, 60)) + "'";
    if (is_section) return wrong(shown + ": this file has no sections; allowed: NAME = VALUE");
    if (quote != '\0') return wrong(shown + ": a quote is not closed");
    if (open != 0) return wrong(shown + (open > 0 ? ": a '[' is not closed" : ": a ']' without '['"));
    const std::size_t equals = text.find('=');
    const std::string_view name = trimmed(std::string_view(text).substr(0, equals));
    if (equals == std::string::npos || !is_name(name)) return wrong(shown + ": allowed: NAME = VALUE");
    const std::string_view value = trimmed(std::string_view(text).substr(equals + 1));
    ConfigStatement statement{.name = std::string(name), .values = {}, .line = number};
    if (value.empty()) return wrong(statement.name + ": a value is missing; allowed: NAME = VALUE");
    if (const std::string why = take_values(value, &statement.values); !why.empty())
      return wrong(statement.name + ": " + printable(why));
    statements->push_back(std::move(statement));
  }
  return "";
}

std::string read_config_file(const std::string& path, std::string* text) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path + ": is a directory";
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream was;
  if (!in) return path + ": cannot be read: " + std::strerror(errno);
  was << in.rdbuf();  // fails for an empty file
  *text = was.str();
  if (text->size() > kFileBytesMax) return path + ": is larger than 1 MiB";
  return "";
}

std::string with_options(std::string_view toml, const std::vector<ConfigLine>& lines) {
  std::string text;
  std::vector<bool> is_done(lines.size());
  while (!toml.empty()) {
    const std::string_view line = take_line(toml);
    const auto found = std::ranges::find_if(lines, [&](const ConfigLine& each) { return sets(line, each.name); });
    if (found == lines.end()) {
      text += std::string(line) + '\n';
      continue;
    }
    int open = 0;
    const std::string comment(line.substr(comment_of(line, &open)));
    while (open > 0 && !toml.empty()) comment_of(take_line(toml), &open);  // a list over several lines
    const auto i = static_cast<std::size_t>(found - lines.begin());
    if (is_done[i]) continue;  // set twice: the last one would count
    is_done[i] = true;
    text += toml_line(*found) + (comment.empty() ? "" : "  " + comment) + '\n';
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!is_done[i]) text += toml_line(lines[i]) + '\n';
  }
  return text;
}

std::string write_config_file(const std::string& path, const std::vector<ConfigLine>& lines) {
  const auto failed = [&](const char* what) { return path + ": " + what + ": " + std::strerror(errno); };
  for (const ConfigLine& line : lines) {
    for (const std::string& value : line.values) {
      if (std::ranges::any_of(value, [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
        return line.name + ": has characters that are not written to a file";
    }
  }
  std::error_code error;
  // Replaces a link's target; the link stays.
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return path + ": " + error.message();
  std::string was;
  if (std::string wrong = read_config_file(real, &was); !wrong.empty()) return wrong;
  const std::string text = with_options(was, lines);

  struct stat status {};
  if (::stat(real.c_str(), &status) != 0) return failed("stat");
  const std::string fresh = real.string() + ".new";
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return failed("cannot be written beside");
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  // The owner and mode stay, as far as this process may set them.
  if (::fchown(file, status.st_uid, status.st_gid) != 0) errno = 0;
  bool is_whole = written == text.size() && ::fchmod(file, status.st_mode & 07777) == 0 && ::fsync(file) == 0;
  is_whole = ::close(file) == 0 && is_whole;
  if (!is_whole || ::rename(fresh.c_str(), real.c_str()) != 0) {
    const std::string why = failed("cannot be replaced");
    ::unlink(fresh.c_str());
    return why;
  }
  const int folder = ::open(real.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // best effort: the file is whole in any case
    ::close(folder);
  }
  return "";
}

}  // namespace kv
