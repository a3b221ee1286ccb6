// A tenant against another one of the same node, by everything that a client can say: the same record and the same
// tokens, names and salts that it makes up, and numbers that are the other's. Nothing is got, and nothing is told.
//
// KV_CROSS_TENANT_TRIES: how many (20,000). A million takes some minutes:
//   KV_CROSS_TENANT_TRIES=1000000 build/release/tests/attack/attack_tenant_test
#include <openssl/evp.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <span>

#include "tests/attack/attacked_node.h"
#include "tests/attack/attacker.h"
#include "transport/shared_memory.h"

namespace kv::attack {
namespace {

constexpr std::size_t kBlock = 16 << 10, kChain = 8;
constexpr std::byte kTheirs{0x7E}, kClean{0x11};

std::string token_of(const std::string& name) { return name + std::string(40, '-'); }

std::string sha256_hex(const std::string& text) {
  std::array<unsigned char, 32> hash{};
  EXPECT_EQ(EVP_Digest(text.data(), text.size(), hash.data(), nullptr, EVP_sha256(), nullptr), 1);
  return to_hex(std::as_bytes(std::span(hash)));
}

/// The victim has blocks in memory, a lease, a region, a set, a share of its own and a put under way; the thief another
/// tenant's token, the victim's record, and every number that the victim was ever told.
class CrossTenantTest : public AttackTest {
 protected:
  void SetUp() override {
    write("policy",
          // The bystander and who cleans up: nobody's clients, who meet what is nobody's, and drop what is anybody's.
          "[scrape]\nmatch = [\"loopback\"]\nroles = [\"metrics\"]\n[tools]\nmatch = [\"unix\"]\nroles = [\"reader\", "
          "\"writer\", \"operator\"]\n" +
              tenant("victim") + tenant("thief") + "[shares.closed]\nreaders = [\"victim\"]\nwriters = [\"victim\"]\n");
    write("secret", sha256_hex("a secret"));
    ASSERT_EQ(::chmod((directory.path() + "/secret").c_str(), 0600), 0);
    start({"--policy-file", directory.path() + "/policy", "--tenant-secret-file", directory.path() + "/secret"});
    bounds.log_bytes = 64 << 20;  // each denial that is logged is a line, at most ten a second
    victim = greeted("victim");
    thief = greeted("thief");
    space = victim->open(record);
    ASSERT_EQ(victim->put(space, record, chain, kTheirs), chain.size());
    of_share = victim->open(shared);
    ASSERT_EQ(victim->put(of_share, shared, chain, kTheirs), chain.size());
    const auto matched = victim->ask(FrameType::kMatch, 5, match_request(space, chain, true));
    lease = read_table<wire::MatchResponse>(matched.table)->lease();
    ASSERT_NE(lease, 0u);
    memory = SharedMemory::create(kChain * kBlock).value();
    region = victim->lent(memory->fd(), memory->bytes().size());
    own_memory = SharedMemory::create(kChain * kBlock).value();
    std::ranges::fill(own_memory->bytes(), kClean);
    own_region = thief->lent(own_memory->fd(), own_memory->bytes().size());
    own = thief->open(record);
  }
  void TearDown() override {
    // The victim has all that it had.
    EXPECT_FALSE(victim->ask(FrameType::kRelease, 6, release_request(lease)).is_error()) << "somebody ended the lease";
    Offsets offsets;
    for (std::size_t i = 0; i < kChain; ++i) offsets.push_back(i * kBlock);
    for (const OpenedSpace each : {space, of_share}) {
      std::ranges::fill(memory->bytes(), kClean);
      const auto got = victim->ask(FrameType::kGet, 7, get_request(each, chain, region, offsets));
      ASSERT_FALSE(got.is_error()) << got.error_text();
      EXPECT_EQ(read_table<wire::GetResponse>(got.table)->block_count(), chain.size());
      for (const std::byte byte : memory->bytes()) ASSERT_EQ(byte, kTheirs);
    }
    victim.reset();
    thief.reset();
    AttackTest::TearDown();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory.path() + "/" + name) << text;
  }
  static std::string tenant(const std::string& name) {
    return "[" + name + "]\ntoken-sha256 = [\"" + sha256_hex(token_of(name)) + "\"]\ntenant = \"" + name +
           "\"\nroles = [\"reader\", \"writer\", \"operator\"]\n";
  }
  std::unique_ptr<Attacker> greeted(const std::string& name) const {
    auto attacker = std::make_unique<Attacker>(node->unix_socket());
    if (!attacker->send_hello(kWireVersion, token_of(name))) throw std::runtime_error("no hello");
    return attacker;
  }

