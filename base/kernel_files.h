// base/kernel_files.h: the kernel's small text files in /proc and /sys. What cannot be read is empty.
#pragma once

#include <fstream>
#include <string>

namespace kv {

inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The text behind "NAME:" at the beginning of a line.
inline std::string kernel_value(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  }
  return "";
}

}  // namespace kv
