#include "index/namespace_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::map<std::string, std::string> kSmall = {{"model", "m"}, {"block_size", "16"}, {"block_bytes", "4096"}};

// A namespace id is in the name of every stored block: these values never change.
TEST(NamespaceRecordTest, GoldenRecordsHold) {
  struct Golden {
    const char *text, *digest;
  };
  const Golden table[] = {
#include "golden/namespace_records.inc"
  };
  for (const Golden& golden : table) {
    const auto record = NamespaceRecord::parse(golden.text);
    ASSERT_TRUE(record) << record.error();
    EXPECT_EQ(record->text(), golden.text);
    EXPECT_EQ(to_hex(record->digest().bytes), golden.digest);
    EXPECT_EQ(to_hex(record->id().bytes), std::string(golden.digest).substr(0, 32));
  }
}

TEST(NamespaceRecordTest, FieldsInAnyOrderGiveTheSortedText) {
  const auto record = NamespaceRecord::from_fields(kSmall);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->text(), "block_bytes=4096\nblock_size=16\nmodel=m\n");
  EXPECT_EQ(record->block_bytes(), 4096u);
  EXPECT_EQ(record->block_size(), 16u);
  EXPECT_EQ(record->field("model"), "m");
  EXPECT_EQ(record->field("tenant"), "");
}

TEST(NamespaceRecordTest, EmptyValueIsNoField) {
  auto fields = kSmall;
  fields["tenant"] = "";
  EXPECT_EQ(NamespaceRecord::from_fields(fields)->id(), NamespaceRecord::from_fields(kSmall)->id());
}

TEST(NamespaceRecordTest, EveryFieldMakesAnotherNamespace) {
  const auto id = NamespaceRecord::from_fields(kSmall)->id();
  for (const char* key : {"tenant", "model", "revision", "weights_epoch", "dtype", "quantization", "layout",
                          "head_range", "layer_range", "rope", "lora", "cache_group", "salt", "x.anything"}) {
    auto fields = kSmall;
    fields[key] = "other";
    const auto record = NamespaceRecord::from_fields(fields);
    ASSERT_TRUE(record) << key;
    EXPECT_NE(record->id(), id) << key;
  }
}

const std::map<std::string, std::string> kSet = {{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "4096"}};

TEST(NamespaceRecordTest, ASetHasABoundAndAChainIsNeverSpeltOut) {
  const auto set = NamespaceRecord::from_fields(kSet);
  ASSERT_TRUE(set) << set.error().text;
  EXPECT_EQ(set->text(), "block_bytes_max=4096\nkind=set\nmodel=m\n");
  EXPECT_TRUE(set->is_set());
  EXPECT_EQ(set->block_bytes(), 4096u);
  EXPECT_EQ(set->block_size(), 0u);
  const auto chain = NamespaceRecord::from_fields(kSmall);
  EXPECT_EQ(chain->kind(), NamespaceKind::kChain);
  struct Bad {
    std::map<std::string, std::string> fields;
    std::string key, value, message;
  };
  const Bad table[] = {
      {kSet, "kind", "chain", "\"chain\" is not allowed; allowed: \"set\""},
      {kSet, "kind", "Set", "\"Set\""},
      {kSmall, "kind", "chain", "\"chain\" is not allowed"},
      {kSmall, "kind", "set", "\"block_bytes\" is not allowed here; allowed in a set: \"block_bytes_max\""},
      {kSet, "block_size", "16", "\"block_size\" is not allowed here"},
      {kSmall, "block_bytes_max", "1", "\"block_bytes_max\" is not allowed here"},
      {kSet, "kind", "", "\"block_bytes_max\" is not allowed here"},
      {kSet, "block_bytes_max", "", "\"block_bytes_max\" is missing"},
      {kSet, "block_bytes_max", "01", "without leading zeros"},
      {kSet, "block_bytes_max", "1073741825", "from 1 to 1073741824"},
  };
  for (const Bad& bad : table) {
    auto fields = bad.fields;
    fields[bad.key] = bad.value;
    const auto record = NamespaceRecord::from_fields(fields);
    ASSERT_FALSE(record) << bad.key << "=" << bad.value;
    EXPECT_THAT(record.error().text, HasSubstr(bad.message));
  }
}

struct BadFields {
  std::string key, value;
  std::vector<std::string> message;  ///< Must all be in it.
};

