// Looks a prompt up and stores missing blocks, in C++.
//   first_hit_cxx [ENDPOINT]      default: the socket of the packaged service
#include <kvstore/client/blocking_client.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  constexpr std::size_t kTokens = 16, kBytes = 65536;
  kv::ClientConfig config;
  config.nodes = {{.endpoint = argc > 1 ? argv[1] : "unix:///run/kvstore/kvstore.sock"}};
  kv::BlockingClient client(config);

  // Everything that shapes a block's bytes besides its tokens. Only equal records share blocks.
  const auto record = kv::NamespaceRecord::from_fields(
      {{"model", "example-c++"}, {"block_size", std::to_string(kTokens)}, {"block_bytes", std::to_string(kBytes)}});
  if (!record) return 1;
  const auto space = client.open(*record, 1s);
  if (!space) return std::fprintf(stderr, "open: %s\n", space.error().message().c_str()), 1;

  const std::vector<std::uint32_t> prompt(4 * kTokens);
  const auto hashes = kv::hash_chain(record->digest(), prompt, kTokens);
  const auto memory = client.allocate(hashes.size() * kBytes);  // lent: a node on this host copies straight into it
  if (!memory) return std::fprintf(stderr, "allocate: %s\n", memory.error().message().c_str()), 1;
  std::vector<std::span<std::byte>> blocks;
  for (std::size_t i = 0; i < hashes.size(); ++i) blocks.push_back(memory->subspan(i * kBytes, kBytes));

  const auto got = client.get(*space, hashes, blocks, {.deadline = 1s});
  if (!got) return std::fprintf(stderr, "get: %s\n", got.error().message().c_str()), 1;
  std::printf("%zu of %zu blocks were cached", got->block_count, hashes.size());
  if (got->why) std::printf(" (%s)", got->why.message().c_str());  // not asked, or not in time: compute all blocks

  for (std::size_t i = got->block_count; i < blocks.size(); ++i) std::memset(blocks[i].data(), 'k', kBytes);
  const std::vector<std::span<const std::byte>> computed(blocks.begin(), blocks.end());
  const auto put = client.put(*space, hashes, computed, {.deadline = 1s});
  if (!put) return std::fprintf(stderr, "put: %s\n", put.error().message().c_str()), 1;
  std::printf(", %zu stored\n", put->stored);
}
