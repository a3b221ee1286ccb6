// A context as a file: its form, what is refused of one that is damaged, cut off or forged, and its way from a cluster
// to a file and from there to another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "base/checksum.h"
#include "client/archive/archive_form.h"
#include "tests/client/real_nodes.h"
#include "tests/client/text_source.h"
#include "tests/client/typed_calls.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

// -- the form

Result<CheckedArchive, Failure> check(std::string_view text) {
  TextSource source(text);
  return check_archive(source, nullptr);
}

ArchiveHead some_head(std::size_t block_bytes, std::size_t block_count) {
  ArchiveHead head;
  head.written = std::chrono::microseconds(1'800'000'000'000'000);
  head.record = test_record(block_bytes);
  head.name = "prompt";
  head.tags = {"team=x", "a b"};
  head.ttl = std::chrono::hours(1);
  head.is_sliding = true;
  head.priority = 7;
  head.hashes = test_chain(head.record, block_count);
  head.wanted_blocks = static_cast<std::uint32_t>(block_count + 1);
  return head;
}

void append(std::string& text, std::span<const std::byte> bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string whole_file(const ArchiveHead& head, const std::string& begin) {
  std::string text = begin;
  std::vector<std::byte> block(head.record.block_bytes());
  std::vector<std::uint64_t> sums(head.stripes());
  for (const BlockHash& hash : head.hashes) {
    fill_block(hash, block);
    block_checksums(head.record.checksum_seed(hash, block.size()), block, sums);
    append(text, std::as_bytes(std::span(sums)));
    append(text, block);
  }
  append(text, sha256(std::as_bytes(std::span(text))).bytes);
  return text;
}
std::string whole_file(const ArchiveHead& head) { return whole_file(head, write_archive_head(head)); }

/// With the digests that the rest has.
std::string mend(std::string text, std::size_t head_bytes) {
  const auto put = [&](std::size_t at) {
    const BlockHash digest = sha256(std::as_bytes(std::span(text)).first(at));
    std::memcpy(text.data() + at, digest.bytes.data(), digest.bytes.size());
  };
  if (head_bytes >= 32 && head_bytes <= text.size()) put(head_bytes - 32);
  if (text.size() >= 32) put(text.size() - 32);
  return text;
}

std::string golden_archive() {
  std::ifstream file(std::string(KV_GOLDEN_DIR) + "/context_archive.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ArchiveFormTest, TheFormStays) {
  const ArchiveHead head = some_head(200, 3);
  const std::string path = std::string(KV_GOLDEN_DIR) + "/context_archive.bin";
  if (std::getenv("KV_WRITE_GOLDEN") != nullptr && !fs::exists(path))
    std::ofstream(path, std::ios::binary) << whole_file(head);
  const std::string golden = golden_archive();
  const auto read = check(golden);
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->head.name, "prompt");
  EXPECT_EQ(read->head.tags, head.tags);
  EXPECT_EQ(read->head.record.text(), head.record.text());
  EXPECT_EQ(read->head.ttl, head.ttl);
  EXPECT_TRUE(read->head.is_sliding);
  EXPECT_EQ(read->head.priority, 7u);
  EXPECT_EQ(read->head.wanted_blocks, 4u);
  EXPECT_EQ(read->head.written, head.written);
  EXPECT_EQ(read->head.hashes, head.hashes);
  EXPECT_EQ(read->checksums.size(), 3u);
  EXPECT_EQ(read->head.file_bytes(read->head_bytes), golden.size());
  EXPECT_EQ(whole_file(read->head), golden);
}

// -- signed

const std::string kKey(64, 'a'), kOtherKey = std::string(63, 'a') + "b";

Result<CheckedArchive, Failure> check_with(std::string_view text, const std::string& key) {
  TextSource source(text);
  const ArchiveKey parsed = ArchiveKey::parse(key).value();
  return check_archive(source, nullptr, &parsed);
}

/// A file without a signature and one with that of `key`.
std::string signed_file(const std::string& text, const std::string& key) {
  BlockHash digest;
  std::memcpy(digest.bytes.data(), text.data() + text.size() - digest.bytes.size(), digest.bytes.size());
  std::string made = text;
  append(made, ArchiveKey::parse(key).value().sign(digest).bytes);
  return made;
}

TEST(ArchiveKeyTest, TheSignedFormStays) {
  const std::string path = std::string(KV_GOLDEN_DIR) + "/context_archive_signed.bin";
  const std::string made = signed_file(whole_file(some_head(200, 3)), kKey);
  if (std::getenv("KV_WRITE_GOLDEN") != nullptr && !fs::exists(path)) std::ofstream(path, std::ios::binary) << made;
  std::ifstream file(path, std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(made, golden);
  const auto read = check_with(golden, kKey);
  ASSERT_TRUE(read) << read.error();
  EXPECT_TRUE(read->is_signed);
}

/// All checksums and digests of a file are anybody's to make: a block of made-up bytes is right by all of them.
TEST(ArchiveKeyTest, WithAKeyWhatItHasNotSignedIsRefusedHoweverRightItsChecksumsAre) {
  const ArchiveHead head = some_head(200, 3);
  const std::string made_up = whole_file(head);
  EXPECT_TRUE(check(made_up)) << "without a key it is believed";
  const auto unsigned_one = check_with(made_up, kKey);
  EXPECT_EQ(unsigned_one.error(), Errc::kPermissionDenied);
  EXPECT_THAT(unsigned_one.error().text, HasSubstr("not signed"));
  const auto of_another = check_with(signed_file(made_up, kOtherKey), kKey);
  EXPECT_EQ(of_another.error(), Errc::kPermissionDenied);
  EXPECT_THAT(of_another.error().text, HasSubstr("another key"));
  const std::string good = signed_file(made_up, kKey);
  EXPECT_TRUE(check_with(good, kKey)->is_signed);
  EXPECT_TRUE(check(good)->is_signed) << "who has no key goes without";
  for (std::size_t at = good.size() - 32; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_EQ(check_with(bad, kKey).error(), Errc::kPermissionDenied) << at;
  }
  for (std::size_t bytes = good.size() - 31; bytes < good.size(); ++bytes)
    EXPECT_FALSE(check(good.substr(0, bytes))) << "half a signature is none";
  EXPECT_FALSE(check(good + "x"));
  // Another context under the same signature.
  ArchiveHead other = head;
  other.name = "another";
  EXPECT_FALSE(check_with(whole_file(other) + good.substr(good.size() - 32), kKey));
}

TEST(ArchiveKeyTest, AKeyIsASecretFileOfDigits) {
  const std::string path = fs::temp_directory_path() / ("kvstore-archive-key-" + std::to_string(::getpid()));
  const auto configured = [&](const std::string& text, fs::perms mode = fs::perms::owner_read) {
    fs::remove(path);
    std::ofstream(path) << text;
    fs::permissions(path, mode);
    return ArchiveKey::configured(path);
  };
  EXPECT_TRUE(configured(kKey + "\n").value().has_value());
  EXPECT_THAT(configured("short").error().text, AllOf(HasSubstr(path), HasSubstr("64 hexadecimal digits")));
  EXPECT_FALSE(configured(kKey, fs::perms::owner_read | fs::perms::others_read)) << "anybody's key is none";
  EXPECT_FALSE(ArchiveKey::configured("/nowhere"));
  EXPECT_FALSE(ArchiveKey::configured("").value().has_value());
  ASSERT_TRUE(configured(kKey));
  ::setenv(ArchiveKey::kEnvironment, path.c_str(), 1);
  EXPECT_TRUE(ArchiveKey::configured("").value().has_value());
  ::setenv(ArchiveKey::kEnvironment, "/nowhere", 1);
  EXPECT_FALSE(ArchiveKey::configured("")) << "a key that is asked for and not there is no reason to go without";
  ::unsetenv(ArchiveKey::kEnvironment);
  fs::remove(path);
}

TEST(ArchiveFormTest, BlocksOfSeveralStripesAreReadInPieces) {
  const ArchiveHead head = some_head(3 * kStripeBytes + 8, 2);
  const std::string text = whole_file(head);
  TextSource source(text, 1000);
  std::vector<std::size_t> asked;
  const auto read = check_archive(source, [&](std::size_t blocks, std::size_t of) {
    EXPECT_EQ(of, 2u);
    asked.push_back(blocks);
    return true;
  });
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->checksums.size(), 8u);
  EXPECT_THAT(asked, ElementsAre(0u, 1u));
  TextSource again(text);
  EXPECT_EQ(check_archive(again, [](std::size_t blocks, std::size_t) { return blocks == 0; }).error(),
            Errc::kCancelled);
}

TEST(ArchiveFormTest, EachByteThatChangesAndEachLengthThatIsCutIsFound) {
  const ArchiveHead head = some_head(200, 3);
  const std::string good = whole_file(head);
  const std::size_t head_bytes = write_archive_head(head).size();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const auto read = check(bad);
      ASSERT_FALSE(read) << at;
      EXPECT_FALSE(read.error().text.empty());
      // Right digests are not enough: each block is bound to its name.
      if (at >= head_bytes && at < good.size() - 32) {
        ASSERT_FALSE(check(mend(bad, head_bytes))) << at;
      }
    }
    const auto cut = check(good.substr(0, at));
    ASSERT_FALSE(cut) << at;
    EXPECT_EQ(cut.error(), Errc::kCorruptBlock) << at;
    EXPECT_THAT(cut.error().text, HasSubstr("cut short")) << at;
  }
  EXPECT_THAT(check(good + '\0').error().text,
              HasSubstr("goes on behind its end at byte " + std::to_string(good.size())));
}

