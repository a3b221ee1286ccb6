// Keys of blocks on disk: sealed with one, nothing else opens them; wrapped by the operator's, they survive what they
// must, and do not survive being destroyed.
#include "store/node/disk/files/data_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "store/node/disk/files/sealing.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kAs = std::string(64, 'a'), kBs = std::string(64, 'b');

std::span<const std::byte> span_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Test case 16 of the GCM specification: 256 bits, with associated data.
TEST(SealingTest, IsAes256Gcm) {
  const auto bytes = [](std::string_view hex) {
    std::string text;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      text += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    return text;
  };
  const Secret key(bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"));
  SealNonce nonce;
  const std::string nonce_text = bytes("cafebabefacedbaddecaf888");
  std::memcpy(nonce.data(), nonce_text.data(), nonce.size());
  const std::string plain = bytes(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
      "ba"
      "637b39");
  const std::string associated = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  std::string sealed(plain.size() + kSealTagBytes, '\0');
  // In two parts: where one ends is nothing that anybody sees.
  const std::array<std::span<const std::byte>, 2> parts = {span_of(plain).first(7), span_of(plain).subspan(7)};
  seal(key, nonce, associated, parts, std::as_writable_bytes(std::span(sealed)));
  EXPECT_EQ(
      to_hex(span_of(sealed)),
      "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a"
      "bcc9f66276fc6ece0f4e1768cddf8853bb2d551b");
  std::string opened(plain.size(), '?');
  EXPECT_TRUE(unseal(key, nonce, associated, span_of(sealed), std::as_writable_bytes(std::span(opened))));
  EXPECT_EQ(opened, plain);
}

TEST(SealingTest, AnyChangedBitShowsAndGivesNothing) {
  const Secret key = random_key();
  const SealNonce nonce = random_nonce();
  const std::string plain = "sixteen bytes ....and some";
  std::string sealed(plain.size() + kSealTagBytes, '\0');
  const std::span<const std::byte> part = span_of(plain);
  seal(key, nonce, "name", {&part, 1}, std::as_writable_bytes(std::span(sealed)));
  std::string opened(plain.size(), '?');
  const auto opens = [&](const Secret& with, const SealNonce& under, std::string_view associated) {
    return unseal(with, under, associated, span_of(sealed), std::as_writable_bytes(std::span(opened)));
  };
  EXPECT_TRUE(opens(key, nonce, "name"));
  for (std::size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    const auto flip = [&] { sealed[bit / 8] = static_cast<char>(sealed[bit / 8] ^ (1 << (bit % 8))); };
    flip();
    EXPECT_FALSE(opens(key, nonce, "name")) << bit;
    EXPECT_EQ(opened, std::string(plain.size(), '\0')) << "no byte of what is not authentic";
    flip();
  }
  EXPECT_FALSE(opens(random_key(), nonce, "name"));
  EXPECT_FALSE(opens(key, random_nonce(), "name"));
  EXPECT_FALSE(opens(key, nonce, "names"));
  EXPECT_FALSE(opens(key, nonce, ""));
  EXPECT_TRUE(opens(key, nonce, "name"));
}

TEST(OperatorKeysTest, AFileHasKeysOnLinesTheCurrentOneFirst) {
  const auto sealing =
      OperatorKeys::parse("2026-11 " + kAs + "\n\n  old.one\t" + kBs + " \r\n" + std::string(64, 'C') + "\n");
  ASSERT_TRUE(sealing) << sealing.error();
  ASSERT_EQ(sealing->size(), 3u);
  EXPECT_EQ((*sealing)[0].id, "2026-11");
  EXPECT_EQ((*sealing)[0].bytes.text(), std::string(32, '\xaa'));
  EXPECT_EQ((*sealing)[1].id, "old.one");
  EXPECT_EQ((*sealing)[2].bytes.text(), std::string(32, '\xcc'));
  // A key without an id has the same one wherever it stands.
  const auto alone = OperatorKeys::parse(std::string(64, 'c'));
  ASSERT_TRUE(alone);
  EXPECT_EQ((*alone)[0].id, (*sealing)[2].id);
  EXPECT_TRUE(OperatorKeys::is_id((*alone)[0].id));
  EXPECT_NE((*alone)[0].id, (*OperatorKeys::parse(kAs))[0].id);
}

TEST(OperatorKeysTest, WhatIsNoKeyIsRefusedWithoutBeingShown) {
  for (const std::string& text : std::vector<std::string>{
           "", "\n \n", kAs.substr(1), kAs + "a", "id " + kAs + " more", "id", kAs.substr(2) + "xy", "an/id " + kAs,
           std::string(25, 'i') + " " + kAs, "same " + kAs + "\nsame " + kBs, kAs + "\n" + kAs, "0x" + kAs.substr(2),
           "+" + kAs.substr(1)}) {
    const auto sealing = OperatorKeys::parse(text);
    ASSERT_FALSE(sealing) << text;
    EXPECT_EQ(sealing.error().code, Errc::kBadRequest);
    EXPECT_THAT(sealing.error().text, testing::Not(HasSubstr(kAs.substr(2, 20))));
  }
  std::string many;
  for (std::size_t i = 0; i <= OperatorKeys::kCountMax; ++i) many += "k" + std::to_string(i) + " " + kAs + "\n";
  EXPECT_THAT(OperatorKeys::parse(many).error().text, HasSubstr("more than 16"));
}

class DataKeysTest : public DiskTest {
 protected:
  DataKeysTest() {
    fs::create_directory(path);
    sealing = make_keys("one " + kAs + "\n");
  }
  static NamespaceId space(std::uint64_t number) {
    NamespaceId id;
    id.bytes.fill(static_cast<std::byte>(number + 1));
    return id;
  }
  static DiskKey at(std::uint32_t epoch, std::uint64_t number) {
    return DiskKey{std::uint64_t{epoch} << 40 | number << 4};
  }
  std::string file() const {
    std::ifstream in(path / "KEYS", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void set_file(const std::string& text) const { std::ofstream(path / "KEYS", std::ios::binary) << text; }
  std::shared_ptr<DataKeys> make(std::uint32_t epoch = 1) const { return DataKeys::make(path, sealing, epoch).value(); }
};

TEST_F(DataKeysTest, ABlockOpensUnderItsOwnNameAndInItsOwnPlaceAlone) {
  const auto all = make();
  const auto mine = all->for_writing(space(1), at(1, 1)).value();
  ASSERT_NE(all->for_writing(space(2), at(1, 2)).value(), mine);
  const std::string plain = "the bytes of a block, and more of them";
  std::string value;
  seal_block(*mine, at(1, 5), "checksum", span_of(plain), value);
  EXPECT_EQ(value.size(), 8 + plain.size() + kSealedOverheadBytes);
  const auto opened = open_block(*all, at(1, 5), value);
  ASSERT_TRUE(opened);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(opened->text.get()), opened->size), "checksum" + plain);
  EXPECT_FALSE(open_block(*all, at(1, 6), value)) << "another key of the disk";
  EXPECT_FALSE(open_block(*all, at(2, 5), value));
  for (std::size_t size = 0; size < value.size(); ++size)
    EXPECT_FALSE(open_block(*all, at(1, 5), std::string_view(value).substr(0, size))) << size;
  for (std::size_t i = 0; i < value.size(); ++i) {
    std::string damaged = value;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    const auto block = open_block(*all, at(1, 5), damaged);
    ASSERT_FALSE(block);
    EXPECT_TRUE(is_lost(block.error())) << "a miss";
  }
  // The same key bytes for another namespace, as one who may write KEYS but has no key could try: the name is sealed
  // in.
  for (const NamespaceId& as : {space(1), space(2)}) {
    const DataKeys::Key claimed{mine->number, as, mine->first_key, mine->bytes};
    std::string sealed;
    seal_block(claimed, at(1, 7), "checksum", span_of(plain), sealed);
    EXPECT_EQ(open_block(*all, at(1, 7), sealed).has_value(), as == space(1));
  }
}

TEST_F(DataKeysTest, EqualBlocksUnderDifferentKeysOfTheDiskLookDifferent) {
  const auto all = make();
  const auto key = all->for_writing(space(1), at(1, 1)).value();
  const std::string plain(4096, 'p');
  std::set<std::string> seen;
  for (std::uint64_t number = 1; number <= 50; ++number) {
    std::string value;
    seal_block(*key, at(1, number), "checksum", span_of(plain), value);
    EXPECT_TRUE(seen.insert(value.substr(8, 32)).second) << "the same key stream twice";
  }
}

TEST_F(DataKeysTest, AnEntryIsBoundToItsNamespaceAndItsPlace) {
  {
    const auto all = make();
    ASSERT_TRUE(all->for_writing(space(1), at(1, 1)));
  }
  const std::string whole = file();
  auto entry = decode_wrapped_key(std::string_view(whole).substr(whole.size() - kWrappedKeyBytes));
  if (entry->first_key == DiskKey{})
    entry = decode_wrapped_key(std::string_view(whole).substr(kKeysHeader.size(), kWrappedKeyBytes));
  ASSERT_TRUE(entry);
  for (const auto& change : std::vector<std::function<void(WrappedKey&)>>{
           [](WrappedKey& each) { each.space = space(2); }, [](WrappedKey& each) { ++each.number; },
           [](WrappedKey& each) { each.first_key = at(1, 9); }, [](WrappedKey& each) { each.nonce[0] ^= std::byte{1}; },
           [](WrappedKey& each) { each.sealed[40] ^= std::byte{1}; }}) {
    WrappedKey changed = *entry;
    change(changed);  // with a right checksum: by somebody, and not by chance
    set_file(whole + encode_wrapped_key(changed));
    const auto all = DataKeys::open(path, sealing);
    ASSERT_TRUE(all) << all.error();
    if (changed.number != entry->number) {
      EXPECT_EQ((*all)->find(changed.number), nullptr);
    }
    const auto key = (*all)->find(entry->number);
    ASSERT_NE(key, nullptr);
    EXPECT_EQ(key->space, space(1));
    EXPECT_EQ(key->first_key, entry->first_key);
  }
}

TEST_F(DataKeysTest, ADamagedByteCostsOneKeyAndATornEndNone) {
  std::vector<std::uint64_t> numbers;
  {
    const auto all = make();
    for (std::uint64_t i = 0; i < 5; ++i) numbers.push_back(all->for_writing(space(i), at(1, i)).value()->number);
  }
  const std::string whole = file();
  ASSERT_EQ(whole.size(), kKeysHeader.size() + 6 * kWrappedKeyBytes);
  for (std::size_t i = 0; i < whole.size(); i += 5) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    set_file(damaged);
    const auto all = DataKeys::open(path, sealing);
    ASSERT_TRUE(all) << i << ": " << all.error();
    std::size_t left = 0;
    for (const std::uint64_t number : numbers) left += (*all)->find(number) != nullptr;
    EXPECT_GE(left, 4u) << i;
    EXPECT_TRUE((*all)->is_sealed(at(1, 1)));
    EXPECT_FALSE((*all)->is_sealed(at(0, 1)));
  }
  for (std::size_t torn = 1; torn < kWrappedKeyBytes; torn += 9) {
    set_file(whole.substr(0, whole.size() - torn));
    {
      const auto all = DataKeys::open(path, sealing).value();
      for (std::size_t i = 0; i < 4; ++i) EXPECT_NE(all->find(numbers[i]), nullptr);
      ASSERT_TRUE(all->for_writing(space(9), at(2, 1)));
    }
    const auto again = DataKeys::open(path, sealing).value();
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NE(again->find(numbers[i]), nullptr);
    EXPECT_TRUE(again->known().contains({space(9), 2}));
  }
}

