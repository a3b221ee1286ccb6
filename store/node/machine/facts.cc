#include "store/node/machine/facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/kernel_files.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

/// The number at the start of the text, which may have a sign, and words after it.
std::optional<std::int64_t> number_of(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return std::int64_t{1} << 62;
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> size_of_file(const fs::path& path) {
  const auto number = number_of(first_line(path));
  return number && *number >= 0 ? std::optional(static_cast<std::uint64_t>(*number)) : std::nullopt;
}

/// The number behind "NAME" or "NAME:" at a line's beginning.
std::optional<std::uint64_t> value_in(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t behind = name.size() + (line.substr(name.size()).starts_with(':') ? 1 : 0);
    if (behind >= line.size() || (line[behind] != ' ' && line[behind] != '\t')) continue;
    const auto number = number_of(std::string_view(line).substr(behind));
    if (number && *number >= 0) return static_cast<std::uint64_t>(*number);
  }
  return std::nullopt;
}

/// The control groups of this process, its own first, then the enclosing ones: each is a limit. In a container the path
/// may be the host's and absent; the root of the visible tree always exists.
std::vector<fs::path> groups_from(const fs::path& mount, const std::string& path) {
  std::vector<fs::path> groups;
  fs::path own = fs::path(path).relative_path();
  std::error_code ignored;
  while (true) {
    if (fs::is_directory(mount / own, ignored)) groups.push_back(mount / own);
    if (own.empty()) return groups;
    own = own.parent_path();
  }
}

struct GroupPaths {
  std::vector<fs::path> unified, memory, huge, processor;
};

GroupPaths group_paths(const std::string& root) {
  GroupPaths paths;
  const fs::path mount = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    const auto add = [&](std::vector<fs::path>& to, const fs::path& from) {
      const auto groups = groups_from(from, path);
      to.insert(to.end(), groups.begin(), groups.end());
    };
    if (names == ",,") {
      add(paths.unified, mount);
      add(paths.unified, mount / "unified");
    }
    if (names.find(",memory,") != std::string::npos) add(paths.memory, mount / "memory");
    if (names.find(",hugetlb,") != std::string::npos) add(paths.huge, mount / "hugetlb");
    if (names.find(",cpu,") != std::string::npos) {
      add(paths.processor, mount / "cpu");
      add(paths.processor, mount / "cpu,cpuacct");
    }
  }
  return paths;
}

/// `cached`: the part of the used memory that the kernel takes back when it needs it.
void narrow(std::optional<MachineFacts::Room>& room, std::optional<std::uint64_t> limit,
            std::optional<std::uint64_t> used, std::uint64_t cached) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 writes a very large number
  if (!limit || !used || *limit >= kNoLimit) return;
  const std::uint64_t taken = *used - std::min(*used, cached);
  const std::uint64_t left = *limit - std::min(*limit, taken);
  if (!room || left < room->left_bytes) room = MachineFacts::Room{*limit, left};
}

std::optional<MachineFacts::Room> group_memory(const GroupPaths& paths) {
  std::optional<MachineFacts::Room> room;
  for (const fs::path& group : paths.unified) {
    narrow(room, size_of_file(group / "memory.max"), size_of_file(group / "memory.current"),
           value_in(group / "memory.stat", "inactive_file").value_or(0));
  }
  for (const fs::path& group : paths.memory) {
    narrow(room, size_of_file(group / "memory.limit_in_bytes"), size_of_file(group / "memory.usage_in_bytes"),
           value_in(group / "memory.stat", "total_inactive_file").value_or(0));
  }
  return room;
}

/// Reserving and touching have separate limits.
std::optional<MachineFacts::Room> group_huge_pages(const GroupPaths& paths) {
  std::optional<MachineFacts::Room> room;
  for (const std::string of : {"hugetlb.2MB.", "hugetlb.2MB.rsvd."}) {
    for (const fs::path& group : paths.unified)
      narrow(room, size_of_file(group / (of + "max")), size_of_file(group / (of + "current")), 0);
    for (const fs::path& group : paths.huge)
      narrow(room, size_of_file(group / (of + "limit_in_bytes")), size_of_file(group / (of + "usage_in_bytes")), 0);
  }
  return room;
}

std::optional<double> group_processors(const GroupPaths& paths) {
  std::optional<double> least;
  const auto take = [&least](std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return;  // "max", or -1: unlimited
    const double processors = static_cast<double>(*quota) / static_cast<double>(*period);
    least = least ? std::min(*least, processors) : processors;
  };
  for (const fs::path& group : paths.unified) {
    const std::string line = first_line(group / "cpu.max");
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) take(number_of(line), number_of(std::string_view(line).substr(space)));
  }
  for (const fs::path& group : paths.processor)
    take(number_of(first_line(group / "cpu.cfs_quota_us")), number_of(first_line(group / "cpu.cfs_period_us")));
  return least;
}

