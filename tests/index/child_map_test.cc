#include "index/child_map.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kv {
namespace {

/// What a fingerprint is made of decides how crowded the map gets.
class ChildMapTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  std::uint32_t fingerprint_mask() const { return GetParam(); }
};

TEST_P(ChildMapTest, BehavesLikeAMultimapThroughGrowthAndShrinking) {
  const char* env = std::getenv("KV_SEED");
  const std::uint64_t seed = env ? std::stoull(env) : std::random_device{}();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  ChildMap map;
  std::size_t heap_bytes = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> model;  // fingerprint, node
  std::uint32_t next_node = 0;
  const std::size_t largest = fingerprint_mask() == 0xFFFFFFFF ? 120000 : 400;
  for (int wave = 0; wave < 3; ++wave) {
    while (model.size() < largest) {
      const auto fingerprint = static_cast<std::uint32_t>(random()) & fingerprint_mask();
      map.insert(fingerprint, next_node, heap_bytes);
      model.emplace_back(fingerprint, next_node++);
      if (model.size() % 97 == 0) {
        const auto& [known_fingerprint, node] = model[random() % model.size()];
        ASSERT_EQ(map.find(known_fingerprint, [&, wanted = node](auto n) { return n == wanted; }), node);
      }
    }
    ASSERT_EQ(map.size(), model.size());
    ASSERT_EQ(map.heap_bytes(), heap_bytes);
    std::set<std::uint32_t> seen;
    map.for_each([&](std::uint32_t node) { seen.insert(node); });
    ASSERT_EQ(seen.size(), model.size());
    for (auto& [fingerprint, node] : model) {
      ASSERT_EQ(map.find(fingerprint, [wanted = node](auto n) { return n == wanted; }), node);
      map.replace(fingerprint, node, next_node);
      node = next_node++;
    }
    const std::size_t smallest = wave == 2 ? 0 : largest / 50;
    while (model.size() > smallest) {
      std::swap(model[random() % model.size()], model.back());
      const auto [fingerprint, node] = model.back();
      model.pop_back();
      map.erase(fingerprint, node, heap_bytes);
      ASSERT_EQ(map.find(fingerprint, [wanted = node](auto n) { return n == wanted; }), ChildMap::kNone);
      if (model.size() % 1009 == 0) {
        for (const auto& [f, n] : model) ASSERT_EQ(map.find(f, [wanted = n](auto m) { return m == wanted; }), n);
      }
    }
    ASSERT_EQ(map.heap_bytes(), heap_bytes);
  }
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(heap_bytes, 0u) << "an empty map owns nothing";
}

// Every fingerprint; few of them, many equal; all but the bits that choose the home entry.
INSTANTIATE_TEST_SUITE_P(Fingerprints, ChildMapTest, testing::Values(0xFFFFFFFF, 0x00000007, 0xFFFF0000));

}  // namespace
}  // namespace kv
