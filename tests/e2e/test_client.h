// tests/e2e/test_client.h: a client whose blocks are known by their names.
#pragma once

#include <string>
#include <vector>

#include "client/tools/tool_client.h"
#include "tests/client/typed_calls.h"
#include "tests/e2e/node_process.h"

namespace kv::e2e {

inline constexpr std::chrono::microseconds kDeadline = 20s;  ///< Of calls that are meant to succeed, on a busy machine.

NamespaceRecord make_record(std::size_t block_bytes, const std::string& salt = "e2e");
std::vector<BlockHash> make_chain(std::uint64_t seed, std::size_t block_count);

/// What a transport needs of this machine. kVerbs: KV_VERBS_TEST_DEVICES=NODE,CLIENT names two devices (or one twice),
/// and KV_VERBS_MODULE the module; empty: it is here.
std::string lacks(Transport transport);
/// Options for a node that serves it, for kvstore-bench.
std::vector<std::string> node_options(Transport transport, std::vector<std::string> options);
std::vector<std::string> tool_options(const NodeProcess& node, Transport transport);
/// Where a client of it connects.
std::string endpoint_of(const NodeProcess& node, Transport transport);

/// A TypedClient on one node and one transport, with buffers for `block_count` blocks and the namespace opened.
class TestClient {
 public:
  TestClient(const std::string& endpoint, Transport transport, std::size_t block_bytes, std::size_t block_count,
             ClientConfig config = {});
  /// The same in a namespace of the caller's.
  TestClient(const std::string& endpoint, Transport transport, NamespaceRecord record, std::size_t block_count,
             ClientConfig config = {});

  TypedClient& operator*() { return client_; }
  TypedClient* operator->() { return &client_; }
  Space space() const { return space_; }
  const NamespaceRecord& record() const { return record_; }
  std::span<std::byte> memory() const { return memory_; }
  /// Waits until the node can reach memory() by RDMA again; false if it cannot within a minute. Nothing to wait for on
  /// other transports.
  bool wait_for_rdma();
  std::vector<std::span<std::byte>> blocks(std::size_t count) const;

  /// Fills the buffers with the chain's bytes and puts them.
  PutResult put(std::span<const BlockHash> chain, std::chrono::microseconds deadline = kDeadline);
  /// Wipes the buffers and gets the chain; wrong_bytes() then counts.
  GetResult get(std::span<const BlockHash> chain, std::chrono::microseconds deadline = kDeadline);
  /// Bytes among the first `count` blocks in the buffers that differ from what the names say.
  std::size_t wrong_bytes(std::span<const BlockHash> chain, std::size_t count) const;

 private:
  NamespaceRecord record_;
  TypedClient client_;
  Space space_;
  bool is_verbs_;
  std::vector<std::byte> own_memory_;
  std::span<std::byte> memory_;
};

}  // namespace kv::e2e