TEST(ArchiveFormTest, WhatIsWrongIsNamedAndWhere) {
  const ArchiveHead head = some_head(200, 3);
  const std::string good = whole_file(head);
  const std::size_t head_bytes = write_archive_head(head).size();
  const auto changed = [&](std::size_t at, char to) {
    std::string bad = good;
    bad[at] = to;
    return bad;
  };
  EXPECT_THAT(check("hello, this is some other file").error().text, HasSubstr("it is no exported context"));
  const auto newer = check(changed(4, 2));
  EXPECT_EQ(newer.error(), Errc::kUnsupported);
  EXPECT_THAT(newer.error().text, HasSubstr("format 2, this program reads 1"));
  EXPECT_THAT(check(changed(30, '?')).error().text, HasSubstr("its head is damaged"));
  EXPECT_THAT(check(changed(head_bytes + 208 + 100, '?')).error().text,
              AllOf(HasSubstr("block 1 of 3, at byte " + std::to_string(head_bytes + 208)), HasSubstr("damaged")));
  EXPECT_THAT(check(changed(good.size() - 1, '?')).error().text, HasSubstr("SHA-256 at its end"));
  EXPECT_THAT(check(good.substr(0, head_bytes + 300)).error().text,
              AllOf(HasSubstr("cut short in block 1 of 3"), HasSubstr(std::to_string(head_bytes + 300) + " bytes"),
                    HasSubstr("should be " + std::to_string(good.size()))));
  // Two blocks in each other's place, with all digests right.
  std::string swapped = good;
  std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(head_bytes),
                   swapped.begin() + static_cast<std::ptrdiff_t>(head_bytes + 208),
                   swapped.begin() + static_cast<std::ptrdiff_t>(head_bytes + 208));
  EXPECT_THAT(check(mend(swapped, head_bytes)).error().text, HasSubstr("block 0 of 3"));
  // A record that a node has completed for a tenant of its own.
  std::string forged = good;
  const std::string field = "model=m\n";
  const std::size_t at = forged.find(field);
  ASSERT_NE(at, std::string::npos);
  const std::string more = "node_tenant=blue\n";
  forged.insert(at + field.size(), more);
  const auto grow = [&](std::size_t where) {
    std::uint32_t length = 0;
    std::memcpy(&length, forged.data() + where, sizeof length);
    length += static_cast<std::uint32_t>(more.size());
    std::memcpy(forged.data() + where, &length, sizeof length);
  };
  grow(8);
  grow(20);
  const auto foreign = check(mend(forged, head_bytes + more.size()));
  EXPECT_EQ(foreign.error(), Errc::kMismatch);
  EXPECT_THAT(foreign.error().text, HasSubstr("what a node adds for a tenant"));
  std::string name = good;
  name[name.find("prompt")] = ' ';
  EXPECT_THAT(check(mend(name, head_bytes)).error().text, HasSubstr("name: ' rompt', allowed are"));
}

