#include "tests/e2e/test_client.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "client/tools/bench/block_pattern.h"

namespace kv::e2e {
namespace {

/// The device of the node (0) or of clients (1).
std::string verbs_device(int which) {
  const char* const text = std::getenv("KV_VERBS_TEST_DEVICES");
  const std::string names = text == nullptr ? "" : text;
  const auto comma = names.find(',');
  if (comma == std::string::npos) return "";
  return which == 0 ? names.substr(0, comma) : names.substr(comma + 1);
}

ClientConfig with_node(ClientConfig config, const std::string& endpoint, Transport transport) {
  config.rdma = transport == Transport::kVerbs ? ClientConfig::Rdma::kAuto : ClientConfig::Rdma::kOff;
  if (transport == Transport::kVerbs) config.rdma_devices = {verbs_device(1)};
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

std::string lacks(Transport transport) {
  if (transport != Transport::kVerbs || !verbs_device(0).empty()) return "";
  return "needs RDMA devices: KV_VERBS_TEST_DEVICES is not set (deploy/test.sh --rdma runs it in a virtual machine)";
}

std::vector<std::string> node_options(Transport transport, std::vector<std::string> options) {
  if (transport == Transport::kVerbs && lacks(transport).empty())
    options.insert(options.end(), {"--rdma", "on", "--rdma-device", verbs_device(0)});
  return options;
}

std::vector<std::string> tool_options(const NodeProcess& node, Transport transport) {
  std::vector<std::string> options = {"--endpoint", endpoint_of(node, transport), "--transport",
                                      transport_name(transport)};
  if (transport == Transport::kVerbs) options.insert(options.end(), {"--rdma-device", verbs_device(1)});
  return options;
}

std::string endpoint_of(const NodeProcess& node, Transport transport) {
  return transport == Transport::kTcp || transport == Transport::kVerbs ? node.tcp() : node.unix_socket();
}

NamespaceRecord make_record(std::size_t block_bytes, const std::string& salt) {
  auto record = NamespaceRecord::from_fields(
      {{"model", "e2e"}, {"block_size", "16"}, {"block_bytes", std::to_string(block_bytes)}, {"salt", salt}});
  if (!record) throw std::runtime_error(record.error().text);
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
      client_(with_node(std::move(config), endpoint, transport)),
      space_(value_of(client_.open(record_, kDeadline), "open")),
      is_verbs_(transport == Transport::kVerbs) {
  const std::size_t bytes = record_.block_bytes() * block_count;
  if (transport == Transport::kShm || is_verbs_) {
    memory_ = value_of(client_.allocate(bytes), "allocate");
    if (!wait_for_rdma()) throw std::runtime_error("no RDMA: " + client_.nodes()[0].rdma_text);
  } else {
    own_memory_.resize(bytes);
    memory_ = own_memory_;
  }
}

bool TestClient::wait_for_rdma() {
  return !is_verbs_ || eventually([&] {
    const auto lent = client_.lend(memory_, kDeadline);
    return lent && *lent > 0 && client_.nodes()[0].rdma_lanes > 0;
  });
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
