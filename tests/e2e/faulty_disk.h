/* tests/e2e/faulty_disk.h: what a test tells faulty_disk.c, through a file that both map. */
#ifndef KV_TESTS_E2E_FAULTY_DISK_H
#define KV_TESTS_E2E_FAULTY_DISK_H

enum fault_mode {
  FAULT_NONE = 0,
  FAULT_EIO = 1,       /* every call fails */
  FAULT_READ_ONLY = 2, /* as on a file system that was remounted so */
  FAULT_FULL = 3,      /* no space left */
  FAULT_STUCK = 4,     /* calls return when the mode changes */
  FAULT_SLOW = 5,      /* 2 ms a call, and bytes_per_second */
  FAULT_SYNC_FAILS = 6 /* writes go well, what makes them durable fails */
};

struct fault_control {
  int mode;
  long long bytes_per_second;
  long long clock_jump_seconds; /* added to the wall clock; the monotonic clock never jumps */
  long long calls;              /* seen so far: 0 means that nothing is intercepted */
};

#endif