TEST(ArchiveFormTest, AFalseLengthAllocatesNoMoreThanIsThere) {
  std::string text("KVCX\1\0\0\0", 8);
  const std::uint32_t length = 40 << 20;
  text.append(reinterpret_cast<const char*>(&length), sizeof length);
  EXPECT_THAT(check(text + "x").error().text, HasSubstr("cut short"));
  const std::uint32_t too_long = length + 1;
  text.resize(8);
  text.append(reinterpret_cast<const char*>(&too_long), sizeof too_long);
  EXPECT_THAT(check(text).error().text, HasSubstr("a head of"));
}

/// Whatever is in the bytes, with right digests: no crash, and what is read could have been written.
TEST(ArchiveFormTest, RandomDamageWithRightDigestsIsRefusedOrHarmless) {
  const char* const env = std::getenv("KV_SEED");
  const std::uint64_t seed = env != nullptr ? std::strtoull(env, nullptr, 10) : std::random_device{}();
  std::printf("KV_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const ArchiveHead head = some_head(64, 2);
  const std::string good = whole_file(head);
  const std::size_t head_bytes = write_archive_head(head).size();
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (auto left = 1 + random() % 4; left > 0; --left)
      bad[12 + random() % (head_bytes - 12)] = static_cast<char>(random());
    const auto read = check(mend(bad, head_bytes));
    if (read) {
      EXPECT_EQ(wrong_head(read->head), "");
      EXPECT_EQ(write_archive_head(read->head), mend(bad, head_bytes).substr(0, head_bytes));
    }
  }
}

