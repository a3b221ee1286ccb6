#include "client/tools/work_memory.h"

#include <stdexcept>

#include "client/tools/text_table.h"

namespace kv {

WorkMemory::WorkMemory(Client& client, Transport transport, std::size_t bytes) : client_(client) {
  if (transport == Transport::kShm) {
    bytes_ = {static_cast<std::byte*>(nullptr), bytes};
    lend();
  } else {
    ordinary_ = std::make_unique<TouchedMemory>(bytes);
    bytes_ = ordinary_->bytes();
  }
}

WorkMemory::~WorkMemory() {
  if (!ordinary_) (void)client_.free_memory(bytes_);
}

bool WorkMemory::renew_if_quarantined() {
  if (ordinary_ || !client_.is_quarantined(bytes_)) return false;
  (void)client_.free_memory(bytes_);  // the client frees it once no node can touch it any more
  lend();
  return true;
}

void WorkMemory::lend() {
  const auto memory = client_.allocate(bytes_.size());
  if (!memory) {
    throw std::runtime_error("cannot lend " + format_bytes(bytes_.size()) + " of memory: " + describe(memory.error()));
  }
  bytes_ = *memory;
}

}  // namespace kv