  /// A record that might be the victim's, or come to it.
  NamespaceRecord guessed_record(std::mt19937_64& random) const {
    const auto digits = [&] { return sha256_hex(std::to_string(random() % 1000)); };
    std::map<std::string, std::string> more;
    switch (random() % 8) {
      case 0: more = {{"tenant", "victim"}}; break;
      case 1: more = {{"node_tenant", "victim"}}; break;
      case 2: more = {{"node_tenant", "victim"}, {"node_salt", digits()}}; break;
      case 3: more = {{"node_salt", digits()}}; break;
      case 4: more = {{"share", random() % 2 == 0 ? "closed" : "victim"}}; break;
      case 5: more = {{"share", "closed"}, {"tenant", "thief"}}; break;
      case 6: more = {{"node_tenant", "thief"}, {"tenant", "victim"}}; break;
      default: break;  // as it is
    }
    return record.with(more).value();
  }
  OpenedSpace guessed_space(std::mt19937_64& random) const {
    const auto number = random() % 4 == 0 ? static_cast<std::uint32_t>(random())
                                          : static_cast<std::uint32_t>(random() % 2 == 0 ? space.number : own.number) +
                                                static_cast<std::uint32_t>(random() % 5) - 2;
    const std::uint64_t checks[] = {space.check, of_share.check, own.check, random()};
    return {number, checks[random() % std::size(checks)]};
  }
  std::uint64_t guessed_lease(std::mt19937_64& random) const {
    return random() % 4 == 0 ? random() : lease + random() % 9 - 4;
  }
  std::uint32_t guessed_region(std::mt19937_64& random) const {
    const std::uint32_t near[] = {own_region, region, 0};
    return random() % 8 == 0 ? static_cast<std::uint32_t>(random()) : near[random() % std::size(near)];
  }
  Offsets guessed_offsets(std::mt19937_64& random) const {
    Offsets offsets(kChain);
    for (std::uint64_t& offset : offsets) offset = random() % 3 == 0 ? random() : random() % (2 * kChain) * kBlock;
    return offsets;
  }
  /// How much an answer tells of blocks: 0 is due. An error is nothing.
  static std::uint64_t told(const e2e::RawSession::Answer& answer) {
    if (answer.is_error()) return 0;
    switch (answer.header.type) {
      case FrameType::kMatch: {
        const auto* match = read_table<wire::MatchResponse>(answer.table);
        return match->host_blocks() + match->disk_blocks() + match->lease() + match->partial_tokens() +
               match->known_blocks() + match->hot_version();
      }
      case FrameType::kGet: return read_table<wire::GetResponse>(answer.table)->block_count();
      case FrameType::kPut: return read_table<wire::PutResponse>(answer.table)->already_stored();
      case FrameType::kHotRoots: return read_table<wire::HotRootsResponse>(answer.table)->blocks()->size();
      case FrameType::kRelease: return 1;
      default: return read_table<wire::CountResponse>(answer.table)->count();
    }
  }
  /// One try; whatever it tells is a failure.
  std::uint64_t attack(std::mt19937_64& random) {
    constexpr std::uint64_t kId = 9;
    OpenedSpace about = own;
    const auto pick = random() % 10;
    if (pick < 2) {
      const NamespaceRecord guess = guessed_record(random);
      const auto answer = thief->ask(FrameType::kOpen, 2, open_request(guess));
      if (answer.is_error()) return 0;
      about = {read_table<wire::OpenResponse>(answer.table)->space(), namespace_check(guess.callers_id())};
    } else if (pick < 6) {
      about = guessed_space(random);
    }
    const auto hashes = std::span(chain).first(1 + random() % kChain);
    switch (random() % 10) {
      case 0: return told(thief->ask(FrameType::kMatch, kId, match_request(about, hashes, true)));
      case 1: {
        const auto where = guessed_region(random);
        return told(thief->ask(FrameType::kGet, kId,
                               get_request(about, hashes, where, Offsets(hashes.size()), guessed_lease(random))));
      }
      case 2: {
        Offsets offsets = guessed_offsets(random);
        offsets.resize(hashes.size());
        return told(thief->ask(FrameType::kGet, kId, get_request(about, hashes, guessed_region(random), offsets)));
      }
      case 3: return told(thief->ask(FrameType::kRelease, kId, release_request(guessed_lease(random))));
      case 4: return told(thief->ask(FrameType::kTouch, kId, prefix_request(about, hashes)));
      case 5: return told(thief->ask(FrameType::kRetain, kId, prefix_request(about, hashes)));
      case 6: return told(thief->ask(FrameType::kUnretain, kId, prefix_request(about, hashes)));
      case 7:
        return told(thief->ask(FrameType::kDrop, kId, prefix_request(about, random() % 4 == 0 ? Hashes() : hashes)));
      case 8: {
        // What is offered is wanted, as if nobody had it; and given up before it comes.
        thief->send(FrameType::kPut, kId, put_request(about, hashes));
        thief->send(FrameType::kCancel, kId + 1, cancel_request(kId));
        const auto first = thief->read_answer();
        if (!first) throw std::runtime_error("the node ended the session");
        if (first->is_last()) return told(*first);
        const auto* want = read_table<wire::PutWant>(first->table);
        const std::uint64_t not_wanted = want->first_block() + (hashes.size() - want->block_count());
        return not_wanted + told(thief->last_answer(kId));
      }
      default:
        return told(thief->ask(FrameType::kHotRoots, kId, [&](FlatBufferBuilder& b) {
          return wire::CreateHotRootsRequest(b, about.number, about.check);
        }));
    }
  }

