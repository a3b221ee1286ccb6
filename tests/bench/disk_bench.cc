// Question: how near to the bare device does the disk tier come with blocks of 2 MiB, writing and reading back?
// Budget: reading 0.9 of direct reads of the same size, writing (to the last byte on the device) 0.55 of direct
// sequential writes, write amplification 1.1 with the disk filled three times over.
//
//   kv_bench_disk [DIRECTORY]        on the file system to measure; default: the current directory
//   KV_DISK_MIB=2048 (the tier's size), KV_ROUNDS=3, KV_MEMTABLE_MIB, KV_MEMTABLES
//   KV_ENCRYPTED=1: instead, what encryption costs. Budget: 0.85 of the tier without, writing and reading back
//
// Device and RocksDisk take turns in every round, on the same file system with the same amount; shown are medians of
// GB/s and of the ratios. Blocks are verified against their checksums after reading, as the daemon does, and go to
// memory that is touched. The device's reads end in one buffer per thread.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/disk/rocks/rocks_disk.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = 2 << 20;
constexpr std::size_t kBatchBlocks = 8;
constexpr std::size_t kSourceBlocks = 64;  // 128 MiB: the writer reads from memory, not from cache
constexpr int kThreadCounts[] = {1, 4, 16};

std::size_t number_from(const char* name, std::size_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::stoull(text) : otherwise;
}

/// Of this process, all threads, in user and kernel.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Speed {
  double gigabytes_a_second = 0, processor_seconds_a_gigabyte = 0;
};

Speed measure(std::size_t bytes, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const double processor = processor_seconds();
  work();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  return {gigabytes / seconds.count(), (processor_seconds() - processor) / gigabytes};
}

/// Page-aligned bytes of `kSourceBlocks` blocks, and their checksums.
struct Source {
  Source() : bytes(static_cast<std::byte*>(std::aligned_alloc(4096, kSourceBlocks * kBlockBytes)), &std::free) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < kSourceBlocks * kBlockBytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.get() + i, &word, 8);
    }
    for (std::size_t i = 0; i < kSourceBlocks; ++i) {
      checksums.emplace_back(stripe_count(kBlockBytes));
      block_checksums(seed, block(i), checksums.back());
    }
  }
  std::span<const std::byte> block(std::size_t number) const {
    return {bytes.get() + number % kSourceBlocks * kBlockBytes, kBlockBytes};
  }
  static constexpr std::uint64_t seed = 7;
  std::unique_ptr<std::byte, decltype(&std::free)> bytes;
  std::vector<std::vector<std::uint64_t>> checksums;
};

std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

/// Every block once, in random order, shared out to the threads.
void read_all(std::size_t blocks, int threads, const std::function<void(std::size_t block, int thread)>& read) {
  const auto order = shuffled(blocks, 5);
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::size_t i = thread; i < blocks; i += threads) read(order[i], thread);
    });
  }
  for (std::thread& each : running) each.join();
}

void write_device(int file, const Source& source, std::size_t blocks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto block = source.block(i);
    KV_ASSERT(::pwrite(file, block.data(), block.size(), static_cast<off_t>(i * kBlockBytes)) ==
              static_cast<ssize_t>(kBlockBytes));
  }
  KV_ASSERT(::fdatasync(file) == 0);
}

