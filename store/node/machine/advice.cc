#include "store/node/machine/advice.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "store/node/machine/processors.h"

namespace kv {
namespace {

using Kind = Advice::Kind;

constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
constexpr std::uint64_t kIndexBytesMin = 256 * kMiB;          ///< index-bytes-max = 0: this and a part of the capacity.
constexpr std::uint64_t kIndexPart = 16;                      ///< That part: one in so many.
constexpr std::uint64_t kWriteBytesOfDirectory = 200 * kMiB;  ///< Memory for blocks being written to it.
constexpr std::uint64_t kSocketBytes = 4 * kMiB;              ///< Of a buffer, for large transfers.
constexpr std::uint64_t kOwnFiles = 64;    ///< Open besides sessions, lent regions and the disk's files.
constexpr double kFilesPerByte = 1.25;     ///< Ratio of a disk's files to their contents.
constexpr double kFileSystemShare = 0.95;  ///< Usable part of a file system.

std::string rate_words(double bytes) { return size_words(static_cast<std::uint64_t>(bytes)) + "/s"; }

/// The largest round size that fits: whole GiB, or 64 MiB for small sizes, or 2 MiB.
std::uint64_t rounded_down(std::uint64_t bytes) {
  const std::uint64_t step = bytes >= 8 * kGiB ? kGiB : bytes >= 256 * kMiB ? 64 * kMiB : kHugePageBytes;
  return bytes / step * step;
}
std::string size_option(std::uint64_t bytes) {  // of whole MiB
  return bytes % kGiB == 0 ? std::to_string(bytes / kGiB) + "GiB" : std::to_string(bytes / kMiB) + "MiB";
}

/// Calls append to one list, and later ones use values settled by earlier ones, above all the capacity.
class Adviser {
 public:
  Adviser(const MachineFacts& facts, const NodeWishes& wishes)
      : facts_(facts), wishes_(wishes), capacity_bytes_(wishes.capacity_bytes) {}

  std::vector<Advice> all() {
    memory();
    huge_pages();
    threads();
    numa();
    locked_memory();
    open_files();
    sockets();
    disks();
    return std::move(advices_);
  }

 private:
  void fine(std::string subject, std::string measured) {
    advices_.push_back({.subject = std::move(subject), .kind = Kind::kFine, .measured = std::move(measured)});
  }
  void unknown(std::string subject, std::string why) {
    advices_.push_back({.subject = std::move(subject), .kind = Kind::kUnknown, .measured = std::move(why)});
  }
  void set(Kind kind, std::string subject, std::string measured, std::string reason, std::string option,
           std::string value) {
    advices_.push_back({.subject = std::move(subject),
                        .kind = kind,
                        .measured = std::move(measured),
                        .reason = std::move(reason),
                        .option = std::move(option),
                        .value = std::move(value)});
  }
  void machine(std::string subject, std::string measured, std::string reason, std::string command) {
    advices_.push_back({.subject = std::move(subject),
                        .kind = Kind::kMachine,
                        .measured = std::move(measured),
                        .reason = std::move(reason),
                        .command = std::move(command)});
  }

  std::uint64_t free_huge_bytes() const {
    return facts_.huge_pages && wishes_.huge_pages ? facts_.huge_pages->free_count * kHugePageBytes : 0;
  }
  bool is_on_huge_pages() const { return free_huge_bytes() >= capacity_bytes_; }
  /// Besides the blocks: the index at its bound, and blocks being written to disk.
  std::uint64_t fixed_bytes() const {
    return (wishes_.index_bytes_max > 0 ? wishes_.index_bytes_max : kIndexBytesMin) +
           wishes_.disk_paths.size() * kWriteBytesOfDirectory;
  }
  std::uint64_t index_part(std::uint64_t capacity) const {
    return wishes_.index_bytes_max > 0 ? 0 : capacity / kIndexPart;
  }
  std::uint64_t overhead_bytes() const { return fixed_bytes() + index_part(capacity_bytes_); }
  std::uint64_t most_capacity(std::uint64_t room) const {
    const std::uint64_t left = room - std::min(room, fixed_bytes());
    return wishes_.index_bytes_max > 0 ? left : left / (kIndexPart + 1) * kIndexPart;
  }

  void capacity(Kind kind, const std::string& measured, const std::string& reason, std::uint64_t bytes) {
    if (wishes_.capacity_block_bytes > 0) {
      const std::uint64_t blocks = bytes / wishes_.capacity_block_bytes;
      set(kind, "memory", measured, reason, "capacity-blocks", std::to_string(blocks));
      bytes = blocks * wishes_.capacity_block_bytes;
    } else {
      set(kind, "memory", measured, reason, "capacity", size_option(bytes));
    }
    if (kind == Kind::kSet) capacity_bytes_ = bytes;
  }