  e2e::TempDir directory;
  NamespaceRecord record = record_of(kBlock, "one record");
  NamespaceRecord shared = record.with({{"share", "closed"}}).value();
  std::vector<BlockHash> chain = e2e::make_chain(11, kChain);
  OpenedSpace space, of_share, own;
  std::uint32_t region = 0, own_region = 0;
  std::uint64_t lease = 0;
  std::unique_ptr<SharedMemory> memory, own_memory;
  std::unique_ptr<Attacker> victim, thief;
};

TEST_F(CrossTenantTest, NothingIsGotAndNothingIsTold) {
  const char* const wanted = std::getenv("KV_CROSS_TENANT_TRIES");
  const std::uint64_t tries = wanted != nullptr ? std::strtoull(wanted, nullptr, 0) : 20'000;
  std::mt19937_64 random(printed_seed());
  for (std::uint64_t i = 0; i < tries; ++i) {
    ASSERT_EQ(attack(random), 0u) << "try " << i;
    if (i % 256 != 0 && i + 1 != tries) continue;
    for (const std::byte byte : own_memory->bytes()) ASSERT_EQ(byte, kClean) << "before try " << i;
    // The lease is held by matching again: it ends after 10 s.
    const auto again = victim->ask(FrameType::kMatch, 5, match_request(space, chain, true));
    ASSERT_FALSE(again.is_error()) << again.error_text();
    const std::uint64_t next = read_table<wire::MatchResponse>(again.table)->lease();
    ASSERT_NE(next, 0u);
    ASSERT_FALSE(victim->ask(FrameType::kRelease, 6, release_request(lease)).is_error());
    lease = next;
  }
  std::printf("%llu tries\n", static_cast<unsigned long long>(tries));
}

}  // namespace
}  // namespace kv::attack
