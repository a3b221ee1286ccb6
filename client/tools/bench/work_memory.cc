#include "client/tools/bench/work_memory.h"

#include <stdexcept>

#include "base/assert.h"
#include "client/tools/text_table.h"

namespace kv {

WorkMemory::WorkMemory(ToolClient& client, Transport transport, std::size_t bytes) : client_(client) {
  if (transport == Transport::kShm || transport == Transport::kVerbs) {
    bytes_ = {static_cast<std::byte*>(nullptr), bytes};  // only the size, for lend()
    lend();
    if (transport == Transport::kVerbs) wait_for_rdma();
  } else {
    ordinary_ = std::make_unique<TouchedMemory>(bytes);
    bytes_ = ordinary_->bytes();
  }
}

WorkMemory::~WorkMemory() {
  if (!ordinary_) (void)client_->free_memory(bytes_);
}

/// Quarantined memory is unusable until its node has closed the session, which may take as long as the node hangs. A
/// tool goes on with other memory: only the contents are lost, and every user fills or gets them anew.
bool WorkMemory::renew_if_quarantined() {
  if (ordinary_ || !client_->is_quarantined(bytes_)) return false;
  (void)client_->free_memory(bytes_);  // the client frees it once all nodes have let go
  lend();
  return true;
}

/// Otherwise the first calls would go through the socket, and be measured as RDMA.
void WorkMemory::wait_for_rdma() {
  constexpr auto kDeadline = 30s;  // registering takes 0.2 s a GiB, more in a virtual machine
  const auto lent = client_.run(client_->lend(bytes_, kDeadline));
  if (lent && *lent > 0) return;
  (void)client_->free_memory(bytes_);
  std::string why = lent ? "no node offers it" : describe(lent.error());
  for (const NodeStatus& node : client_->nodes()) {
    if (!node.rdma_text.empty()) why = node.rdma_text;
    if (!node.connected) why = node.endpoint + ": " + node.last_error_text;
  }
  throw std::runtime_error("no RDMA: " + why);
}

/// Takes the size of bytes_ and sets its address: the same size again, since users have cut it into places.
void WorkMemory::lend() {
  const auto memory = client_->allocate(bytes_.size());
  if (!memory) {
    throw std::runtime_error("cannot lend " + format_bytes(bytes_.size()) + " of memory: " + describe(memory.error()));
  }
  KV_ASSERT(memory->size() == bytes_.size());
  bytes_ = *memory;
}

}  // namespace kv