  void memory() {
    if (!facts_.memory_available_bytes) return unknown("memory", "/proc/meminfo does not say how much is available");
    room_bytes_ = *facts_.memory_available_bytes;
    std::string measured = size_words(room_bytes_) + " available";
    if (facts_.group_memory) {
      measured += "; the control group allows " + size_words(facts_.group_memory->limit_bytes) + ", of which " +
                  size_words(facts_.group_memory->left_bytes) + " are left";
      room_bytes_ = std::min(room_bytes_, facts_.group_memory->left_bytes);
    }
    const std::uint64_t arena = is_on_huge_pages() ? 0 : capacity_bytes_;  // reserved pages are not available ones
    measured += "; the node takes " + size_words(capacity_bytes_) + (arena == 0 ? " of reserved huge pages" : "") +
                " for blocks and up to " + size_words(overhead_bytes()) + " beside";
    const std::uint64_t most = rounded_down(most_capacity(room_bytes_));
    const std::uint64_t least = std::max(kHugePageBytes, wishes_.capacity_block_bytes);
    if (arena + overhead_bytes() > room_bytes_) {
      const std::string reason = "what is not there makes the node fail at its start, or be killed later";
      if (arena > 0 && most >= least) return capacity(Kind::kSet, measured, reason, most);
      return machine("memory", measured, reason, "free memory on this machine, or raise its control group's limit");
    }
    if (!wishes_.has_default_capacity || arena == 0 || most <= capacity_bytes_) return fine("memory", measured);
    capacity(Kind::kMay, measured,
             "nobody chose the capacity, and so much would fit now; an engine that is yet to start "
             "needs its own part",
             most);
  }