// -- the way

struct Cluster {
  Cluster(std::size_t count, std::size_t extent_blocks, std::size_t capacity_bytes = 64 << 20) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = "node" + std::to_string(i);
      nodes.push_back(std::make_unique<SocketNode>(
          small_store(capacity_bytes), name, Endpoint{Endpoint::Scheme::kUnix, directory.path() + "/" + name, ""}));
      config.nodes.push_back({.endpoint = nodes.back()->endpoint().to_string(), .name = name});
    }
    config.extent_blocks = extent_blocks;
    client = std::make_unique<TypedClient>(config);
  }
  void put(const NamespaceRecord& record, std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), record.block_bytes());
    memory.fill(chain);
    ASSERT_EQ(client->put(client->open(record, 5s).value(), chain, memory.from, {.deadline = 20s})->stored,
              chain.size());
  }
  NamedContext create(const NamespaceRecord& record, std::span<const BlockHash> chain, const char* name) {
    static const std::vector<std::string> tags = {"team=x"};
    const ContextOptions options{
        .deadline = 5s, .name = name, .life = {.ttl = 3600s, .is_sliding = true}, .tags = tags, .priority = 7};
    return client->create_context(client->open(record, 5s).value(), chain, options).value();
  }
  std::size_t right(const NamespaceRecord& record, std::span<const BlockHash> chain) {
    Blocks memory(chain.size(), record.block_bytes());
    memory.clear();
    const auto got = client->get(client->open(record, 5s).value(), chain, memory.to, {.deadline = 20s});
    return std::min(got->block_count, memory.right(chain.first(std::max<std::size_t>(1, got->block_count))));
  }
  std::size_t held(const NamespaceRecord& record, std::span<const BlockHash> chain) {
    return client->match(client->open(record, 5s).value(), chain, {.deadline = 5s})->block_count;
  }

  TemporaryDirectory directory;
  std::vector<std::unique_ptr<SocketNode>> nodes;
  ClientConfig config;
  std::unique_ptr<TypedClient> client;
};

class ArchiveTest : public testing::Test {
 protected:
  std::string file() const { return directory.path() + "/prompt.kvctx"; }
  std::size_t file_count() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()));
  }
  std::string bytes() const {
    std::ifstream from(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(from), {}};
  }
  TemporaryDirectory directory;
  const NamespaceRecord record = test_record(4096);
  const std::vector<BlockHash> chain = test_chain(record, 12);
};