TEST_F(DataKeysTest, NoMoreKeysAreWrittenThanAreReadAgain) {  // invariant 5
  constexpr std::size_t kMost = 4;
  const auto all = DataKeys::make(path, sealing, 1, kMost).value();
  for (std::uint64_t i = 1; i < kMost; ++i) ASSERT_TRUE(all->for_writing(space(i), at(1, i)));  // one is its own
  EXPECT_EQ(all->for_writing(space(9), at(1, 9)).error().value(), ENOSPC);
  EXPECT_TRUE(all->for_writing(space(1), at(1, 10))) << "that is there";
  const std::string whole = file();
  ASSERT_TRUE(DataKeys::open(path, sealing, kMost));
  const std::pair<NamespaceId, DiskKey> gone[] = {{space(1), at(1, 20)}};
  ASSERT_FALSE(all->destroy(gone));
  EXPECT_TRUE(all->for_writing(space(9), at(1, 21))) << "there is room again";

  // With the directory's own key damaged: one more is made, and that is read again.
  std::string damaged = whole;
  for (std::size_t at = kKeysHeader.size(); at < whole.size(); at += kWrappedKeyBytes)
    if (decode_wrapped_key(std::string_view(whole).substr(at, kWrappedKeyBytes))->first_key == DiskKey{})
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
  set_file(damaged);
  const auto mended = DataKeys::open(path, sealing, kMost);
  ASSERT_TRUE(mended) << mended.error();
  EXPECT_EQ((*mended)->known().size(), kMost);

  const std::string entry = whole.substr(whole.size() - kWrappedKeyBytes);
  set_file(whole + entry);
  EXPECT_TRUE(DataKeys::open(path, sealing, kMost));
  set_file(whole + entry + entry);
  const auto refused = DataKeys::open(path, sealing, kMost);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::kMismatch);
  EXPECT_THAT(refused.error().text, HasSubstr("longer than the 4 keys"));
  EXPECT_EQ(file(), whole + entry + entry) << "nothing was changed";
}

