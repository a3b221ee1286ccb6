/* tests/e2e/faulty_disk.c: preloaded into a program (LD_PRELOAD), makes the files below one directory behave as on a
 * device that fails, hangs or is slow, and the wall clock jump; as told through a small shared file while it runs.
 *
 *   KV_FAULT_DIRECTORY   the directory
 *   KV_FAULT_CONTROL     a file holding a struct fault_control (faulty_disk.h)
 *
 * Only calls that go through the C library's symbols are seen: all that RocksDB and kvstore-node make, but not the
 * library's own (stdio). Directories are known by the path as it was opened, files by their descriptor. */
#define _GNU_SOURCE
#include "tests/e2e/faulty_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { kDescriptorsMax = 65536 };

static const char* directory;
static volatile struct fault_control* control;
static volatile unsigned char is_ours[kDescriptorsMax];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void set_up(void) {
  const char* const file = getenv("KV_FAULT_CONTROL");
  directory = getenv("KV_FAULT_DIRECTORY");
  if (file == NULL || directory == NULL) return;
  const int descriptor = REAL(open)(file, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) abort();
  void* const mapped = mmap(NULL, sizeof(struct fault_control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) abort();
  control = mapped;
  REAL(close)(descriptor);
}

static int is_below(const char* path) {
  return control != NULL && path != NULL && strncmp(path, directory, strlen(directory)) == 0;
}
static int is_file_of_ours(int descriptor) {
  return control != NULL && descriptor >= 0 && descriptor < kDescriptorsMax && is_ours[descriptor];
}

static void pause_for(long long microseconds) {
  const struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
  nanosleep(&time, NULL);
}

/* What happens to a call that moves `bytes`: 0, or the errno it fails with. */
static int fault(int writes, size_t bytes) {
  ++control->calls;
  while (control->mode == FAULT_STUCK) pause_for(1000);
  if (control->mode == FAULT_SLOW) pause_for(2000 + (long long)bytes * 1000000 / control->bytes_per_second);
  if (control->mode == FAULT_EIO) return EIO;
  if (control->mode == FAULT_READ_ONLY && writes) return EROFS;
  if (control->mode == FAULT_FULL && writes) return ENOSPC;
  return 0;
}

static int fails(int number) {
  errno = number;
  return -1;
}

static int opened(int descriptor, int ours) {
  if (descriptor >= 0 && descriptor < kDescriptorsMax) is_ours[descriptor] = (unsigned char)ours;
  return descriptor;
}

#define DEFINE_OPEN(name)                                               \
  int name(const char* path, int flags, ...) {                          \
    va_list arguments;                                                  \
    va_start(arguments, flags);                                         \
    const mode_t mode = va_arg(arguments, mode_t);                      \
    va_end(arguments);                                                  \
    const int ours = is_below(path);                                    \
    if (ours) {                                                         \
      const int error = fault((flags & (O_CREAT | O_ACCMODE)) != 0, 0); \
      if (error != 0) return fails(error);                              \
    }                                                                   \
    return opened(REAL(name)(path, flags, mode), ours);                 \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

int openat(int directory_descriptor, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  const int ours = is_below(path) || is_file_of_ours(directory_descriptor);
  if (ours) {
    const int error = fault((flags & (O_CREAT | O_ACCMODE)) != 0, 0);
    if (error != 0) return fails(error);
  }
  return opened(REAL(openat)(directory_descriptor, path, flags, mode), ours);
}

int close(int descriptor) {
  if (descriptor >= 0 && descriptor < kDescriptorsMax) is_ours[descriptor] = 0;
  return REAL(close)(descriptor);
}

#define DEFINE_CALL(result, name, writes, bytes, parameters, arguments) \
  result name parameters {                                              \
    if (is_file_of_ours(descriptor)) {                                  \
      const int error = fault(writes, bytes);                           \
      if (error != 0) return fails(error);                              \
    }                                                                   \
    return REAL(name) arguments;                                        \
  }
DEFINE_CALL(ssize_t, read, 0, size, (int descriptor, void* to, size_t size), (descriptor, to, size))
DEFINE_CALL(ssize_t, pread, 0, size, (int descriptor, void* to, size_t size, off_t at), (descriptor, to, size, at))
DEFINE_CALL(ssize_t, pread64, 0, size, (int descriptor, void* to, size_t size, off64_t at), (descriptor, to, size, at))
DEFINE_CALL(ssize_t, write, 1, size, (int descriptor, const void* from, size_t size), (descriptor, from, size))
DEFINE_CALL(ssize_t, pwrite, 1, size, (int descriptor, const void* from, size_t size, off_t at),
            (descriptor, from, size, at))
DEFINE_CALL(ssize_t, pwrite64, 1, size, (int descriptor, const void* from, size_t size, off64_t at),
            (descriptor, from, size, at))
#define DEFINE_SYNC(name)                                                                     \
  int name(int descriptor) {                                                                  \
    if (is_file_of_ours(descriptor)) {                                                        \
      const int error = fault(1, 0);                                                          \
      if (error != 0 || control->mode == FAULT_SYNC_FAILS) return fails(error ? error : EIO); \
    }                                                                                         \
    return REAL(name)(descriptor);                                                            \
  }
DEFINE_SYNC(fsync)
DEFINE_SYNC(fdatasync)
DEFINE_CALL(int, ftruncate, 1, 0, (int descriptor, off_t size), (descriptor, size))
DEFINE_CALL(int, ftruncate64, 1, 0, (int descriptor, off64_t size), (descriptor, size))
DEFINE_CALL(int, fallocate, 1, 0, (int descriptor, int mode, off_t at, off_t size), (descriptor, mode, at, size))
DEFINE_CALL(int, fallocate64, 1, 0, (int descriptor, int mode, off64_t at, off64_t size), (descriptor, mode, at, size))

#define DEFINE_PATH_CALL(name, parameters, arguments) \
  int name parameters {                               \
    if (is_below(path)) {                             \
      const int error = fault(1, 0);                  \
      if (error != 0) return fails(error);            \
    }                                                 \
    return REAL(name) arguments;                      \
  }
DEFINE_PATH_CALL(mkdir, (const char* path, mode_t mode), (path, mode))
DEFINE_PATH_CALL(unlink, (const char* path), (path))
DEFINE_PATH_CALL(rename, (const char* path, const char* to), (path, to))

static long long clock_jump(void) { return control == NULL ? 0 : control->clock_jump_seconds; }

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int status = REAL(clock_gettime)(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += clock_jump();
  return status;
}
int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  const int status = REAL(gettimeofday)(time, zone);
  time->tv_sec += clock_jump();
  return status;
}
time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}
