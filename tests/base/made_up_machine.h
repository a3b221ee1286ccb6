// tests/base/made_up_machine.h: /sys and /proc of a machine that is not there, as files below a directory of the
// test's.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace kv {

class MadeUpMachine {
 public:
  MadeUpMachine() : root_(testing::TempDir() + "kvstore-machine-XXXXXX") {
    if (::mkdtemp(root_.data()) == nullptr) throw std::runtime_error(root_);
  }
  ~MadeUpMachine() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  MadeUpMachine(const MadeUpMachine&) = delete;
  MadeUpMachine& operator=(const MadeUpMachine&) = delete;

  const std::string& root() const { return root_; }
  MadeUpMachine& file(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }
  /// As Linux writes it; `memory_mib` 0: a node without memory has a meminfo too.
  MadeUpMachine& node(unsigned number, const std::string& processors, std::uint64_t memory_mib,
                      std::uint64_t free_mib = 0) {
    const std::string own = "/sys/devices/system/node/node" + std::to_string(number), name = std::to_string(number);
    const auto line = [&](const std::string& what, std::uint64_t mib) {
      return "Node " + name + " " + what + ":" + std::string(8, ' ') + std::to_string(mib << 10) + " kB\n";
    };
    return file(own + "/cpulist", processors + "\n")
        .file(own + "/meminfo", line("MemTotal", memory_mib) + line("MemFree", free_mib) +
                                    line("MemUsed", memory_mib - free_mib) + line("Inactive(anon)", 7) +
                                    line("Inactive(file)", 0) + "Node " + name + " HugePages_Total:     0\n");
  }
  MadeUpMachine& online(const std::string& nodes) { return file("/sys/devices/system/node/online", nodes + "\n"); }

 private:
  std::string root_;
};

}  // namespace kv
