// Whatever byte of a table's footer or properties changes is found before RocksDB sees it, and no sound table is taken
// for damaged: those of earlier builds, those of today in every state, and what else RocksDB may write.
#include "store/node/disk/rocks/table_footer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::size_t kVersionAt = 41, kMagicAt = 45;

char version_of(const std::string& table) { return table[table.size() - kTableFooterBytes + kVersionAt]; }

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::map<std::string, std::string> tables_in(const fs::path& database) {
  std::map<std::string, std::string> tables;
  for (const auto& entry : fs::directory_iterator(database))
    if (entry.path().extension() == ".sst") tables[entry.path().filename().string()] = bytes_of(entry.path());
  return tables;
}

TableEnd look(const std::string& table) {
  const std::size_t tail_bytes = std::min(table.size(), kTableTailBytes);
  return look_at_table_end(std::string_view(table).substr(table.size() - tail_bytes), table.size());
}

/// Changes each byte of the footer to each other value.
void expect_every_change_is_found(const std::string& name, std::string table) {
  SCOPED_TRACE(name);
  ASSERT_EQ(look(table), TableEnd::kSound);
  const std::size_t footer = table.size() - kTableFooterBytes;
  for (std::size_t at = 0; at < kTableFooterBytes; ++at) {
    const char was = table[footer + at];
    for (int flip = 1; flip < 256; ++flip) {
      table[footer + at] = static_cast<char>(was ^ flip);
      // RocksDB itself looks at the magic.
      ASSERT_EQ(look(table), at < kMagicAt ? TableEnd::kDamaged : TableEnd::kForeign) << at << " ^ " << flip;
    }
    table[footer + at] = was;
  }
}

/// Changes each byte of the properties, which lie right before the metaindex, and of their checksum.
void expect_changed_properties_are_found(const std::string& name, std::string table) {
  SCOPED_TRACE(name);
  ASSERT_EQ(look(table), TableEnd::kSound);
  const std::size_t begin = table.rfind("rocksdb.block.based.table.index.type");
  std::size_t end = 0;  // where the metaindex begins: the first number of the footer, seven bits a byte
  for (std::size_t i = 0, at = table.size() - kTableFooterBytes + 1; i < 9; ++i, ++at) {
    end |= std::size_t{static_cast<unsigned char>(table[at])} % 0x80 << (7 * i);
    if (static_cast<unsigned char>(table[at]) < 0x80) break;
  }
  ASSERT_LT(begin + 300, end);
  for (std::size_t at = begin; at < end; ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      table[at] = static_cast<char>(table[at] ^ flip);
      ASSERT_EQ(look(table), TableEnd::kDamaged) << at << " ^ " << flip;
      table[at] = static_cast<char>(table[at] ^ flip);
    }
  }
}

