// Blocks that cost more to know than to keep: tiny ones with token ids by the million, sizes at the edges and in turn,
// chains that are deep or wide.
#include <algorithm>
#include <thread>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"

namespace kv::attack {
namespace {

class TinyBlockTest : public AttackTest {
 protected:
  static std::string text_of(const std::string& block_bytes, const std::string& block_size, const std::string& model) {
    return "block_bytes=" + block_bytes + "\nblock_size=" + block_size + "\nmodel=" + model + "\n";
  }
};

TEST_F(TinyBlockTest, SizesAtTheEdgesAreRefusedOrServed) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const std::string edges[] = {"0",
                               "1",
                               "2",
                               "63",
                               "2147483647",
                               "2147483648",
                               "4294967295",
                               "4294967296",
                               "18446744073709551615",
                               "18446744073709551616",
                               "-1",
                               "1e9",
                               "",
                               "0x10",
                               "00016",
                               "67108864",
                               "67108865"};
  for (const std::string& bytes : edges) {
    for (const std::string& size : edges) {
      const std::string text = text_of(bytes, size, "edge");
      const auto opened = attacker.ask(
          FrameType::kOpen, 2, [&](FlatBufferBuilder& b) { return wire::CreateOpenRequestDirect(b, text.c_str()); });
      const auto record = NamespaceRecord::parse(text);
      if (opened.is_error()) continue;
      ASSERT_TRUE(record) << text;
      const OpenedSpace space{read_table<wire::OpenResponse>(opened.table)->space(), namespace_check(record->id())};
      const auto chain = e2e::make_chain(2, 3);
      attacker.ask(FrameType::kMatch, 5, match_request(space, chain, true, {1, 2, 3}));
      if (record->block_bytes() <= 4096) attacker.put(space, *record, chain, std::byte{1}, {1, 2, 3});
      attacker.ask(FrameType::kDrop, 5, prefix_request(space, {}));
    }
  }
  expect_bystanders_served();
}

/// As many ids a block as the node takes: its memory is that of its arena and of a share for what it knows.
TEST_F(TinyBlockTest, TokenIdsByTheMillionAreBounded) {
  start({"--index-bytes-max", "32MiB"});
  bounds.rss_growth_bytes = 112 << 20;
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const std::uint64_t rounds = is_sanitized() ? 20 : 100;
  std::uint64_t put_ids = 0;
  for (const std::size_t block_bytes : {64, 65536}) {
    for (std::size_t block_size = 1 << 20; block_size >= 16; block_size /= 16) {
      const auto record =
          NamespaceRecord::parse(text_of(std::to_string(block_bytes), std::to_string(block_size), "ids"));
      if (!record) continue;
      const auto opened = attacker.ask(FrameType::kOpen, 2, open_request(*record));
      if (opened.is_error()) continue;
      const OpenedSpace space{read_table<wire::OpenResponse>(opened.table)->space(), namespace_check(record->id())};
      const std::size_t chain_blocks = std::clamp<std::size_t>((200 << 10) / block_size, 1, (4 << 20) / block_bytes);
      for (std::uint64_t i = 0; i < rounds; ++i) {
        const std::vector<std::uint32_t> ids(chain_blocks * block_size, static_cast<std::uint32_t>(i));
        attacker.put(space, *record, e2e::make_chain(9000 + i, chain_blocks), std::byte{1}, ids);
        put_ids += ids.size();
      }
    }
  }
  EXPECT_GT(put_ids, rounds * 500'000) << "two megabytes of them a round";
  expect_bystanders_served();
}

TEST_F(TinyBlockTest, BlockSizesInTurnLeaveOthersServed) {
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const std::size_t sizes[] = {4 << 10, 1 << 20, 36 << 10, 300 << 10, 4097};
  std::vector<NamespaceRecord> records;
  std::vector<OpenedSpace> spaces;
  for (const std::size_t size : sizes) {
    records.push_back(record_of(size, "size" + std::to_string(size)));
    spaces.push_back(attacker.open(records.back()));
  }
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::size_t which = i % std::size(sizes);
    const std::size_t count = (24 << 20) / sizes[which];  // more than a third of all memory
    attacker.put(spaces[which], records[which], e2e::make_chain(3000 + i, std::min<std::size_t>(count, 500)),
                 std::byte{1}, {}, 1000);
  }
  expect_bystanders_served();
}

TEST_F(TinyBlockTest, DeepChainsAreBoundedAndCanBeDropped) {
  bounds.rss_growth_bytes = 256 << 20;
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(64, "deep");
  const OpenedSpace space = attacker.open(record);
  for (std::uint64_t i = 0; i < 8; ++i) attacker.put(space, record, e2e::make_chain(5000 + i, 60'000), std::byte{1});
  expect_bystanders_served();
  EXPECT_FALSE(attacker.ask(FrameType::kDrop, 5, prefix_request(space, {})).is_error());
  expect_bystanders_served();
}

TEST_F(TinyBlockTest, WideChainsAreBoundedAndCanBeDropped) {
  bounds.rss_growth_bytes = 256 << 20;
  Attacker attacker = Attacker::greeted(node->unix_socket());
  const NamespaceRecord record = record_of(64, "wide");
  const OpenedSpace space = attacker.open(record);
  const auto trunk = e2e::make_chain(7000, 1);
  for (std::uint64_t i = 0; i < 5000; ++i) {  // all below one block
    auto chain = e2e::make_chain(8000 + i, 3);
    chain[0] = trunk[0];
    attacker.put(space, record, chain, std::byte{1});
  }
  expect_bystanders_served();
  EXPECT_FALSE(attacker.ask(FrameType::kDrop, 5, prefix_request(space, trunk)).is_error());
  expect_bystanders_served();
}

}  // namespace
}  // namespace kv::attack
