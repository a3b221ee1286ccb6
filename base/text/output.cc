#include "base/text/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace kv {

void hold_standard_numbers() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    // The lowest free number is given: this one, since those below it are open.
    if (::fcntl(number, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0) return;
  }
}

int end_output(const char* program, int status) {
  errno = 0;
  bool is_lost = !std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  // A file system over a network reports at close(): of a copy, since the number itself stays taken.
  if (const int copy = is_lost ? -1 : ::dup(STDOUT_FILENO); copy >= 0) is_lost = ::close(copy) != 0;
  if (!is_lost) return status;
  const char* const why = errno == 0 ? "" : std::strerror(errno);  // an earlier write's is not known any more
  std::fprintf(stderr, "%s: standard output: not all of it could be written%s%s\n", program, *why == '\0' ? "" : ": ",
               why);
  return status == 0 ? 1 : status;
}

}  // namespace kv
