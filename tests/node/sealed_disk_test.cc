// A disk whose blocks are encrypted: what lies in its files tells nothing, wrong keys are refused and lose nothing,
// damage is a miss, and what was erased is gone though its bytes may still lie there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "store/node/disk/disk_opener.h"
#include "store/node/disk/files/sealing.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kOld = std::string(64, 'a'), kNew = std::string(64, 'b');
constexpr const char* kRecord = "block_bytes=20000\nblock_size=16\nmodel=secret-model\ntenant=secret-tenant\n";

NamespaceId space_number(std::uint64_t number) {
  NamespaceId id;
  id.bytes.fill(static_cast<std::byte>(number + 1));
  return id;
}

std::map<std::string, std::string> bytes_below(const fs::path& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(path).string()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

bool lies_somewhere(const std::map<std::string, std::string>& files, std::string_view part) {
  return std::ranges::any_of(files, [&](const auto& file) { return file.second.find(part) != std::string::npos; });
}

std::string_view as_view(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class SealedDiskTest : public DiskTest {
 protected:
  SealedDiskTest() { sealing = make_keys(kOld + "\n"); }

  /// Block `number` of namespace `space`, under its number.
  static NumberedBlock block_of(std::uint64_t number, std::uint64_t space, std::size_t bytes = 20'000) {
    NumberedBlock block(number, bytes);
    block.record.space = space_number(space);
    block_checksums(checksum_seed(block.record.space, block.record.hash), block.bytes, block.checksums);
    return block;
  }
  static error_code put(Disk& disk, std::uint64_t number, std::uint64_t space, std::size_t bytes = 20'000) {
    NumberedBlock block = block_of(number, space, bytes);
    block.record.key = key(disk, number);
    const DiskWrite one{block.record, block.bytes, block.checksums};
    return disk.write({&one, 1});
  }
  static bool has(const Disk& disk, DiskKey at, std::uint64_t number, std::uint64_t space, std::size_t bytes = 20'000) {
    const auto block = disk.read(at);
    if (!block) {
      EXPECT_TRUE(is_lost(block.error())) << block.error().message();
      return false;
    }
    const NumberedBlock expected = block_of(number, space, bytes);
    EXPECT_TRUE(std::ranges::equal(block->bytes, expected.bytes)) << number;
    EXPECT_TRUE(std::ranges::equal(block->checksums, expected.checksums)) << number;
    return true;
  }
  Failure refused() const {
    DiskOpening ignored;
    const auto opened = RocksDisk::open(config(), &ignored);
    EXPECT_FALSE(opened);
    return opened ? Failure() : opened.error();
  }
};

TEST_F(SealedDiskTest, NothingOfABlockOrARecordLiesInAnyFile) {
  for (const bool is_sealed : {false, true}) {
    if (!is_sealed) sealing = nullptr;
    if (is_sealed) sealing = make_keys(kOld + "\n");
    fs::remove_all(path);
    {
      const auto disk = open();
      ASSERT_FALSE(disk->add_namespace(space_number(1), kRecord));
      for (std::uint64_t number = 0; number < 40; ++number) ASSERT_FALSE(put(*disk, number, 1));
      ASSERT_FALSE(disk->flush());
      for (std::uint64_t number = 0; number < 40; ++number) ASSERT_TRUE(has(*disk, key(*disk, number), number, 1));
    }
    const auto files = bytes_below(path);
    std::size_t found = 0;
    for (std::uint64_t number = 0; number < 40; ++number) {
      const NumberedBlock block = block_of(number, 1);
      for (std::size_t at = 0; at + 24 <= block.bytes.size(); at += 1000)
        found += lies_somewhere(files, as_view(block.bytes).substr(at, 24));
      found += lies_somewhere(files, as_view(std::as_bytes(std::span(block.checksums))));
    }
    EXPECT_EQ(found, is_sealed ? 0u : 40u * 21) << "in plain text the search finds what is there";
    EXPECT_EQ(lies_somewhere(files, "secret-model"), !is_sealed);
    EXPECT_EQ(lies_somewhere(files, "secret-tenant"), !is_sealed);
    EXPECT_FALSE(lies_somewhere(files, std::string(32, '\xaa'))) << "the operator's key";
    const auto disk = open();
    std::map<NamespaceId, std::string> spaces;
    ASSERT_FALSE(disk->load([&](const NamespaceId& id, const std::string& record) { spaces[id] = record; },
                            [](const DiskRecord&) { return false; }));
    EXPECT_EQ(spaces, (std::map<NamespaceId, std::string>{{space_number(1), kRecord}}));
    for (std::uint64_t number = 0; number < 40; ++number)
      EXPECT_TRUE(has(*disk, DiskKey{std::uint64_t{1} << 40 | number}, number, 1));
  }
}

TEST_F(SealedDiskTest, WithoutTheKeyOrWithAWrongOneTheDirectoryIsRefusedAndLosesNothing) {
  {
    const auto disk = open();
    for (std::uint64_t number = 0; number < 20; ++number) ASSERT_FALSE(put(*disk, number, number % 3));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_EQ(read_small_file(path / "FORMAT"), format_text(kDiskFormatSealed));
  const auto before = bytes_below(path);
  sealing = nullptr;
  EXPECT_EQ(refused().code, Errc::kUnsupported);
  EXPECT_THAT(refused().text, HasSubstr("--disk-key-file"));
  EXPECT_EQ(bytes_below(path), before) << "not even a lock was taken";
  sealing = make_keys(kNew + "\n");
  EXPECT_EQ(refused().code, Errc::kMismatch);
  EXPECT_THAT(refused().text, HasSubstr("which is not in"));
  sealing = make_keys(kOld + "\n");
  const std::string id = sealing->current_id();
  sealing = make_keys(id + " " + kNew + "\n");
  EXPECT_EQ(refused().code, Errc::kMismatch);
  EXPECT_THAT(refused().text, HasSubstr("'" + id + "'"));
  EXPECT_THAT(refused().text, HasSubstr("is not the one of this name"));
  auto after = bytes_below(path);
  after["LOCK"] = before.at("LOCK");
  EXPECT_EQ(after, before);
  sealing = make_keys(kOld + "\n");
  const auto disk = open();
  for (std::uint64_t number = 0; number < 20; ++number)
    EXPECT_TRUE(has(*disk, DiskKey{std::uint64_t{1} << 40 | number}, number, number % 3));
}

TEST_F(SealedDiskTest, WithoutItsFileOfKeysItIsRefused) {
  {
    const auto disk = open();
    ASSERT_FALSE(put(*disk, 1, 1));
    ASSERT_FALSE(disk->flush());
  }
  const std::string text = bytes_below(path).at("KEYS");
  fs::remove(path / "KEYS");
  EXPECT_EQ(refused().code, Errc::kMismatch);
  EXPECT_THAT(refused().text, HasSubstr("missing or damaged"));
  std::ofstream(path / "KEYS", std::ios::binary) << text;
  EXPECT_TRUE(has(*open(), DiskKey{std::uint64_t{1} << 40 | 1}, 1, 1));
  // FORMAT alone is mended, as ever: the file of keys says what it was.
  std::ofstream(path / "FORMAT") << "?";
  EXPECT_TRUE(has(*open(), DiskKey{std::uint64_t{1} << 40 | 1}, 1, 1));
  EXPECT_EQ(read_small_file(path / "FORMAT"), format_text(kDiskFormatSealed));
}

/// From format 2: what lies there in plain text stays so and stays readable; what comes is sealed.
TEST_F(SealedDiskTest, ADirectoryInPlainTextIsReadAndSealsWhatIsWrittenFromNowOn) {
  const auto with_keys = sealing;
  sealing = nullptr;
  {
    const auto disk = open();
    ASSERT_FALSE(disk->add_namespace(space_number(1), kRecord));
    for (std::uint64_t number = 0; number < 8; ++number) ASSERT_FALSE(put(*disk, number, 1));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_EQ(read_small_file(path / "FORMAT"), format_text(kDiskFormat));
  // Of a start that did not come as far as FORMAT, a file of keys is left; it says nothing.
  std::ofstream(path / "KEYS") << "left over";
  EXPECT_TRUE(open());
  sealing = with_keys;
  for (int start = 0; start < 2; ++start) {
    const auto disk = open();
    const std::uint64_t first = 100 * static_cast<std::uint64_t>(start + 1);
    ASSERT_FALSE(disk->add_namespace(space_number(1), kRecord));
    for (std::uint64_t number = first; number < first + 8; ++number) ASSERT_FALSE(put(*disk, number, 1));
    ASSERT_FALSE(disk->flush());
    for (std::uint64_t number = 0; number < 8; ++number) {
      EXPECT_TRUE(has(*disk, DiskKey{std::uint64_t{1} << 40 | number}, number, 1));
      EXPECT_TRUE(has(*disk, key(*disk, first + number), first + number, 1));
    }
    EXPECT_EQ(named(*disk).size(), 16u + 8 * static_cast<std::size_t>(start));
  }
  const auto files = bytes_below(path);
  EXPECT_TRUE(lies_somewhere(files, as_view(block_of(3, 1).bytes).substr(1000, 24)));
  EXPECT_FALSE(lies_somewhere(files, as_view(block_of(103, 1).bytes).substr(1000, 24)));
  sealing = nullptr;
  EXPECT_EQ(refused().code, Errc::kUnsupported);
}

/// A copy of the files from before the erasure does not bring the blocks back.
TEST_F(SealedDiskTest, WhatIsErasedIsGoneThoughItsBytesAndTheOperatorsKeyAreThere) {
  const DiskDrop dropped[] = {{.space = space_number(1), .hash = {}}};
  std::uint32_t epoch = 0;
  {
    const auto disk = open();
    epoch = disk->epoch();
    for (std::uint64_t number = 0; number < 20; ++number) ASSERT_FALSE(put(*disk, number, number % 2));
    ASSERT_FALSE(disk->flush());
  }
  const auto at = [&](std::uint64_t number) { return DiskKey{std::uint64_t{epoch} << 40 | number}; };
  const auto keys_before = bytes_below(path).at("KEYS");
  fs::copy(path / "db", root / "db.before", fs::copy_options::recursive);
  {
    const auto disk = open();
    ASSERT_FALSE(disk->add_drops(dropped));
    ASSERT_FALSE(put(*disk, 20, 1));  // stored since: another key
    ASSERT_FALSE(put(*disk, 21, 0));
    bool was_destroyed_first = false;
    const auto purged = disk->purge(dropped, [&](const DiskPurge& so_far) {
      if (so_far.looked_count == 0) was_destroyed_first = !has(*disk, at(1), 1, 1);
      return true;
    });
    ASSERT_TRUE(purged) << purged.error().message();
    EXPECT_TRUE(was_destroyed_first) << "not only when its file has been rewritten";
    for (std::uint64_t number = 0; number < 20; ++number)
      EXPECT_EQ(has(*disk, at(number), number, number % 2), number % 2 == 0);
    EXPECT_TRUE(has(*disk, key(*disk, 21), 21, 0));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_LT(bytes_below(path).at("KEYS").size(), keys_before.size() + 2 * kWrappedKeyBytes) << "one went";
  // All that the files had is back; the key is not.
  fs::remove_all(path / "db");
  fs::copy(root / "db.before", path / "db", fs::copy_options::recursive);
  {
    const auto disk = open();
    for (std::uint64_t number = 0; number < 20; ++number)
      EXPECT_EQ(has(*disk, at(number), number, number % 2), number % 2 == 0) << number;
    for (const DiskRecord& record : named(*disk)) EXPECT_EQ(record.space, space_number(0)) << "no name of what is gone";
  }
  // With the old file of keys they would be readable: it is the keys that were destroyed.
  std::ofstream(path / "KEYS", std::ios::binary) << keys_before;
  EXPECT_TRUE(has(*open(), at(1), 1, 1));
}

/// What is stored after a drop has a key of its own, which a purge up to the drop leaves alone.
TEST_F(SealedDiskTest, APurgeLeavesWhatANamespaceStoredSinceItsDrop) {
  const auto disk = open();
  for (std::uint64_t number = 0; number < 10; ++number) ASSERT_FALSE(put(*disk, number, 1));
  const DiskDrop dropped[] = {{.space = space_number(1), .hash = {}, .before = key(*disk, 10)}};
  ASSERT_FALSE(disk->add_drops(dropped));
  for (std::uint64_t number = 10; number < 20; ++number) ASSERT_FALSE(put(*disk, number, 1));
  ASSERT_FALSE(disk->flush());
  const DiskDrop one[] = {{.space = space_number(1), .hash = hash_of(12), .before = key(*disk, 20)}};
  ASSERT_TRUE(disk->purge(dropped, [](const DiskPurge&) { return true; }));
  for (std::uint64_t number = 0; number < 20; ++number)
    EXPECT_EQ(has(*disk, key(*disk, number), number, 1), number >= 10);
  ASSERT_FALSE(disk->add_drops(one)) << "of one block: no key is its alone";
  ASSERT_FALSE(put(*disk, 20, 1));
  EXPECT_TRUE(has(*disk, key(*disk, 20), 20, 1));
}

TEST_F(SealedDiskTest, KeysOfNamespacesAndStartsThatAreGoneGo) {
  const auto entries = [&] { return (bytes_below(path).at("KEYS").size() - kKeysHeader.size()) / kWrappedKeyBytes; };
  {
    const auto disk = open();
    EXPECT_EQ(entries(), 1u) << "the directory's own";
    for (std::uint64_t number = 0; number < 9; ++number) {
      ASSERT_FALSE(disk->add_namespace(space_number(number % 3), kRecord));
      ASSERT_FALSE(put(*disk, number, number % 3));
    }
    EXPECT_EQ(entries(), 4u);
    ASSERT_FALSE(disk->remove_namespaces(std::vector{space_number(1), space_number(77)}));
    EXPECT_EQ(entries(), 3u);
    EXPECT_FALSE(has(*disk, key(*disk, 1), 1, 1));
    EXPECT_TRUE(has(*disk, key(*disk, 2), 2, 2));
    ASSERT_FALSE(put(*disk, 10, 1));
    EXPECT_EQ(entries(), 4u);
    ASSERT_FALSE(disk->flush());
  }
  const auto disk = open();
  EXPECT_EQ(entries(), 4u);
  ASSERT_FALSE(put(*disk, 11, 0));
  EXPECT_EQ(entries(), 5u) << "each start has keys of its own";
  ASSERT_FALSE(disk->drop_before(key(*disk, 0)));
  EXPECT_EQ(entries(), 2u) << "nothing of the first start is left";
  EXPECT_TRUE(has(*disk, key(*disk, 11), 11, 0));
}

TEST_F(SealedDiskTest, AnotherKeyOfTheOperatorsRewrapsKeysAndRewritesNoBlock) {
  sealing = make_keys("one " + kOld + "\n");
  const auto tables = [&] {
    auto files = bytes_below(path / "db");
    std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".sst"); });
    return files;
  };
  const auto expect_all = [&](const RocksDisk& disk) {
    for (std::uint64_t number = 0; number < 12; ++number)
      EXPECT_TRUE(has(disk, DiskKey{std::uint64_t{1} << 40 | number}, number, number % 4));
  };
  const auto wrapped_by = [&] {
    const std::string text = bytes_below(path).at("KEYS").substr(kKeysHeader.size());
    std::set<std::string> ids;
    for (std::size_t at = 0; at < text.size(); at += kWrappedKeyBytes)
      ids.insert(decode_wrapped_key(text.substr(at, kWrappedKeyBytes))->wrapped_by);
    return ids;
  };
  {
    const auto disk = open();
    for (std::uint64_t number = 0; number < 12; ++number) ASSERT_FALSE(put(*disk, number, number % 4));
    ASSERT_FALSE(disk->flush());
    EXPECT_EQ(wrapped_by(), std::set<std::string>{"one"});
    const auto before = tables();
    // While it runs. The file need not even have the old key.
    std::ofstream(sealing->source().file) << "two " << kNew << "\none " << kOld << "\n";
    EXPECT_FALSE(sealing->reload().code);
    EXPECT_EQ(sealing->current_id(), "two");
    EXPECT_EQ(wrapped_by(), std::set<std::string>{"two"});
    EXPECT_EQ(tables(), before);
    expect_all(*disk);
    ASSERT_FALSE(put(*disk, 50, 9));
    EXPECT_EQ(wrapped_by(), std::set<std::string>{"two"});
    // A bad file changes nothing.
    std::ofstream(sealing->source().file) << "three " << kNew.substr(1) << "\n";
    EXPECT_EQ(sealing->reload().code, Errc::kBadRequest);
    EXPECT_TRUE(sealing->stats().last_failed);
    EXPECT_EQ(sealing->current_id(), "two");
    EXPECT_EQ(wrapped_by(), std::set<std::string>{"two"});
  }
  sealing = make_keys("one " + kOld + "\n");
  EXPECT_EQ(refused().code, Errc::kMismatch) << "the old key opens nothing any more";
  sealing = make_keys("three " + std::string(64, 'c') + "\ntwo " + kNew + "\n");  // by a restart
  const auto before = tables();
  {
    const auto disk = open();
    EXPECT_EQ(wrapped_by(), std::set<std::string>{"three"});
    const auto after = tables();
    for (const auto& [name, bytes] : before) {
      if (bytes.size() > 20'000) {
        EXPECT_EQ(after.at(name), bytes) << name;
      }
    }
    expect_all(*disk);
  }
  sealing = make_keys("three " + std::string(64, 'c') + "\n");
  expect_all(*open());
}

TEST_F(SealedDiskTest, WhenKeysCannotBeKeptNothingIsSealedWithThem) {
  const auto disk = open();
  ASSERT_FALSE(put(*disk, 1, 1));
  // What stands in the way of every replacement of the file, whoever runs the test.
  fs::create_directory(path / "KEYS.new");
  const DiskDrop dropped[] = {{.space = space_number(1), .hash = {}, .before = key(*disk, 9)}};
  EXPECT_FALSE(disk->purge(dropped, [](const DiskPurge&) { return true; }))
      << "an erasure that did not destroy the key says so";
  EXPECT_TRUE(has(*disk, key(*disk, 1), 1, 1));
  EXPECT_TRUE(put(*disk, 2, 2)) << "the file must be written anew, and cannot be";
  EXPECT_FALSE(put(*disk, 3, 1)) << "that key is kept already";
  fs::remove(path / "KEYS.new");
  EXPECT_FALSE(put(*disk, 4, 2));
  EXPECT_TRUE(has(*disk, key(*disk, 4), 4, 2));
  EXPECT_TRUE(has(*disk, key(*disk, 3), 3, 1));
  EXPECT_TRUE(disk->purge(dropped, [](const DiskPurge&) { return true; }));
  EXPECT_FALSE(has(*disk, key(*disk, 1), 1, 1));
}

/// A directory that is set back to a copy gives out the same DiskKeys again: the keys of a start are its own.
TEST_F(SealedDiskTest, TheSameBlockUnderTheSameKeyIsNeverSealedTwiceInOneWay) {
  {
    const auto disk = open();
    ASSERT_FALSE(put(*disk, 1, 1));
    ASSERT_FALSE(disk->flush());
  }
  fs::copy(path, root / "copy", fs::copy_options::recursive);
  std::set<std::string> numbers;
  for (int turn = 0; turn < 3; ++turn) {
    fs::remove_all(path);
    fs::copy(root / "copy", path, fs::copy_options::recursive);
    const auto disk = open();
    EXPECT_EQ(disk->epoch(), 2u);
    ASSERT_FALSE(put(*disk, 2, 1));
    EXPECT_TRUE(has(*disk, key(*disk, 2), 2, 1));
    const std::string text = bytes_below(path).at("KEYS");
    for (std::size_t at = kKeysHeader.size(); at < text.size(); at += kWrappedKeyBytes) {
      const auto entry = decode_wrapped_key(std::string_view(text).substr(at, kWrappedKeyBytes));
      ASSERT_TRUE(entry);
      if (epoch_of(entry->first_key) == 2) numbers.insert(std::to_string(entry->number));
    }
  }
  EXPECT_EQ(numbers.size(), 3u);
}

TEST_F(SealedDiskTest, SeveralDirectoriesHaveKeysOfTheirOwn) {
  SteadyClock clock;
  const std::vector<std::string> paths = {(root / "one").string(), (root / "two").string()};
  DiskKey keys_of[2];
  {
    const auto disk = disk_opener(paths, clock, 2s, sealing)([] {});
    ASSERT_TRUE(disk) << disk.error();
    const auto places = (*disk)->places();
    ASSERT_EQ(places.size(), 2u);
    for (std::uint64_t i = 0; i < 2; ++i) {
      NumberedBlock block = block_of(i, 1);
      block.record.key = keys_of[i] = DiskKey{std::uint64_t{(*disk)->epoch()} << 40 | (i + 1) << 4 | places[i]};
      const DiskWrite one{block.record, block.bytes, block.checksums};
      ASSERT_FALSE((*disk)->write({&one, 1}));
    }
    ASSERT_FALSE((*disk)->flush());
  }
  EXPECT_NE(bytes_below(paths[0]).at("KEYS"), bytes_below(paths[1]).at("KEYS"));
  EXPECT_EQ(disk_opener(paths, clock)([] {}).error(), Errc::kUnsupported);
  const auto disk = disk_opener(paths, clock, 2s, sealing)([] {});
  ASSERT_TRUE(disk);
  for (std::uint64_t i = 0; i < 2; ++i) EXPECT_TRUE(has(**disk, keys_of[i], i, 1));
}

/// The disk against a map, with and without encryption: random calls, clean stops, kills, keys of the operator's that
/// change. A block that is named is there and right; a block that is gone is never named or read.
class DiskModelTest : public SealedDiskTest, public testing::WithParamInterface<std::tuple<bool, unsigned>> {};
INSTANTIATE_TEST_SUITE_P(Seeds, DiskModelTest, testing::Combine(testing::Bool(), testing::Range(1u, 9u)));

TEST_P(DiskModelTest, BehavesAsAMapOfKeys) {
  const auto [is_sealed, seed] = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  struct Expected {
    std::uint64_t number, space;
    std::size_t bytes;
    bool is_flushed = false;
  };
  std::map<DiskKey, Expected> model;
  std::set<DiskKey> gone;  // durably
  std::uint64_t next = 1;
  char current = 'a';
  if (!is_sealed) sealing = nullptr;
  auto disk = open();
  const auto check = [&](bool after_kill) {
    std::set<DiskKey> found;
    for (const DiskRecord& record : named(*disk)) {
      found.insert(record.key);
      EXPECT_FALSE(gone.contains(record.key));
      const auto expected = model.find(record.key);
      ASSERT_NE(expected, model.end());
      const Expected& block = expected->second;
      EXPECT_TRUE(has(*disk, record.key, block.number, block.space, block.bytes)) << block.number;
      EXPECT_EQ(record.space, space_number(block.space));
    }
    for (const auto& [at, expected] : model)
      EXPECT_TRUE(found.contains(at) || (after_kill && !expected.is_flushed)) << expected.number;
    for (const DiskKey at : gone) static_cast<void>(disk->read(at));  // dead, or not there: never a crash
    std::erase_if(model, [&](const auto& each) { return !found.contains(each.first); });
  };
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: {
        const Expected block{next, below(4), 1 + below(70'000)};
        ASSERT_FALSE(put(*disk, next, block.space, block.bytes));
        model.emplace(key(*disk, next++), block);
        break;
      }
      case 5: {
        if (model.empty()) break;
        const auto at = std::next(model.begin(), static_cast<std::ptrdiff_t>(below(model.size())));
        ASSERT_FALSE(disk->erase(std::vector{at->first}));
        ASSERT_FALSE(disk->flush());
        gone.insert(at->first);
        model.erase(at);
        for (auto& [other, each] : model) each.is_flushed = true;
        break;
      }
      case 6: {
        if (model.size() < 8) break;
        const DiskKey end = std::next(model.begin(), static_cast<std::ptrdiff_t>(below(4)))->first;
        ASSERT_FALSE(disk->drop_before(end));
        ASSERT_FALSE(disk->flush());  // or a kill brings some of them back
        std::erase_if(model, [&](const auto& each) { return each.first < end; });
        for (auto& [at, each] : model) each.is_flushed = true;
        break;
      }
      case 7: {
        const std::uint64_t space = below(4);
        const DiskDrop drop[] = {{.space = space_number(space), .hash = {}, .before = key(*disk, next)}};
        std::vector<DiskKey> erased;
        for (const auto& [at, each] : model) {
          if (each.space == space) erased.push_back(at);
        }
        ASSERT_FALSE(disk->erase(erased));
        ASSERT_FALSE(disk->add_drops(drop));
        ASSERT_TRUE(disk->purge(drop, [](const DiskPurge&) { return true; }));
        for (const DiskKey at : erased) {
          EXPECT_FALSE(disk->read(at)) << "purged";
          gone.insert(at);
          model.erase(at);
        }
        for (auto& [at, each] : model) each.is_flushed = true;
        break;
      }
      case 8:
        ASSERT_FALSE(disk->flush());
        for (auto& [at, each] : model) each.is_flushed = true;
        break;
      case 9: {
        const bool is_clean = below(2) == 0;
        if (is_clean) {
          ASSERT_FALSE(disk->flush());
          for (auto& [at, each] : model) each.is_flushed = true;
        }
        disk.reset();
        if (is_sealed && below(2) == 0) {
          const char before = current;
          current = current == 'f' ? 'a' : static_cast<char>(current + 1);
          sealing = make_keys(std::string(64, current) + "\n" + std::string(64, before) + "\n");
        }
        disk = open();
        ASSERT_TRUE(disk);
        check(true);
        break;
      }
      case 10: {
        if (!is_sealed) break;
        const char before = current;
        current = current == 'f' ? 'a' : static_cast<char>(current + 1);
        std::ofstream(sealing->source().file) << std::string(64, current) << "\n" << std::string(64, before) << "\n";
        ASSERT_FALSE(sealing->reload().code);
        break;
      }
      default: check(false);
    }
  }
  check(false);
}

}  // namespace
}  // namespace kv