TEST_F(ArchiveTest, AContextGoesFromAnyClusterToAnyOther) {
  struct Shape {
    std::size_t nodes, extent_blocks;
  };
  const Shape shapes[] = {{1, 1}, {3, 1}, {3, 2}, {2, 256}};
  for (const Shape& from : shapes) {
    Cluster source(from.nodes, from.extent_blocks);
    source.put(record, chain);
    source.create(record, chain, "prompt");
    const auto exported = source.client->export_context("prompt", file(), {.deadline = 5s, .replaces = true});
    ASSERT_TRUE(exported) << exported.error();
    EXPECT_EQ(exported->blocks, 12u);
    EXPECT_EQ(exported->wanted_blocks, 12u);
    EXPECT_EQ(exported->bytes, fs::file_size(file()));
    for (const Shape& to : shapes) {
      SCOPED_TRACE(testing::Message() << from.nodes << "/" << from.extent_blocks << " to " << to.nodes << "/"
                                      << to.extent_blocks);
      Cluster target(to.nodes, to.extent_blocks);
      const auto imported = target.client->import_context(file(), {.deadline = 5s});
      ASSERT_TRUE(imported) << imported.error();
      EXPECT_EQ(imported->stored_blocks, 12u);
      const auto list = target.client->list_contexts("", 5s).value();
      ASSERT_EQ(list.contexts.size(), 1u);
      const NamedContext& one = list.contexts[0];
      EXPECT_EQ(one.name, "prompt");
      EXPECT_THAT(one.tags, ElementsAre("team=x"));
      EXPECT_EQ(one.priority, 7u);
      EXPECT_TRUE(one.is_sliding);
      EXPECT_EQ(one.ttl, 3600s);
      EXPECT_EQ(one.kept_blocks, 12u);
      EXPECT_EQ(one.namespace_id, to_hex(record.id().bytes));
      EXPECT_EQ(target.right(record, chain), 12u);
      // And out again: the same but for the moment.
      const std::string again = directory.path() + "/again";
      ASSERT_TRUE(target.client->export_context("prompt", again, {.deadline = 5s, .replaces = true}));
      EXPECT_EQ(fs::file_size(again), fs::file_size(file()));
    }
  }
}

TEST_F(ArchiveTest, ALargeOneGoesInBatches) {
  const NamespaceRecord large = test_record(6 << 20);
  const auto blocks = test_chain(large, 9);
  Cluster source(1, 1, 96 << 20), target(2, 2, 96 << 20);
  source.put(large, blocks);
  source.create(large, blocks, "prompt");
  std::vector<std::size_t> read, stored;
  ContextExportOptions out{.deadline = 20s};
  out.go_on = [&](const ArchiveProgress& progress) {
    read.push_back(progress.blocks);
    return true;
  };
  ASSERT_TRUE(source.client->export_context("prompt", file(), out));
  EXPECT_THAT(read, ElementsAre(0u, 2u, 4u, 6u, 8u, 9u));
  ContextImportOptions in{.deadline = 20s};
  in.name = "other";
  in.life = ContextTime{.ttl = 60s};
  in.priority = 2;
  in.go_on = [&](const ArchiveProgress& progress) {
    if (progress.step == ArchiveProgress::Step::kPut) stored.push_back(progress.blocks);
    return true;
  };
  const auto imported = target.client->import_context(file(), in);
  ASSERT_TRUE(imported) << imported.error();
  EXPECT_THAT(stored, ElementsAre(0u, 2u, 4u, 6u, 8u, 9u));
  EXPECT_EQ(imported->stored_blocks, 9u);
  EXPECT_EQ(imported->context.name, "other");
  EXPECT_EQ(imported->context.ttl, 60s);
  EXPECT_FALSE(imported->context.is_sliding);
  EXPECT_EQ(imported->context.priority, 2u);
  EXPECT_EQ(target.right(large, blocks), 9u);
  EXPECT_EQ(target.client->import_context(file(), in)->stored_blocks, 0u) << "they are there";
}