/// `first` onwards, in batches. Sequence = block number.
void write_disk(RocksDisk& disk, const Source& source, std::size_t first, std::size_t blocks) {
  for (std::size_t begin = first; begin < first + blocks; begin += kBatchBlocks) {
    std::vector<DiskWrite> writes;
    for (std::size_t i = begin; i < std::min(begin + kBatchBlocks, first + blocks); ++i) {
      DiskWrite write{.bytes = source.block(i), .checksums = source.checksums[i % kSourceBlocks]};
      write.record.key = DiskKey{std::uint64_t{disk.epoch()} << 40 | i};
      write.record.block_bytes = kBlockBytes;
      writes.push_back(write);
    }
    KV_ASSERT(!disk.write(writes));
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Figures of all rounds by row, and the table.
class Rows {
 public:
  void add(const std::string& name, Speed device, Speed disk) {
    if (!rows_.contains(name)) order_.push_back(name);
    Row& row = rows_[name];
    row.device.push_back(device.gigabytes_a_second);
    row.disk.push_back(disk.gigabytes_a_second);
    row.ratio.push_back(disk.gigabytes_a_second / device.gigabytes_a_second);
    row.processor.push_back(disk.processor_seconds_a_gigabyte);
    print(name, row.device.back(), row.disk.back(), row.ratio.back(), row.processor.back());
  }
  void print() const {
    std::printf("\n%-24s %12s %12s %8s %20s\n", "2 MiB blocks", "device GB/s", "tier GB/s", "ratio",
                "tier CPU s per GB");
    for (const std::string& name : order_) {
      const Row& row = rows_.at(name);
      print(name, median(row.device), median(row.disk), median(row.ratio), median(row.processor));
    }
  }

 private:
  struct Row {
    std::vector<double> device, disk, ratio, processor;
  };
  static void print(const std::string& name, double device, double disk, double ratio, double processor) {
    std::printf("%-24s %12.2f %12.2f %8.2f %20.2f\n", name.c_str(), device, disk, ratio, processor);
    std::fflush(stdout);
  }

  std::vector<std::string> order_;
  std::map<std::string, Row> rows_;
};

void run_round(const fs::path& directory, const Source& source, std::size_t blocks, Rows& rows) {
  const std::size_t bytes = blocks * kBlockBytes;
  const fs::path plain = directory / "device";
  const int file = ::open(plain.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_DIRECT, 0644);
  KV_ASSERT(file >= 0);
  KV_ASSERT(::posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0);
  const Speed device_write = measure(bytes, [&] { write_device(file, source, blocks); });

  fs::remove_all(directory / "disk");
  RocksDiskConfig config{.path = directory / "disk", .direct_io = DirectIo::kOn};
  config.memtable_bytes = number_from("KV_MEMTABLE_MIB", config.memtable_bytes >> 20) << 20;
  config.memtable_count = static_cast<int>(number_from("KV_MEMTABLES", config.memtable_count));
  DiskOpening opening;
  auto opened = RocksDisk::open(config, &opening);
  if (!opened) std::printf("%s\n", opened.error().text.c_str());
  KV_ASSERT(opened);
  RocksDisk& disk = **opened;
  const Speed disk_write = measure(bytes, [&] {
    write_disk(disk, source, 0, blocks);
    KV_ASSERT(!disk.flush());
  });
  rows.add("write", device_write, disk_write);

  for (const int threads : kThreadCounts) {
    std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> buffers;
    for (int i = 0; i < threads; ++i) {
      buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, kBlockBytes)), &std::free);
      std::memset(buffers.back().get(), 0, kBlockBytes);
    }
    const Speed device_read = measure(bytes, [&] {
      read_all(blocks, threads, [&](std::size_t block, int thread) {
        KV_ASSERT(::pread(file, buffers[thread].get(), kBlockBytes, static_cast<off_t>(block * kBlockBytes)) ==
                  static_cast<ssize_t>(kBlockBytes));
      });
    });
    const Speed disk_read = measure(bytes, [&] {
      read_all(blocks, threads, [&](std::size_t block, int) {
        const auto read = disk.read(DiskKey{std::uint64_t{disk.epoch()} << 40 | block});
        KV_ASSERT(read && verify_block(Source::seed, read->bytes, read->checksums));
      });
    });
    rows.add("read, " + std::to_string(threads) + " at a time", device_read, disk_read);
  }
  ::close(file);
  fs::remove(plain);

  for (std::size_t written = blocks; written < 3 * blocks; written += blocks / 8) {  // twice more, dropping the oldest
    write_disk(disk, source, written, blocks / 8);
    KV_ASSERT(!disk.drop_before(DiskKey{std::uint64_t{disk.epoch()} << 40 | (written + blocks / 8 - blocks)}));
  }
  KV_ASSERT(!disk.flush());
  const DiskStats stats = disk.stats();
  std::printf("  filled three times over: write amplification %.3f, %.0f MiB of files for %.0f MiB of blocks\n",
              static_cast<double>(stats.device_written_bytes) / static_cast<double>(stats.written_bytes),
              static_cast<double>(stats.file_bytes) / (1 << 20), static_cast<double>(bytes) / (1 << 20));
  opened->reset();
  fs::remove_all(directory / "disk");
}

struct TierSpeeds {
  Speed write;
  std::vector<Speed> reads;  ///< As kThreadCounts.
};

TierSpeeds measure_tier(const fs::path& directory, const std::shared_ptr<OperatorKeys>& keys, const Source& source,
                        std::size_t blocks) {
  const std::size_t bytes = blocks * kBlockBytes;
  fs::remove_all(directory / "disk");
  auto opened = RocksDisk::open({.path = directory / "disk", .keys = keys});
  if (!opened) std::printf("%s\n", opened.error().text.c_str());
  KV_ASSERT(opened);
  RocksDisk& disk = **opened;
  TierSpeeds speeds;
  speeds.write = measure(bytes, [&] {
    write_disk(disk, source, 0, blocks);
    KV_ASSERT(!disk.flush());
  });
  for (const int threads : kThreadCounts) {
    speeds.reads.push_back(measure(bytes, [&] {
      read_all(blocks, threads, [&](std::size_t block, int) {
        const auto read = disk.read(DiskKey{std::uint64_t{disk.epoch()} << 40 | block});
        KV_ASSERT(read && verify_block(Source::seed, read->bytes, read->checksums));
      });
    }));
  }
  opened->reset();
  fs::remove_all(directory / "disk");
  return speeds;
}

/// In turn, so that both see the same device. What the table calls the device is the tier in plain text.
void run_encrypted_round(const fs::path& directory, const Source& source, std::size_t blocks, Rows& rows) {
  const fs::path file = directory / "disk.key";
  std::ofstream(file) << std::string(64, '7') << "\n";
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  const auto keys = OperatorKeys::open({.file = file.string(), .command = ""});
  KV_ASSERT(keys);
  const TierSpeeds plain = measure_tier(directory, nullptr, source, blocks);
  const TierSpeeds sealed = measure_tier(directory, *keys, source, blocks);
  rows.add("encrypted write", plain.write, sealed.write);
  for (std::size_t i = 0; i < plain.reads.size(); ++i)
    rows.add("encrypted read, " + std::to_string(kThreadCounts[i]) + " at a time", plain.reads[i], sealed.reads[i]);
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) {
  using namespace kv;
  const fs::path directory = fs::path(argc > 1 ? argv[1] : ".") / "kv_bench_disk";
  fs::create_directories(directory);
  const std::size_t blocks = number_from("KV_DISK_MIB", 2048) / 2;
  const Source source;
  Rows rows;
  for (std::size_t round = 0; round < number_from("KV_ROUNDS", 3); ++round) {
    if (number_from("KV_ENCRYPTED", 0) != 0)
      run_encrypted_round(directory, source, blocks, rows);
    else
      run_round(directory, source, blocks, rows);
  }
  rows.print();
  fs::remove_all(directory);
  return 0;
}