TEST(NamespaceRecordTest, RefusalNamesTheFieldItsValueAndWhatIsAllowed) {
  const BadFields table[] = {
      {"model", "", {"\"model\" is missing"}},
      {"block_size", "", {"\"block_size\" is missing", "from 1 to 65536"}},
      {"block_size", "0", {"\"block_size\"", "\"0\"", "from 1 to 65536"}},
      {"block_size", "016", {"\"016\"", "without leading zeros"}},
      {"block_size", "65537", {"\"65537\"", "from 1 to 65536"}},
      {"block_size", "-1", {"\"-1\""}},
      {"block_size", "+1", {"\"+1\""}},
      {"block_size", "16 ", {"\"16 \""}},
      {"block_size", "0x10", {"\"0x10\""}},
      {"block_bytes", "", {"\"block_bytes\" is missing"}},
      {"block_bytes", "1073741825", {"\"1073741825\"", "from 1 to 1073741824"}},
      {"block_bytes", "99999999999999999999999", {"\"99999999999999999999999\""}},
      {"dtpye",
       "bf16",
       {"\"dtpye\" is unknown", "allowed: block_bytes, block_bytes_max, block_size, cache_group, dtype", "x.*"}},
      {"x.", "1", {"\"x.\" is unknown"}},
      {"x.A", "1", {"\"x.A\" is not allowed", "a-z"}},
      {"", "1", {"\"\" is not allowed"}},
      {"x." + std::string(63, 'a'), "1", {"1 to 64"}},
      {"salt", std::string(1025, 's'), {"\"salt\"", "(1025 bytes)", "at most 1024"}},
      {"salt", "a\nb", {"\"salt\"", "\"a\\nb\"", "printable ASCII"}},
      {"salt", "caf\xC3\xA9", {"\"caf\xC3\xA9\"", "printable ASCII"}},
      {"salt", "\x7F", {"printable ASCII"}},
  };
  for (const BadFields& bad : table) {
    auto fields = kSmall;
    fields[bad.key] = bad.value;
    const auto record = NamespaceRecord::from_fields(fields);
    ASSERT_FALSE(record) << bad.key << "=" << bad.value;
    EXPECT_EQ(record.error(), Errc::kBadRequest);
    for (const std::string& part : bad.message) EXPECT_THAT(record.error().text, HasSubstr(part));
  }
}

TEST(NamespaceRecordTest, WhatANodeAddsNamesAnotherNamespaceWithTheSameChecksums) {
  const std::map<std::string, std::string> fields = {
      {"model", "m"}, {"block_size", "16"}, {"block_bytes", "100000"}, {"tenant", "blue"}};
  const auto asked = NamespaceRecord::from_fields(fields).value();
  EXPECT_EQ(asked.callers_id(), asked.id());
  EXPECT_EQ(asked.owner(), "blue");
  const auto stored = asked.with({{"node_salt", "5a17"}, {"node_tenant", "blue"}}).value();
  EXPECT_NE(stored.id(), asked.id());
  EXPECT_EQ(stored.callers_id(), asked.id());
  const BlockHash block = sha256({});
  EXPECT_EQ(stored.checksum_seed(block, 100000), checksum_seed(asked.id(), block));
  EXPECT_NE(stored.checksum_seed(block, 100000), checksum_seed(stored.id(), block));
  EXPECT_EQ(NamespaceRecord::parse(stored.text())->callers_id(), asked.id()) << "after a restart too";
  EXPECT_EQ(stored.unsalted().text(), asked.with({{"node_tenant", "blue"}})->text());
  EXPECT_EQ(asked.unsalted().text(), asked.text());
  EXPECT_EQ(stored.with({{"node_tenant", "red"}})->owner(), "red") << "who the node found it to be";
  EXPECT_EQ(asked.with({{"share", "p"}, {"tenant", ""}})->owner(), "share:p");
  const auto set = NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", "9"}}).value();
  EXPECT_EQ(set.with({{"node_salt", "1"}})->checksum_seed(block, 5), set_checksum_seed(set.id(), block, 5));
  EXPECT_FALSE(asked.with({{"node_other", "1"}}));
  EXPECT_EQ(NamespaceRecord::from_fields({{"modle", "m"}}).error().text.find("node_"), std::string::npos);
}

TEST(NamespaceRecordTest, LimitsAreMetExactly) {
  auto fields = kSmall;
  fields["block_size"] = "65536";
  fields["block_bytes"] = "1073741824";
  fields["salt"] = std::string(1024, '~');
  fields["x." + std::string(62, 'z')] = " ";
  EXPECT_TRUE(NamespaceRecord::from_fields(fields));
  for (int i = 0; fields.size() < 64; ++i) fields["x.f" + std::to_string(i)] = "1";
  EXPECT_TRUE(NamespaceRecord::from_fields(fields));
  fields["x.one.more"] = "1";
  EXPECT_THAT(NamespaceRecord::from_fields(fields).error().text,
              AllOf(HasSubstr("65 fields"), HasSubstr("at most 64")));
}

TEST(NamespaceRecordTest, TextOverSixteenKibibytesIsRefused) {
  auto fields = kSmall;
  for (int i = 0; i < 17; ++i) fields["x.f" + std::to_string(i)] = std::string(1024, 'v');
  EXPECT_THAT(NamespaceRecord::from_fields(fields).error().text, HasSubstr("at most 16384"));
  EXPECT_THAT(NamespaceRecord::parse(std::string(16385, '\n')).error().text, HasSubstr("at most 16384"));
}

TEST(NamespaceRecordTest, TextThatIsNotCanonicalIsRefused) {
  const std::map<std::string, std::string> table = {
      {"", "is missing"},
      {"block_bytes=4096\nblock_size=16\nmodel=m", "does not end with a newline"},
      {"block_bytes=4096\nblock_size=16\nmodel\n", "not of the form key=value"},
      {"block_bytes=4096\n\nblock_size=16\nmodel=m\n", "not of the form key=value"},
      {"block_size=16\nblock_bytes=4096\nmodel=m\n", "sorted by key"},
      {"block_bytes=4096\nblock_bytes=4096\nblock_size=16\nmodel=m\n", "given twice"},
      {"block_bytes=4096\nblock_size=16\nlora=\nmodel=m\n", "empty value"},
      {"block_bytes=4096\nblock_size=16\nmodel=m\r\n", "printable ASCII"},
      {"=v\n", "is not allowed"},
      {std::string("model=m\0\n", 9), "printable ASCII"},
  };
  for (const auto& [text, message] : table) {
    EXPECT_THAT(NamespaceRecord::parse(text).error().text, HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace kv