/// The last of the three numbers of tcp_rmem and tcp_wmem.
std::optional<std::uint64_t> third_number(const fs::path& path) {
  std::istringstream line(first_line(path));
  std::uint64_t least = 0, usual = 0, most = 0;
  return line >> least >> usual >> most ? std::optional(most) : std::nullopt;
}

std::optional<MachineFacts::Limit> limit_of(auto resource) {  // the C library has its own enum for it
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return std::nullopt;
  const auto bytes = [](rlim_t value) { return value == RLIM_INFINITY ? MachineFacts::kUnlimited : value; };
  return MachineFacts::Limit{bytes(limit.rlim_cur), bytes(limit.rlim_max)};
}

bool has_ipc_lock(const std::string& root) {
  constexpr int kIpcLock = 14;
  std::uint64_t bits = 0;
  std::istringstream(kernel_value(root + "/proc/self/status", "CapEff")) >> std::hex >> bits;
  return (bits >> kIpcLock & 1) != 0;
}

int numa_node_in(const fs::path& device) {
  const auto number = number_of(first_line(device / "numa_node"));
  return number && *number >= 0 && *number < 8192 ? static_cast<int>(*number) : -1;
}

std::vector<MachineFacts::Device> devices_of(const std::string& root) {
  std::vector<MachineFacts::Device> devices;
  const auto each_in = [](const fs::path& folder, auto&& look) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) look(at->path());
  };
  each_in(root + "/sys/class/infiniband", [&](const fs::path& device) {
    devices.push_back({device.filename().string(), /*is_rdma=*/true, numa_node_in(device / "device")});
  });
  // Display and processing controllers (classes 03 and 12) by makers of accelerators: NVIDIA and AMD.
  each_in(root + "/sys/bus/pci/devices", [&](const fs::path& device) {
    const std::string kind = first_line(device / "class"), vendor = first_line(device / "vendor");
    if (!kind.starts_with("0x0302") && !kind.starts_with("0x0300") && !kind.starts_with("0x12")) return;
    if (vendor != "0x10de" && vendor != "0x1002") return;
    devices.push_back({device.filename().string(), /*is_rdma=*/false, numa_node_in(device)});
  });
  std::ranges::sort(devices, {}, &MachineFacts::Device::name);
  return devices;
}

}  // namespace

MachineFacts read_memory_facts(const std::string& root) {
  MachineFacts facts;
  if (const auto kib = value_in(root + "/proc/meminfo", "MemTotal")) facts.memory_total_bytes = *kib << 10;
  if (const auto kib = value_in(root + "/proc/meminfo", "MemAvailable")) facts.memory_available_bytes = *kib << 10;
  const fs::path huge = root + "/sys/kernel/mm/hugepages/hugepages-2048kB";
  const auto count = size_of_file(huge / "nr_hugepages"), free_count = size_of_file(huge / "free_hugepages");
  const auto promised = size_of_file(huge / "resv_hugepages").value_or(0);  // still free, but promised to a process
  if (count && free_count) facts.huge_pages = {*count, *free_count - std::min(*free_count, promised)};
  facts.shmem_huge = first_line(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const GroupPaths groups = group_paths(root);
  facts.group_memory = group_memory(groups);
  facts.group_huge_pages = group_huge_pages(groups);
  return facts;
}

MachineFacts read_processor_facts(const std::string& root) {
  MachineFacts facts;
  facts.group_processors = group_processors(group_paths(root));
  facts.allowed_processors = allowed_processors();
  if (const long online = ::sysconf(_SC_NPROCESSORS_ONLN); online > 0)
    facts.machine_processor_count = static_cast<std::size_t>(online);
  return facts;
}

MachineFacts read_machine_facts(const std::string& root) {
  MachineFacts facts = read_memory_facts(root);
  MachineFacts processors = read_processor_facts(root);
  facts.group_processors = processors.group_processors;
  facts.allowed_processors = std::move(processors.allowed_processors);
  facts.machine_processor_count = processors.machine_processor_count;
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.files = limit_of(RLIMIT_NOFILE);
  facts.ignores_locked_limit = has_ipc_lock(root);
  const fs::path net = root + "/proc/sys/net";
  facts.tcp_receive_max = third_number(net / "ipv4/tcp_rmem");
  facts.tcp_send_max = third_number(net / "ipv4/tcp_wmem");
  facts.socket_send_max = size_of_file(net / "core/wmem_max");
  facts.numa = NumaTopology::read(root);
  facts.devices = devices_of(root);
  return facts;
}

}  // namespace kv
