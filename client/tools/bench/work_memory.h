// client/tools/bench/work_memory.h: a tool's block buffers, lent to the node for shared memory and RDMA.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "client/client.h"
#include "client/tools/bench/touched_memory.h"
#include "client/tools/tool_client.h"

namespace kv {

/// Thread safety: none; used on the client's thread. Must end before the client does.
class WorkMemory {
 public:
  /// Throws std::runtime_error or std::system_error if memory is short, or if with kVerbs all nodes refuse it by RDMA.
  WorkMemory(ToolClient& client, Transport transport, std::size_t bytes);
  ~WorkMemory();
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// A call that missed its deadline may leave the memory to a node that still writes there. Then takes other memory,
  /// with unspecified contents, and returns true.
  bool renew_if_quarantined();

 private:
  void lend();
  void wait_for_rdma();

  ToolClient& client_;
  std::unique_ptr<TouchedMemory> ordinary_;
  std::span<std::byte> bytes_;
};

}  // namespace kv
