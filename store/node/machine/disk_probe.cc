#include "store/node/machine/disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "store/node/machine/file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kCallBytes = 1 << 20;
constexpr std::size_t kAlignment = 4096;  ///< Largest alignment that O_DIRECT asks of address, offset and length.

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};

fs::path existing_part(const fs::path& path) {
  std::error_code ignored;
  fs::path at = fs::absolute(path, ignored);
  while (!fs::is_directory(at, ignored) && at.has_relative_path()) at = at.parent_path();
  return at;
}

std::uint64_t bytes_below(const fs::path& path) {
  std::error_code error;
  std::uint64_t bytes = 0;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const auto size = at->is_regular_file(ignored) ? at->file_size(ignored) : 0;
    if (!ignored) bytes += size;
  }
  return bytes;
}

/// Without a name, so that the file goes with the process. If that is unsupported, with a name that is removed at once.
File open_unnamed(const std::string& directory, int flags) {
  File file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600));
  if (file.is_open() || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  const std::string name = directory + "/.kvstore-probe-" + std::to_string(::getpid());
  file = File(::open(name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC | flags, 0600));
  if (file.is_open()) ::unlink(name.c_str());
  return file;
}

double seconds_since(Steady::time_point then) { return std::chrono::duration<double>(Steady::now() - then).count(); }

/// One call after the other until `bytes` are done, the time is over or one fails: false, and errno is set.
template <class Call>
bool run_calls(std::uint64_t bytes, Duration most, Call call, std::uint64_t* done, double* slowest) {
  const auto began = Steady::now();
  for (*done = 0; *done < bytes && (*done == 0 || Steady::now() - began < most); *done += kCallBytes) {
    const auto before = Steady::now();
    const ssize_t count = call(static_cast<off_t>(*done));
    *slowest = std::max(*slowest, seconds_since(before));
    if (count == static_cast<ssize_t>(kCallBytes)) continue;
    if (count >= 0) errno = EIO;
    return false;
  }
  return true;
}

/// Returns "", or the error.
std::string measure(const File& file, std::uint64_t bytes, const DiskProbe& probe, DiskFacts& facts) {
  const std::unique_ptr<void, FreeAligned> memory(std::aligned_alloc(kAlignment, kCallBytes));
  auto* const words = static_cast<std::uint64_t*>(memory.get());
  std::uint64_t state = 1;
  // Data that a device cannot compress.
  for (std::size_t i = 0; i < kCallBytes / sizeof *words; ++i)
    words[i] = state = state * 6364136223846793005u + 1442695040888963407u;
  auto began = Steady::now();
  const auto write = [&](off_t at) {
    words[0] = static_cast<std::uint64_t>(at);
    return ::pwrite(file.number(), memory.get(), kCallBytes, at);
  };
  std::uint64_t written = 0, got = 0;
  if (!run_calls(bytes, probe.time_max, write, &written, &facts.slowest_seconds))
    return std::string("writing: ") + std::strerror(errno);
  const auto before_sync = Steady::now();
  if (::fdatasync(file.number()) != 0) return std::string("syncing: ") + std::strerror(errno);
  facts.slowest_seconds = std::max(facts.slowest_seconds, seconds_since(before_sync));
  facts.write_rate = static_cast<double>(written) / std::max(seconds_since(began), 1e-9);
  if (!facts.direct_io) ::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
  began = Steady::now();
  const auto read = [&](off_t at) { return ::pread(file.number(), memory.get(), kCallBytes, at); };
  if (!run_calls(written, probe.time_max, read, &got, &facts.slowest_seconds))
    return std::string("reading: ") + std::strerror(errno);
  facts.read_rate = static_cast<double>(got) / std::max(seconds_since(began), 1e-9);
  facts.probe_bytes = written;
  return "";
}

}  // namespace

DiskFacts measure_disk(const std::string& path, const DiskProbe& probe) {
  DiskFacts facts{.path = path};
  facts.probed = existing_part(path).string();
  struct statvfs space {};
  struct stat status {};
  if (::statvfs(facts.probed.c_str(), &space) != 0 || ::stat(facts.probed.c_str(), &status) != 0) {
    facts.wrong = std::strerror(errno);
    return facts;
  }
  facts.device = status.st_dev;
  const std::uint64_t free_now = std::uint64_t{space.f_bavail} * space.f_frsize;
  facts.free_bytes = free_now + bytes_below(path);
  const std::uint64_t bytes = std::min(probe.bytes_max, free_now / 8) / kCallBytes * kCallBytes;
  if (bytes < 16 * kCallBytes) {
    facts.wrong = "too little is free there to measure with";
    return facts;
  }
  File file = open_unnamed(facts.probed, O_DIRECT);
  facts.direct_io = file.is_open();
  if (file.is_open()) facts.wrong = measure(file, bytes, probe, facts);
  if (facts.wrong.empty() && facts.direct_io) return facts;
  // Some file systems accept the flag and refuse the calls.
  facts = {.path = path, .probed = facts.probed, .free_bytes = facts.free_bytes, .device = facts.device};
  file = open_unnamed(facts.probed, 0);
  facts.wrong = file.is_open() ? measure(file, bytes, probe, facts) : std::strerror(errno);
  return facts;
}

}  // namespace kv
