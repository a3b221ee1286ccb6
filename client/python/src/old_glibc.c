/* client/python/src/old_glibc.c: what the compiler's static libraries take from a newer glibc than a wheel may ask for
 * (2.34, as RHEL 9 has). Hidden: nothing outside the extension sees them. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void);

/* glibc 2.36: of std::random_device. */
uint32_t arc4random(void) {
  uint32_t number;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) abort(); /* as glibc does */
  return number;
}
