// Looks a prompt up and stores missing blocks, in C++: first_hit_cxx [ENDPOINT] (the packaged service's).
#include <kvstore/client/blocking_client.h>

#include <cstdio>
using namespace std::chrono_literals;

int main(int argc, char** argv) {
  kv::BlockingClient client({.nodes = {{.endpoint = argc > 1 ? argv[1] : "unix:///run/kvstore/kvstore.sock"}}});
  // All that shapes a block's bytes besides its tokens. Only equal records share blocks.
  const auto record = kv::NamespaceRecord::parse("block_bytes=65536\nblock_size=16\nmodel=example-c++\n").value();
  const kv::Space space = client.run({.op = kv::Op::kOpen, .deadline = 1s, .record = &record}).space;
  const auto hashes = kv::hash_chain(record.digest(), std::vector<std::uint32_t>(4 * 16), 16);
  const std::span<std::byte> memory = client.allocate(4 * 65536).value();  // a node on this host fills it itself
  const auto to = kv::blocks_in(memory, 65536);
  const auto got = client.run({.op = kv::Op::kGet, .space = space, .hashes = hashes, .to = to, .deadline = 1s});
  std::printf("%zu of 4 blocks were cached", got.get.block_count);
  if (got.get.why) std::printf(" (%s)", got.get.why.message().c_str());  // not asked, or not in time: compute all
  const auto from = kv::blocks_in<const std::byte>(memory, 65536);       // prefill would compute the missing ones here
  const auto put = client.run({.op = kv::Op::kPut, .space = space, .hashes = hashes, .from = from, .deadline = 1s});
  std::printf(", %zu stored\n", put.put.stored);
  return put.error ? std::fprintf(stderr, "%s\n", put.error.message().c_str()), 1 : 0;
}