/// Zeros, so that it takes no room: a file that anybody made long.
TEST_F(DataKeysTest, AFileWithoutEndIsRefusedAfterSoManyKeys) {
  { ASSERT_TRUE(make()->for_writing(space(1), at(1, 1))); }
  fs::resize_file(path / "KEYS", std::uintmax_t{1} << 30);
  const auto refused = DataKeys::open(path, sealing);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text, HasSubstr("longer than the 524288 keys"));
}

TEST_F(DataKeysTest, ADestroyedKeyIsOverwrittenInTheFileThatHeldIt) {
  const auto all = make();
  ASSERT_TRUE(all->for_writing(space(1), at(1, 1)));
  ASSERT_TRUE(all->for_writing(space(2), at(1, 2)));
  fs::create_hard_link(path / "KEYS", path / "before");  // the file itself, whatever its name
  const auto size = fs::file_size(path / "before");
  const std::pair<NamespaceId, DiskKey> gone[] = {{space(1), at(1, 5)}};
  ASSERT_FALSE(all->destroy(gone));
  std::ifstream in(path / "before", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), std::string(size, '\0'));
  EXPECT_EQ(file().size(), size - kWrappedKeyBytes);
}

TEST_F(DataKeysTest, ARecordOpensUnderItsOwnNamespaceAlone) {
  const auto all = make();
  const std::string record = "model=a\ntenant=b\n";
  const std::string value = all->seal_record(space(1), record);
  EXPECT_EQ(value.find("tenant"), std::string::npos);
  EXPECT_EQ(all->open_record(space(1), value), record);
  EXPECT_EQ(all->open_record(space(2), value), std::nullopt);
  EXPECT_EQ(all->open_record(space(1), record), record) << "in plain text: older than the keys";
  for (std::size_t size = 1; size < value.size(); ++size)
    EXPECT_EQ(all->open_record(space(1), value.substr(0, size)), std::nullopt);
  EXPECT_NE(all->seal_record(space(1), record), value);
  EXPECT_EQ(DataKeys::open(path, sealing).value()->open_record(space(1), value), record);
}

