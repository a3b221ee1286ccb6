/* client/python/src/old_glibc.c: functions that the compiler's static libraries take from a newer glibc than a wheel
 * may require (2.34, as in RHEL 9). Hidden outside the extension. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void);

/* glibc 2.36: used by std::random_device. */
uint32_t arc4random(void) {
  uint32_t number;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) abort(); /* as glibc does */
  return number;
}
