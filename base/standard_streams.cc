#include "base/standard_streams.h"

#include <fcntl.h>

#include "base/assert.h"

namespace kv {

void open_standard_streams() {
  for (const int fd : {0, 1, 2}) {
    // The lowest free number is `fd`, since all below are open.
    if (::fcntl(fd, F_GETFD) < 0) KV_ASSERT(::open("/dev/null", O_RDWR) == fd);
  }
}

}  // namespace kv