class TableFooterTest : public DiskTest {
 protected:
  /// Tables of every family, some with erasures and with ranges dropped, on both levels.
  std::map<std::string, std::string> fresh_tables() {
    for (int start = 0; start < 3; ++start) {
      const auto disk = open();
      EXPECT_FALSE(disk->add_namespace(disk_space(), std::string(300, 'n')));
      EXPECT_FALSE(write(*disk, 16, 60, 20'000));
      EXPECT_FALSE(write(*disk, 80, 2, 300'000));
      EXPECT_FALSE(disk->flush());
      EXPECT_FALSE(disk->erase(std::vector{key(*disk, 20)}));
      EXPECT_FALSE(disk->drop_before(key(*disk, 18)));
      EXPECT_FALSE(disk->flush());
    }
    return tables_in(path / "db");
  }
};

TEST_F(TableFooterTest, EveryChangedByteOfAFooterIsFoundInTablesOfEveryFamily) {
  std::size_t count = 0, dropping_count = 0;
  for (const auto& [name, table] : fresh_tables()) {
    expect_every_change_is_found(name, table);
    expect_changed_properties_are_found(name, table);
    EXPECT_EQ(version_of(table), 5) << "whatever the library's default is: other releases read it";
    ++count;
    dropping_count += table.find("rocksdb.range_del") != std::string::npos;
  }
  EXPECT_GE(count, 6u);
  EXPECT_GT(dropping_count, 0u) << "a table with a block between index and properties";
}

TEST_F(TableFooterTest, EveryChangedByteOfAFooterIsFoundInTablesOfEarlierBuilds) {
  const auto tables = tables_in(fs::path(KV_GOLDEN_DIR) / "disk" / "db");
  EXPECT_EQ(tables.size(), 8u);
  for (const auto& [name, table] : tables) {
    expect_every_change_is_found(name, table);
    expect_changed_properties_are_found(name, table);
  }
}

/// Two tables of version 6, by RocksDB 9.10: one for each checksum. KV_GOLDEN_UPDATE=1 writes them anew where the
/// library can (only ever with another name, for another version).
TEST_F(TableFooterTest, EveryChangedByteOfAFooterIsFoundInTablesOfALaterRelease) {
  const fs::path golden = fs::path(KV_GOLDEN_DIR) / "table-v6";
  if (std::getenv("KV_GOLDEN_UPDATE") != nullptr && rocksdb::BlockBasedTableOptions().format_version >= 6) {
    fs::create_directories(golden);
    for (const auto checksum : {rocksdb::kxxHash64, rocksdb::kXXH3}) {
      rocksdb::BlockBasedTableOptions table;
      table.checksum = checksum;
      table.format_version = 6;
      rocksdb::Options options;
      options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
      options.compression = rocksdb::kNoCompression;
      rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
      ASSERT_TRUE(writer.Open(golden / (checksum == rocksdb::kXXH3 ? "xxh3.sst" : "xxhash64.sst")).ok());
      ASSERT_TRUE(writer.Put("key", "value").ok());
      ASSERT_TRUE(writer.Finish().ok());
    }
  }
  const auto tables = tables_in(golden);
  EXPECT_EQ(tables.size(), 2u);
  for (const auto& [name, table] : tables) {
    EXPECT_EQ(version_of(table), 6);
    expect_every_change_is_found(name, table);
    EXPECT_EQ(look(table.substr(1)), TableEnd::kDamaged) << "the checksum knows its place in the file";
  }
}

using WrittenTable = std::tuple<std::uint32_t, bool, bool>;  // version, has a filter, is compressed

class WrittenTableTest : public TableFooterTest, public testing::WithParamInterface<WrittenTable> {};

TEST_P(WrittenTableTest, WhatElseRocksDbMayWriteIsSoundToo) {
  fs::create_directories(path);
  const auto [version, has_filter, is_compressed] = GetParam();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kxxHash64;
  table.format_version = version;
  if (has_filter) table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  if (is_compressed) {
    options.compression = rocksdb::kZSTD;
    options.compression_opts.max_dict_bytes = 4096;
    options.compression_opts.zstd_max_train_bytes = 1 << 20;
  }
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
  const std::string file = path / "made.sst";
  ASSERT_TRUE(writer.Open(file).ok());
  for (int i = 10'000; i < 20'000; ++i)
    ASSERT_TRUE(writer.Put(std::to_string(i), "value " + std::to_string(i * 7)).ok());
  ASSERT_TRUE(writer.DeleteRange("30000", "40000").ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string made = bytes_of(file);
  EXPECT_EQ(made.find("fullfilter") != std::string::npos, has_filter);
  expect_every_change_is_found(has_filter ? "with a filter" : "without", made);
}

INSTANTIATE_TEST_SUITE_P(Versions, WrittenTableTest,
                         testing::Combine(testing::Values(5u, rocksdb::BlockBasedTableOptions().format_version),
                                          testing::Bool(), testing::Bool()));

TEST_F(TableFooterTest, WhatIsNoFooterOfOursIsLeftToRocksDb) {
  const std::string table = fresh_tables().begin()->second;
  EXPECT_EQ(look(""), TableEnd::kForeign);
  EXPECT_EQ(look(table.substr(0, table.size() - 1)), TableEnd::kForeign) << "cut off";
  EXPECT_EQ(look(table.substr(table.size() - 52)), TableEnd::kForeign) << "shorter than a footer";
  EXPECT_EQ(look(table + std::string(4096 - table.size() % 4096, '\0')), TableEnd::kForeign)
      << "as kill -9 leaves it in the middle of being closed";
  std::string newer = table;
  newer[newer.size() - 12] = 6;
  EXPECT_EQ(look(newer), TableEnd::kDamaged);
  newer.replace(newer.size() - 52, 4, "\x3e\0\x7a\0", 4);
  EXPECT_EQ(look(newer), TableEnd::kDamaged) << "a version with a checksum of its own, and another one";
  newer[newer.size() - 12] = 7;
  EXPECT_EQ(look(newer), TableEnd::kForeign) << "a version that is not known here";
}

TEST_F(TableFooterTest, ATableCutInFrontIsDamaged) {
  const std::string table = fresh_tables().begin()->second;
  EXPECT_EQ(look(table.substr(1)), TableEnd::kDamaged);
}

TEST_F(TableFooterTest, DamagedTablesAreFoundAmongManyAndNothingElseIsLookedAt) {
  const auto tables = fresh_tables();
  const fs::path database = root / "many";
  fs::create_directories(database);
  std::vector<fs::path> expected;
  for (int i = 0; i < 300; ++i) {
    std::string table = std::next(tables.begin(), i % tables.size())->second;
    const fs::path file = database / (std::to_string(1000 + i) + (i % 50 == 1 ? ".log" : ".sst"));
    if (i % 25 == 1) {
      table[table.size() - kTableFooterBytes] ^= 1;
      if (file.extension() == ".sst") expected.push_back(file);
    }
    std::ofstream(file, std::ios::binary) << table;
  }
  fs::create_directory(database / "9999.sst");  // cannot be read
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_EQ(tables_with_damaged_end(database), expected);
  EXPECT_THAT(tables_with_damaged_end(root / "not there"), IsEmpty());
}

}  // namespace
}  // namespace kv