/// Keys against a map: made, destroyed, rewrapped, and read again by another start.
TEST_F(DataKeysTest, BehavesAsAMapOfKeys) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    fs::remove_all(path);
    fs::create_directory(path);
    sealing = make_keys("k0 " + kAs + "\n");
    std::uint32_t epoch = 1;
    std::uint64_t next = 1, generation = 0;
    struct Made {
      NamespaceId space;
      DiskKey first_key{};
      std::string bytes;
    };
    std::map<std::uint64_t, Made> model;
    std::map<NamespaceId, std::uint64_t> current;
    std::set<std::uint64_t> gone;
    auto all = make(epoch);
    const auto destroy_if = [&](auto is_gone) {
      std::erase_if(current, [&](const auto& each) { return is_gone(model.at(each.second)); });
      std::erase_if(model, [&](const auto& each) {
        if (is_gone(each.second)) gone.insert(each.first);
        return is_gone(each.second);
      });
    };
    for (int step = 0; step < 200; ++step) {
      switch (below(8)) {
        case 0:
        case 1:
        case 2: {
          const NamespaceId of = space(below(6));
          const DiskKey block = at(epoch, next++);
          const auto key = all->for_writing(of, block).value();
          const auto known = current.find(of);
          ASSERT_EQ(known != current.end(), model.contains(key->number));
          if (known != current.end()) {
            EXPECT_EQ(known->second, key->number);
            break;
          }
          current[of] = key->number;
          model[key->number] = {of, block, std::string(key->bytes.text())};
          break;
        }
        case 3: {
          const std::pair<NamespaceId, DiskKey> which[] = {{space(below(6)), at(epoch, below(next))},
                                                           {space(below(6)), at(epoch, next)}};
          ASSERT_FALSE(all->destroy(which));
          for (const auto& each : which) {
            destroy_if([&](const Made& made) { return made.space == each.first && made.first_key < each.second; });
          }
          break;
        }
        case 4: {
          const NamespaceId of = space(below(6));
          all->retire(of);
          current.erase(of);
          break;
        }
        case 5: {
          if (below(4) != 0) break;
          const auto until = static_cast<std::uint32_t>(epoch - std::min<std::uint64_t>(epoch, below(3)));
          ASSERT_FALSE(all->destroy_before(at(until, 3)));
          destroy_if([&](const Made& made) { return epoch_of(made.first_key) < until; });
          break;
        }
        case 6: {
          const std::string now = "k" + std::to_string(generation++ % 3), then = "k" + std::to_string(generation % 3);
          std::ofstream(sealing->source().file)
              << then << " " << std::string(64, static_cast<char>('a' + generation % 3)) << "\n"
              << now << " " << std::string(64, static_cast<char>('a' + (generation - 1) % 3)) << "\n";
          ASSERT_FALSE(sealing->reload().code);
          break;
        }
        default:
          ++epoch;
          current.clear();
          all = DataKeys::open(path, sealing).value();
      }
      for (const auto& [number, made] : model) {
        const auto key = all->find(number);
        ASSERT_NE(key, nullptr);
        EXPECT_EQ(key->bytes.text(), made.bytes);
        EXPECT_EQ(key->space, made.space);
        EXPECT_EQ(key->first_key, made.first_key);
      }
      for (const std::uint64_t number : gone) ASSERT_EQ(all->find(number), nullptr);
      const std::string text = file();
      EXPECT_EQ((text.size() - kKeysHeader.size()) / kWrappedKeyBytes, model.size() + 1) << "one is the directory's";
    }
  }
}

