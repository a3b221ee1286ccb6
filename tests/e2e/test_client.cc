#include "tests/e2e/test_client.h"

#include <algorithm>
#include <stdexcept>

#include "client/tools/block_pattern.h"

namespace kv::e2e {
namespace {

ClientConfig with_node(ClientConfig config, const std::string& endpoint) {
  NodeConfig node;
  node.endpoint = endpoint;
  config.nodes.push_back(std::move(node));
  config.identity = "e2e";
  config.backoff_max = 200ms;
  return config;
}

template <class T>
T value_of(Result<T> result, const char* what) {
  if (!result) throw std::runtime_error(std::string(what) + ": " + result.error().message());
  return *std::move(result);
}

}  // namespace

NamespaceRecord make_record(std::size_t block_bytes, const std::string& salt) {
  std::string why;
  auto record = NamespaceRecord::from_fields(
      {{"model", "e2e"}, {"block_size", "16"}, {"block_bytes", std::to_string(block_bytes)}, {"salt", salt}}, &why);
  if (!record) throw std::runtime_error(why);
  return *std::move(record);
}

std::vector<BlockHash> make_chain(std::uint64_t seed, std::size_t block_count) {
  std::vector<BlockHash> chain(block_count);
  fill_pattern(seed * 0xD1342543DE82EF95,  // not the pattern's own step: no block is in two chains
               std::as_writable_bytes(std::span(chain)));
  return chain;
}

TestClient::TestClient(const std::string& endpoint, Transport transport, std::size_t block_bytes,
                       std::size_t block_count, ClientConfig config)
    : TestClient(endpoint, transport, make_record(block_bytes), block_count, std::move(config)) {}

TestClient::TestClient(const std::string& endpoint, Transport transport, NamespaceRecord record,
                       std::size_t block_count, ClientConfig config)
    : record_(std::move(record)),
      client_(with_node(std::move(config), endpoint)),
      space_(value_of(client_.open(record_, kDeadline), "open")) {
  const std::size_t bytes = record_.block_bytes() * block_count;
  if (transport == Transport::kShm) {
    memory_ = value_of(client_.allocate(bytes), "allocate");
  } else {
    own_memory_.resize(bytes);
    memory_ = own_memory_;
  }
}

std::vector<std::span<std::byte>> TestClient::blocks(std::size_t count) const {
  std::vector<std::span<std::byte>> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(memory_.subspan(i * record_.block_bytes(), record_.block_bytes()));
  }
  return blocks;
}

PutResult TestClient::put(std::span<const BlockHash> chain, std::chrono::microseconds deadline) {
  const auto targets = blocks(chain.size());
  for (std::size_t i = 0; i < chain.size(); ++i) fill_pattern(pattern_seed(record_.id(), chain[i]), targets[i]);
  const std::vector<std::span<const std::byte>> sources(targets.begin(), targets.end());
  return value_of(client_.put(space_, chain, sources, {.deadline = deadline}), "put");
}

GetResult TestClient::get(std::span<const BlockHash> chain, std::chrono::microseconds deadline) {
  std::fill(memory_.begin(), memory_.end(), std::byte{0xEE});
  const auto targets = blocks(chain.size());
  return value_of(client_.get(space_, chain, targets, {.deadline = deadline}), "get");
}

std::size_t TestClient::wrong_bytes(std::span<const BlockHash> chain, std::size_t count) const {
  std::size_t wrong = 0;
  const auto landed = blocks(count);
  for (std::size_t i = 0; i < count; ++i) wrong += count_wrong_bytes(pattern_seed(record_.id(), chain[i]), landed[i]);
  return wrong;
}

}  // namespace kv::e2e
