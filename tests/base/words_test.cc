// What people write: sizes, durations, names with a slip in them, and environment variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/text/quantity.h"
#include "base/text/spelling.h"
#include "base/text/variables.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(QuantityTest, SizesAreReadAsPeopleWriteThem) {
  const auto bytes = [](std::string_view text) {
    std::uint64_t value = 0;
    return parse_bytes(text, &value) ? static_cast<std::int64_t>(value) : -1;
  };
  EXPECT_EQ(bytes("4096"), 4096);
  for (const char* const text : {"4GiB", "4G", "4g", "4 GiB", "4gib"}) EXPECT_EQ(bytes(text), 4ll << 30) << text;
  EXPECT_EQ(bytes("4GB"), 4'000'000'000);
  EXPECT_EQ(bytes("1.5KiB"), 1536);
  for (const char* const text : {"", "GiB", "-1", "4QiB", "4GiBs", "inf", "nan", "1e300", "9999999999GiB", "4 G iBx"})
    EXPECT_EQ(bytes(text), -1) << text;
}

TEST(QuantityTest, DurationsHaveUnitsAndABareNumberIsTheOptionsOwn) {
  const auto seconds = [](std::string_view text) {
    double value = 0;
    return parse_seconds(text, &value) ? value : -1;
  };
  EXPECT_DOUBLE_EQ(seconds("10s"), 10);
  EXPECT_DOUBLE_EQ(seconds("500ms"), 0.5);
  EXPECT_DOUBLE_EQ(seconds("2m"), 120);
  EXPECT_DOUBLE_EQ(seconds("2min"), 120);
  EXPECT_DOUBLE_EQ(seconds("1h"), 3600);
  EXPECT_DOUBLE_EQ(seconds("0.05"), 0.05);
  for (const char* const text : {"", "s", "soon", "-1s", "1d", "1s2"}) EXPECT_EQ(seconds(text), -1) << text;
  double microseconds = 0;
  ASSERT_TRUE(parse_microseconds("50", &microseconds));
  EXPECT_DOUBLE_EQ(microseconds, 50);
  ASSERT_TRUE(parse_microseconds("1ms", &microseconds));
  EXPECT_DOUBLE_EQ(microseconds, 1000);
}

TEST(SpellingTest, AWordWithASlipIsRecognizedAndAStrangeOneIsNot) {
  const std::array<std::string, 4> words = {"capacity", "capacity-max", "disk-path", "log-level"};
  EXPECT_EQ(nearest_word("capcity", words), "capacity");
  EXPECT_EQ(nearest_word("capactiy", words), "capacity");
  EXPECT_EQ(nearest_word("disk_path", words), "disk-path");
  EXPECT_EQ(nearest_word("LOG-LEVL", words), "log-level");
  EXPECT_EQ(nearest_word("colour", words), "");
  EXPECT_EQ(nearest_word("", words), "");
  EXPECT_EQ(nearest_word("x", {}), "");
  EXPECT_EQ(did_you_mean("dik-path", words), "; did you mean 'disk-path'?");
}

TEST(VariablesTest, NodesAndClientsHaveVariablesOfTheirOwn) {
  EXPECT_EQ(node_variable("tls-cert"), "KVSTORE_NODE_TLS_CERT");
  EXPECT_EQ(node_variable("node-id"), "KVSTORE_NODE_ID");
  const std::array<std::string, 3> options = {"capacity", "tls-cert", "node-id"};
  const std::array<const char*, 7> good = {"KVSTORE_TLS_CERT=x",
                                           "KVSTORE_NODE_TLS_CERT=y",
                                           "KVSTORE_NODE_ID=z",
                                           "KVSTORE_ENDPOINTS=",
                                           "KVSTORE_NODE_PORT_7400_TCP=",
                                           "HOME=/",
                                           nullptr};
  EXPECT_THAT(unknown_node_variables(good.data(), options), IsEmpty());
  EXPECT_THAT(unknown_client_variables(good.data()), IsEmpty());
}

TEST(VariablesTest, AMisspeltOneIsToldToWhomItWasMeantFor) {
  const std::array<std::string, 3> options = {"capacity", "tls-cert", "node-id"};
  const std::array<const char*, 5> bad = {"KVSTORE_NODE_CAPCITY=1", "KVSTORE_CAPACITY=1", "KVSTORE_TLS_CRET=x",
                                          "KVSTORE_ENDPOINT=y", nullptr};
  EXPECT_THAT(unknown_node_variables(bad.data(), options),
              ElementsAre(HasSubstr("KVSTORE_CAPACITY: an environment variable that means nothing to kvstore-node; did "
                                    "you mean 'KVSTORE_NODE_CAPACITY'?"),
                          HasSubstr("'KVSTORE_NODE_CAPACITY'")));
  EXPECT_THAT(
      unknown_client_variables(bad.data()),
      ElementsAre(HasSubstr("KVSTORE_CAPACITY"), HasSubstr("'KVSTORE_ENDPOINTS'"), HasSubstr("'KVSTORE_TLS_CERT'")));
  EXPECT_THAT(unknown_node_variables(nullptr, options), IsEmpty());
}

}  // namespace
}  // namespace kv
