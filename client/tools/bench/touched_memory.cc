#include "client/tools/bench/touched_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/assert.h"

namespace kv {

TouchedMemory::TouchedMemory(std::size_t bytes) {
  KV_ASSERT(bytes > 0);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  std::memset(memory, 0x5A, bytes);
}

TouchedMemory::~TouchedMemory() { ::munmap(bytes_.data(), bytes_.size()); }

}  // namespace kv