TEST(DiskFormatTest, AWrappedKeyIsThatOfTheDocument) {
  WrappedKey key{.number = 0x0102030405060708,
                 .space = {},
                 .first_key = DiskKey{0x1112131415161718},
                 .seal_epoch = 0x21222324,
                 .wrapped_by = "2026-11"};
  key.nonce.fill(std::byte{0x33});
  key.sealed.fill(std::byte{0x44});
  const std::string entry = encode_wrapped_key(key);
  ASSERT_EQ(entry.size(), 128u);
  EXPECT_EQ(entry.substr(0, 8), "\x08\7\6\5\4\3\2\1");
  EXPECT_EQ(entry.substr(24, 12), "\x18\x17\x16\x15\x14\x13\x12\x11\x24\x23\x22\x21");
  EXPECT_EQ(entry.substr(36, 24), "2026-11" + std::string(17, '\0'));
  EXPECT_EQ(entry.substr(60, 12), std::string(12, '\x33'));
  EXPECT_EQ(entry.substr(72, 48), std::string(48, '\x44'));
  EXPECT_EQ(encode_wrapped_key(*decode_wrapped_key(entry)), entry);
  for (std::size_t at = 0; at < entry.size(); ++at) {
    std::string damaged = entry;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_FALSE(decode_wrapped_key(damaged)) << at;
  }
  EXPECT_FALSE(decode_wrapped_key(entry.substr(1)));
  EXPECT_FALSE(decode_wrapped_key(""));
}

}  // namespace
}  // namespace kv
