// tests/node/disk_fixture.h: a RocksDisk in a directory of its own, and blocks whose bytes follow from their numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/disk/rocks/rocks_disk.h"
#include "tests/store/store_fixture.h"

namespace kv {

inline NamespaceId disk_space() {
  NamespaceId id;
  id.bytes.fill(std::byte{0x5a});
  return id;
}

/// Block `number`: its name, its bytes (a pseudo-random function of the number) and its checksums.
struct NumberedBlock {
  explicit NumberedBlock(std::uint64_t number, std::size_t block_bytes) : bytes(block_bytes) {
    record = {.space = disk_space(), .hash = hash_of(number), .parent = hash_of(number - 1)};
    record.position = static_cast<std::uint32_t>(number);
    record.block_bytes = static_cast<std::uint32_t>(block_bytes);
    std::uint64_t state = number;
    for (std::size_t i = 0; i < block_bytes; i += 8) {
      const std::uint64_t word = mix(state += 0x1234567);
      std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, block_bytes - i));
    }
    checksums.resize(stripe_count(block_bytes));
    block_checksums(checksum_seed(record.space, record.hash), bytes, checksums);
  }

  DiskRecord record;
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> checksums;
};

class DiskTest : public testing::Test {
 protected:
  static constexpr std::size_t kMemtableBytes = 256 << 10;

  /// In shared memory where there is any: opening and closing 1,000 times on a device is all waiting for syncs.
  DiskTest() {
    const char* const chosen = std::getenv("KV_DISK_TEST_DIR");
    std::error_code ignored;
    const std::filesystem::path base = chosen != nullptr                                    ? chosen
                                       : std::filesystem::is_directory("/dev/shm", ignored) ? "/dev/shm"
                                                                                            : testing::TempDir();
    std::string name = (base / "kv-disk-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
    path = root / "disk";
    if (std::getenv("KV_DISK_TEST_ENCRYPTED") != nullptr) sealing = make_keys(std::string(64, 'e') + "\n");
  }
  ~DiskTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(root, ignored);
  }

  /// From a file of this text.
  std::shared_ptr<OperatorKeys> make_keys(const std::string& text) const {
    const std::filesystem::path file = root / "disk.key";
    std::filesystem::remove(file);
    std::ofstream(file) << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    auto made = OperatorKeys::open({.file = file.string(), .command = ""});
    EXPECT_TRUE(made) << made.error();
    return made ? *made : nullptr;
  }
  RocksDiskConfig config() const {
    RocksDiskConfig config{.path = path, .keys = sealing};
    config.memtable_bytes = kMemtableBytes;
    return config;
  }
  std::unique_ptr<RocksDisk> open() {
    auto disk = RocksDisk::open(config(), &opening);
    EXPECT_TRUE(disk) << disk.error();
    return disk ? std::move(*disk) : nullptr;
  }
  static DiskKey key(const Disk& disk, std::uint64_t sequence) {
    return DiskKey{std::uint64_t{disk.epoch()} << 40 | sequence};
  }
  /// Writes blocks first .. first + count - 1, `batch` at a time, each under its number.
  static error_code write(Disk& disk, std::uint64_t first, std::uint64_t count, std::size_t block_bytes,
                          std::uint64_t batch = 4) {
    for (std::uint64_t begin = first; begin < first + count; begin += batch) {
      std::vector<NumberedBlock> blocks;
      std::vector<DiskWrite> writes;
      for (std::uint64_t number = begin; number < std::min(begin + batch, first + count); ++number) {
        blocks.emplace_back(number, block_bytes);
        blocks.back().record.key = key(disk, number);
      }
      for (const NumberedBlock& block : blocks) writes.push_back({block.record, block.bytes, block.checksums});
      if (const error_code error = disk.write(writes)) return error;
    }
    return {};
  }
  static std::vector<DiskRecord> named(const Disk& disk) {
    std::vector<DiskRecord> records;
    EXPECT_FALSE(disk.load([](const NamespaceId&, const std::string&) {},
                           [&](const DiskRecord& record) {
                             records.push_back(record);
                             return true;
                           }));
    return records;
  }
  /// The positions (numbers) of the blocks that load() names, newest first.
  static std::vector<std::uint32_t> numbers(const Disk& disk) {
    std::vector<std::uint32_t> found;
    for (const DiskRecord& record : named(disk)) found.push_back(record.position);
    return found;
  }
  /// Whether the block that `record` names is there and right.
  static testing::AssertionResult is_right(const Disk& disk, const DiskRecord& record) {
    const auto block = disk.read(record.key);
    if (!block) return testing::AssertionFailure() << record.position << ": " << block.error().message();
    if (!verify_block(checksum_seed(record.space, record.hash), block->bytes, block->checksums))
      return testing::AssertionFailure() << record.position << ": checksum";
    const NumberedBlock expected(record.position, record.block_bytes);
    if (!std::ranges::equal(block->bytes, expected.bytes))
      return testing::AssertionFailure() << record.position << ": wrong bytes with right checksums";
    if (record.hash != expected.record.hash || record.parent != expected.record.parent ||
        record.space != expected.record.space)
      return testing::AssertionFailure() << record.position << ": wrong name";
    return testing::AssertionSuccess();
  }

  std::filesystem::path root, path;
  std::shared_ptr<OperatorKeys> sealing;  ///< Blocks are sealed; nullptr (the rule): they are not.
  DiskOpening opening;
};

}  // namespace kv