  void huge_pages() {
    if (!wishes_.huge_pages) return fine("huge pages", "not wanted: no-huge-pages");
    const std::uint64_t needed = (capacity_bytes_ + kHugePageBytes - 1) / kHugePageBytes;
    if (!facts_.huge_pages) {
      unknown("huge pages", "the kernel tells of none of 2 MiB");
    } else {
      const auto& pages = *facts_.huge_pages;
      const std::string measured =
          fmt::format("{} of 2 MiB reserved, {} free; the arena needs {}", pages.count, pages.free_count, needed);
      if (pages.free_count >= needed) return fine("huge pages", measured);
      const std::uint64_t missing = needed - pages.free_count;
      if (!facts_.memory_available_bytes) {
        unknown("huge pages", measured + "; whether there is memory for them is not known");
      } else if (room_bytes_ >= missing * kHugePageBytes + overhead_bytes()) {
        machine("huge pages", measured,
                pages.free_count > 0
                    ? "the arena takes them only if all of it fits: " + size_words(free_huge_bytes()) + " lie idle now"
                    : "the arena is touched faster at the start, and copies from and to it miss the TLB less",
                "sysctl vm.nr_hugepages=" + std::to_string(pages.count + missing));
      } else {
        fine("huge pages", measured + ", for which there is not enough memory besides");
      }
    }
    const bool is_never = facts_.shmem_huge.find("[never]") != std::string::npos;
    if (facts_.shmem_huge.empty() || (!is_never && facts_.shmem_huge.find("[deny]") == std::string::npos)) return;
    machine("transparent huge pages", "for shared memory " + facts_.shmem_huge,
            "without reserved pages the node asks for these for its arena, and the kernel is told not to give them",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }

  void threads() {
    if (facts_.allowed_processors.empty())
      return unknown("threads", "the kernel does not say on which processors it may run");
    const auto [useful, why] = processor_share(facts_, NumaChoice{});
    const std::string measured =
        why + "; " + std::to_string(wishes_.threads) + (wishes_.threads == 1 ? " I/O thread" : " I/O threads");
    if (wishes_.threads <= useful) return fine("threads", measured);
    set(Kind::kSet, "threads", measured,
        "threads beyond the processors wait for one another's turns, and a control group's share is used up early in "
        "each period",
        "threads", std::to_string(useful));
  }

  /// If all devices are on one node with room for the arena, the arena is best placed there.
  void numa() {
    const std::vector<unsigned> nodes = facts_.numa.with_memory();
    if (nodes.size() < 2) return fine("NUMA", "one node of memory: nothing to place");
    std::string measured = std::to_string(nodes.size()) + " nodes of memory, available";
    for (const unsigned number : nodes)
      measured += (number == nodes.front() ? " " : ", ") + std::to_string(number) + ": " +
                  size_words(facts_.numa.find(number)->available_bytes);
    std::map<int, std::string> devices;  // by node
    for (const MachineFacts::Device& device : facts_.devices) {
      if (device.is_rdma && !wishes_.rdma) continue;
      std::string& names = devices[device.numa_node];
      names += (names.empty() ? "" : ", ") + device.name;
    }
    for (const auto& [number, names] : devices)
      measured += "; " + (number < 0 ? "node not told: " : "at node " + std::to_string(number) + ": ") + names;
    if (wishes_.numa_nodes != "auto") return fine("NUMA", measured + "; numa-nodes = " + wishes_.numa_nodes);
    measured += "; the arena lies on all of them in turns";
    const NumaNode* const near = devices.size() == 1 && devices.begin()->first >= 0
                                     ? facts_.numa.find(static_cast<unsigned>(devices.begin()->first))
                                     : nullptr;
    if (near == nullptr || near->memory_bytes == 0 || near->processors.empty() ||
        near->available_bytes < capacity_bytes_ + overhead_bytes())
      return fine("NUMA", measured);
    set(Kind::kMay, "NUMA", measured,
        "all devices are at one node, which has room for the arena and processors to serve it: bytes then cross no "
        "link between nodes. Not if workers use shared memory on another node",
        "numa-nodes", std::to_string(near->number));
  }

  void locked_memory() {
    const bool has_device = std::ranges::any_of(facts_.devices, &MachineFacts::Device::is_rdma);
    if (!wishes_.rdma || !has_device) return fine("locked memory", "no RDMA: nothing is locked");
    if (!facts_.locked_memory) return unknown("locked memory", "the limit cannot be read");
    const std::uint64_t soft = facts_.locked_memory->soft;
    const std::string measured =
        "limit " + (soft == MachineFacts::kUnlimited ? "unlimited" : size_words(soft)) + " in this process";
    if (facts_.ignores_locked_limit || soft >= capacity_bytes_)
      return fine("locked memory", measured + (facts_.ignores_locked_limit ? ", which may pass it" : ""));
    machine("locked memory", measured, "RDMA devices lock all of the arena, " + size_words(capacity_bytes_),
            "LimitMEMLOCK=infinity in the node's unit, or ulimit -l unlimited");
  }

  /// The node raises its own limit to the hard one, keeps a quarter for lent regions and half for a disk's files.
  void open_files() {
    if (!facts_.files) return unknown("open files", "the limit cannot be read");
    const std::uint64_t wanted = wishes_.session_count_max + kOwnFiles;
    const std::uint64_t needed = wishes_.disk_paths.empty() ? (wanted * 4 + 2) / 3 : wanted * 4;
    const std::uint64_t hard = facts_.files->hard;
    const std::string measured =
        fmt::format("at most {} in this process; {} sessions with what they lend{} want {}",
                    hard == MachineFacts::kUnlimited ? "any number" : std::to_string(hard), wishes_.session_count_max,
                    wishes_.disk_paths.empty() ? "" : " and the disk", needed);
    if (hard >= needed) return fine("open files", measured);
    machine("open files", measured, "connections beyond it are closed at once",
            fmt::format("LimitNOFILE={0} in the node's unit, or ulimit -n {0}", needed));
  }

  void socket(const std::optional<std::uint64_t>& most, const std::string& setting, const std::string& value) {
    if (!most) return unknown(setting, "cannot be read");
    const std::string measured = "at most " + size_words(*most);
    if (*most >= kSocketBytes) return fine(setting, measured);
    machine(setting, measured, "blocks are large: a socket that holds less of them has more turns to wait for",
            "sysctl " + setting + "=" + value);
  }

  void sockets() {
    if (wishes_.has_tcp) {
      socket(facts_.tcp_receive_max, "net.ipv4.tcp_rmem", "'4096 131072 6291456'");
      socket(facts_.tcp_send_max, "net.ipv4.tcp_wmem", "'4096 16384 4194304'");
    }
    if (wishes_.has_unix) socket(facts_.socket_send_max, "net.core.wmem_max", std::to_string(kSocketBytes));
  }

  void disks() {
    for (const DiskFacts& disk : facts_.disks) {
      const std::string subject = "disk " + disk.path;
      if (!disk.wrong.empty()) {
        unknown(subject, disk.probed + ": " + disk.wrong);
        continue;
      }
      const std::string measured =
          fmt::format("wrote {}, read {}, {}; the slowest call took {:.1f} ms; {} free; measured with {} in {}",
                      rate_words(disk.write_rate), rate_words(disk.read_rate),
                      disk.direct_io ? "by direct I/O" : "through the page cache", disk.slowest_seconds * 1e3,
                      size_words(disk.free_bytes), size_words(disk.probe_bytes), disk.probed);
      if (disk.direct_io) {
        fine(subject, measured);
      } else {
        machine(subject, measured,
                "the file system refuses direct I/O: each block lies in memory twice, and what was written waits there",
                "give disk-path a directory on ext4 or xfs");
      }
    }
    disk_sizes();
    if (facts_.disks.size() > 1) several_disks();
  }

  /// Blocks are spread evenly, so the directory with the least room limits the total.
  void disk_sizes() {
    if (facts_.disks.empty() || wishes_.disk_capacity_bytes == 0) return;
    std::map<std::uint64_t, std::uint64_t> on_device;
    for (const DiskFacts& disk : facts_.disks) ++on_device[disk.device];
    const auto count = static_cast<double>(facts_.disks.size());
    double least = -1;  // bytes of files for each directory
    for (const DiskFacts& disk : facts_.disks) {
      if (disk.free_bytes == 0) return;  // not measured, as reported
      const double each =
          static_cast<double>(disk.free_bytes) * kFileSystemShare / static_cast<double>(on_device[disk.device]);
      if (least < 0 || each < least) least = each;
    }
    const auto segment = std::clamp(static_cast<double>(wishes_.disk_capacity_bytes) / 64, 64.0 * kMiB, 1.0 * kGiB);
    const double all = static_cast<double>(wishes_.disk_capacity_bytes) + static_cast<double>(capacity_bytes_);
    const double needed = kFilesPerByte * all + 2 * segment;
    const std::string measured = "the files take up to " + size_words(static_cast<std::uint64_t>(needed)) +
                                 "; there is room for " + size_words(static_cast<std::uint64_t>(least * count));
    if (needed <= least * count) return fine("disk space", measured);
    const double fits = (least * count - 2 * segment) / kFilesPerByte - static_cast<double>(capacity_bytes_);
    const std::uint64_t bytes = fits > 0 ? rounded_down(static_cast<std::uint64_t>(fits)) : 0;
    const std::string reason = "a disk that is full is turned off, and blocks that leave memory are lost";
    if (bytes < std::max(64 * kMiB, wishes_.disk_block_bytes))
      return machine("disk space", measured, reason, "give disk-path more room; 95 % of what is free may be filled");
    if (wishes_.disk_block_bytes > 0) {
      set(Kind::kSet, "disk space", measured, reason, "disk-capacity-blocks",
          std::to_string(bytes / wishes_.disk_block_bytes));
    } else {
      set(Kind::kSet, "disk space", measured, reason, "disk-capacity", size_option(bytes));
    }
  }

  void several_disks() {
    const DiskFacts *slowest = nullptr, *fastest = nullptr;
    double longest = 0;
    std::map<std::uint64_t, const DiskFacts*> by_device;
    for (const DiskFacts& disk : facts_.disks) {
      const auto [first, is_new] = by_device.emplace(disk.device, &disk);
      if (!is_new) {
        machine("disk " + disk.path, "on the same file system as " + first->second->path,
                "two directories of one device are no faster than one, and fail together",
                "give each device one disk-path");
      }
      if (!disk.wrong.empty()) continue;
      longest = std::max(longest, disk.slowest_seconds);
      if (slowest == nullptr || disk.read_rate < slowest->read_rate) slowest = &disk;
      if (fastest == nullptr || disk.read_rate > fastest->read_rate) fastest = &disk;
    }
    if (slowest != nullptr && slowest->read_rate * 2 < fastest->read_rate) {
      machine("disk " + slowest->path,
              "reads " + rate_words(slowest->read_rate) + ", " + fastest->path + " " + rate_words(fastest->read_rate),
              "a prefix lies on all directories, and waits for the slowest", "replace that device, or leave it out");
    }
    constexpr double kCallsOfHang = 4;  // a call this many times longer than the slowest one seen counts as hanging
    if (longest * kCallsOfHang > wishes_.disk_hang_seconds) {
      set(Kind::kSet, "disk-hang-seconds",
          fmt::format("the slowest call took {:.2f} s; a directory is left out after {:.1f} s", longest,
                      wishes_.disk_hang_seconds),
          "a device that is only slow now and then would be left out", "disk-hang-seconds",
          std::to_string(static_cast<std::uint64_t>(std::clamp(std::ceil(longest * kCallsOfHang), 1.0, 3600.0))));
    }
  }

  const MachineFacts& facts_;
  const NodeWishes& wishes_;
  std::uint64_t capacity_bytes_;  ///< Present or suggested.
  std::uint64_t room_bytes_ = 0;  ///< Memory available to this node; 0: unknown.
  std::vector<Advice> advices_;
};

}  // namespace

std::string size_words(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value == std::floor(value) ? 0 : 1, kUnits[unit]);
}

const char* kind_name(Advice::Kind kind) {
  switch (kind) {
    case Kind::kFine: return "fine";
    case Kind::kSet: return "set";
    case Kind::kMay: return "may";
    case Kind::kMachine: return "machine";
    case Kind::kUnknown: return "unknown";
  }
  return "?";
}

std::vector<Advice> advise(const MachineFacts& facts, const NodeWishes& wishes) { return Adviser(facts, wishes).all(); }

}  // namespace kv
