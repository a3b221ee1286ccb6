#include "store/node/live/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

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

/// Where the line's comment begins, or its length; and how many brackets stay open before that.
std::size_t comment_of(std::string_view line, int* open) {
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
  return line.size();
}

bool sets(std::string_view line, std::string_view name) {
  const std::size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  if (!line.substr(begin).starts_with(name)) return false;
  const std::size_t behind = line.find_first_not_of(" \t", begin + name.size());
  return behind != std::string_view::npos && line[behind] == '=';
}

}  // namespace

std::string with_options(std::string_view toml, const std::vector<ConfigLine>& lines) {
  std::string text;
  std::vector<bool> is_done(lines.size());
  const auto next_line = [&toml] {
    const std::string_view line = toml.substr(0, toml.find('\n'));
    toml.remove_prefix(std::min(toml.size(), line.size() + 1));
    return line;
  };
  while (!toml.empty()) {
    const std::string_view line = next_line();
    const auto found = std::ranges::find_if(lines, [&](const ConfigLine& each) { return sets(line, each.name); });
    if (found == lines.end()) {
      text += std::string(line) + '\n';
      continue;
    }
    int open = 0;
    const std::string comment(line.substr(comment_of(line, &open)));
    while (open > 0 && !toml.empty()) comment_of(next_line(), &open);  // a list over several lines
    const auto i = static_cast<std::size_t>(found - lines.begin());
    if (is_done[i]) continue;  // said twice: the last one would count
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
  // A link stays one: what it names is replaced.
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return path + ": " + error.message();
  std::ifstream in(real, std::ios::binary);
  std::ostringstream was;
  was << in.rdbuf();
  if (!in || was.str().size() > kFileBytesMax) return path + ": cannot be read, or is larger than 1 MiB";
  const std::string text = with_options(was.str(), lines);

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
  // Who may read it stays as it was, as far as this process may say so.
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
