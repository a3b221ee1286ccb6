#include "client/thread/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/assert.h"

namespace kv {

Descriptor make_eventfd() {
  Descriptor made(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!made) throw std::system_error(errno, std::generic_category(), "eventfd");
  return made;
}

void Waker::wake() {
  if (!is_asleep_.load(std::memory_order_seq_cst)) return;
  if (!is_asleep_.exchange(false, std::memory_order_seq_cst)) return;  // another caller wakes it
  const std::uint64_t one = 1;
  ssize_t written;
  do written = ::write(fd_.get(), &one, sizeof one);
  while (written < 0 && errno == EINTR);
  KV_ASSERT(written == sizeof one || errno == EAGAIN);  // full: it is readable
}

void Waker::drain() {
  std::uint64_t ignored;
  const ssize_t got = ::read(fd_.get(), &ignored, sizeof ignored);
  KV_ASSERT(got == sizeof ignored || errno == EAGAIN || errno == EINTR);
}

}  // namespace kv
