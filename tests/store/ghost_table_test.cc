#include "store/policy/ghost_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "store_fixture.h"

namespace kv {
namespace {

TEST(GhostTableTest, RemembersDeparturesForAboutItsSize) {
  std::mt19937_64 random(7);
  GhostTable ghosts;
  EXPECT_EQ(ghosts.uses(1), 0) << "before it has a size";
  ghosts.resize(10'000);
  std::vector<std::uint64_t> names(40'000);
  for (std::uint64_t& name : names) name = random();
  for (std::size_t i = 0; i < names.size(); ++i) ghosts.add(names[i], static_cast<std::uint8_t>(1 + i % 40));
  const auto known = [&](std::size_t first, std::size_t count) {
    std::size_t found = 0;
    for (std::size_t i = first; i < first + count; ++i)
      found += ghosts.uses(names[i]) == std::min<std::size_t>(1 + i % 40, GhostTable::kUsesMax);
    return static_cast<double>(found) / static_cast<double>(count);
  };
  EXPECT_GT(known(35'000, 5'000), 0.97);
  EXPECT_LT(known(0, 10'000), 0.1);
  EXPECT_GT(ghosts.uses(names.back()), 0);
  EXPECT_LE(ghosts.memory_bytes(), 10'000 * 2 + 64 * 2);
}

/// Each line is a queue of 32, and what was added last is known at once, though it is entered later.
TEST(GhostTableTest, KnowsWhatAListOfDeparturesKnows) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("KV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  GhostTable ghosts;
  constexpr std::size_t kLines = 3;
  ghosts.resize(kLines * 32);
  struct Entry {
    std::uint64_t print;
    std::uint8_t uses;
  };
  std::array<std::list<Entry>, kLines> model;
  const auto line_of = [](std::uint64_t name) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>((static_cast<Wide>(name) * kLines) >> 64);
  };
  std::vector<std::uint64_t> names(200);
  for (std::uint64_t& name : names) name = random() % 5 == 0 ? random() & ~std::uint64_t{0x7FF} : random();
  for (int i = 0; i < 50'000; ++i) {
    const std::uint64_t name = names[random() % names.size()];
    std::list<Entry>& line = model[line_of(name)];
    const auto is_it = [&](const Entry& each) { return each.print == (name & 0x7FF); };
    if (random() % 8 != 0) {
      const auto uses = static_cast<std::uint8_t>(1 + random() % 40);
      ghosts.add(name, uses);
      line.push_front({name & 0x7FF, std::min(uses, GhostTable::kUsesMax)});
      if (line.size() > 32) line.pop_back();
    } else {
      const auto found = std::find_if(line.begin(), line.end(), is_it);
      // As long as some wait, those that they will push out may be known still.
      if (const std::uint8_t told = ghosts.uses(name); found != line.end()) {
        ASSERT_EQ(told, found->uses) << i;
      }
      if (random() % 2 == 0) ghosts.settle(random() % 3 == 0 ? random() % 20 : GhostTable::kWaitingMax);
      if (ghosts.waiting_count() > 0) continue;
      ASSERT_EQ(ghosts.uses(name), found == line.end() ? 0 : found->uses) << i;
    }
  }
}

}  // namespace
}  // namespace kv
