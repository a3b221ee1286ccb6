// client/tools/bench/work_memory.h: a tool's block buffers: lent to the node for shared memory and RDMA, ordinary
// otherwise.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "client/client.h"
#include "client/tools/bench/touched_memory.h"
#include "client/tools/tool_client.h"

namespace kv {

/// Thread safety: none; on the client's thread, and ends before the client does.
class WorkMemory {
 public:
  /// Throws std::runtime_error or std::system_error if there is not that much, or (kVerbs) no node takes it by RDMA.
  WorkMemory(ToolClient& client, Transport transport, std::size_t bytes);
  ~WorkMemory();
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// If a call that ran into its deadline left the memory to a node that may still touch it, takes other memory.
  /// True if it did; the contents are then unspecified.
  bool renew_if_quarantined();

 private:
  void lend();
  void wait_for_rdma();

  ToolClient& client_;
  std::unique_ptr<TouchedMemory> ordinary_;
  std::span<std::byte> bytes_;
};

}  // namespace kv
