#include "index/record_differences.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kv {
namespace {

using Values = std::map<std::string, std::string>;

NamespaceRecord record_of(Values fields) {
  fields.insert({{"model", "m"}, {"block_size", "16"}, {"block_bytes", "4096"}});
  return NamespaceRecord::from_fields(std::move(fields)).value();
}

TEST(RecordDifferencesTest, EachFieldThatDiffersIsNamedOnce) {
  std::mt19937 random(std::random_device{}());
  const std::vector<std::string> keys = {"dtype", "revision", "rope", "salt", "tenant", "x.a", "x.b", "model"};
  for (int round = 0; round < 500; ++round) {
    Values a, b;
    for (const std::string& key : keys) {
      for (Values* const of : {&a, &b}) {
        if (key == "model" || random() % 2 == 0) (*of)[key] = std::string(1, static_cast<char>('a' + random() % 3));
      }
    }
    Values expected;
    for (const std::string& key : keys) {
      if (a[key] != b[key]) expected[key] = a[key] + "|" + b[key];
    }
    Values found;
    for (const FieldDifference& each : record_differences(record_of(a), record_of(b)))
      EXPECT_TRUE(found.emplace(each.field, each.here + "|" + each.there).second);
    ASSERT_EQ(found, expected);
  }
}

TEST(RecordDifferencesTest, TheTextSaysWhatASaltIsToNobody) {
  const auto differences =
      record_differences(record_of({{"salt", "secret1"}, {"dtype", "bfloat16"}}), record_of({{"salt", "secret2"}}));
  EXPECT_EQ(differences_text(differences), "dtype (here bfloat16, there none), salt");
}

TEST(RecordDifferencesTest, EqualRecordsDifferInNothing) {
  EXPECT_TRUE(record_differences(record_of({}), record_of({})).empty());
  EXPECT_EQ(differences_text({}), "");
}

}  // namespace
}  // namespace kv