TEST_F(ArchiveTest, OfOneThatIsNotAllThereTheLeadingPartIsHadIfAskedFor) {
  Cluster source(2, 2), target(1, 1);
  source.put(record, std::span(chain).first(8));
  source.create(record, chain, "prompt");
  const auto refused = source.client->export_context("prompt", file(), {.deadline = 5s});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::kNotFound);
  EXPECT_THAT(refused.error().text, AllOf(HasSubstr("context 'prompt'"), HasSubstr("8 of its 12 blocks are there")));
  EXPECT_EQ(file_count(), 0u);
  const auto exported = source.client->export_context("prompt", file(), {.deadline = 5s, .is_partial = true});
  ASSERT_TRUE(exported) << exported.error();
  EXPECT_EQ(exported->blocks, 8u);
  EXPECT_EQ(exported->wanted_blocks, 12u);
  const auto imported = target.client->import_context(file(), {.deadline = 5s});
  ASSERT_TRUE(imported) << imported.error();
  EXPECT_EQ(imported->context.wanted_blocks, 8u);
  EXPECT_EQ(imported->context.kept_blocks, 8u);
  EXPECT_EQ(source.client->export_context("none", file() + "2", {.deadline = 5s}).error(), Errc::kNotFound);
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(ArchiveTest, AFileIsThereWholeOrNotAtAllAndNoneIsLost) {
  Cluster source(1, 1);
  source.put(record, chain);
  source.create(record, chain, "prompt");
  const auto give = [&](bool replaces, const std::string& to) {
    ContextExportOptions options{.deadline = 5s};
    options.replaces = replaces;
    return source.client->export_context("prompt", to, options);
  };
  std::ofstream(file()) << "mine";
  const auto there = give(false, file());
  EXPECT_THAT(there.error().text, HasSubstr("it is there already"));
  EXPECT_EQ(bytes(), "mine");
  ContextExportOptions stopped{.deadline = 5s, .replaces = true};
  stopped.go_on = [](const ArchiveProgress&) { return false; };
  EXPECT_EQ(source.client->export_context("prompt", file(), stopped).error(), Errc::kCancelled);
  EXPECT_EQ(bytes(), "mine");
  EXPECT_EQ(file_count(), 1u);
  // One that comes while it is written.
  ContextExportOptions raced{.deadline = 5s};
  const std::string other = directory.path() + "/other";
  raced.go_on = [&](const ArchiveProgress&) {
    std::ofstream(other) << "theirs";
    return true;
  };
  EXPECT_FALSE(source.client->export_context("prompt", other, raced));
  EXPECT_EQ(fs::file_size(other), 6u);
  EXPECT_EQ(file_count(), 2u);
  ASSERT_TRUE(give(true, file()));
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_TRUE(check(bytes()));
  // No link is followed, nothing but a file is replaced.
  const std::string link = directory.path() + "/link";
  fs::create_symlink(other, link);
  EXPECT_FALSE(give(true, link));
  EXPECT_FALSE(give(true, directory.path()));
  EXPECT_EQ(fs::file_size(other), 6u);
  EXPECT_FALSE(give(false, directory.path() + "/none/x"));
}

TEST_F(ArchiveTest, NothingOfADamagedFileComesToANode) {
  Cluster source(1, 1), target(1, 1);
  source.put(record, chain);
  source.create(record, chain, "prompt");
  ASSERT_TRUE(source.client->export_context("prompt", file(), {.deadline = 5s}));
  const std::string good = bytes();
  for (const std::size_t at : {good.size() / 2, good.size() - 1, std::size_t{100}}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bad;
    const auto refused = target.client->import_context(file(), {.deadline = 5s});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), Errc::kCorruptBlock);
    EXPECT_THAT(refused.error().text, HasSubstr(file()));
    EXPECT_EQ(target.held(record, chain), 0u);
  }
  // Changed between the check and the put.
  std::ofstream(file(), std::ios::binary | std::ios::trunc) << good;
  ContextImportOptions raced{.deadline = 5s};
  raced.go_on = [&](const ArchiveProgress& progress) {
    if (progress.step != ArchiveProgress::Step::kPut || progress.blocks > 0) return true;
    std::string bad = good;
    bad[good.size() - 32 - 100] = static_cast<char>(bad[good.size() - 32 - 100] ^ 1);
    std::ofstream(file(), std::ios::binary) << bad;
    return true;
  };
  const auto refused = target.client->import_context(file(), raced);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::kCorruptBlock);
  EXPECT_TRUE(target.client->list_contexts("", 5s)->contexts.empty());
  EXPECT_LT(target.held(record, chain), 12u) << "the node found it";
  EXPECT_FALSE(target.client->import_context(directory.path(), {.deadline = 5s}));
  EXPECT_FALSE(target.client->import_context(directory.path() + "/none", {.deadline = 5s}));
}

}  // namespace
}  // namespace kv
