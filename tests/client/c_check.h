/* tests/client/c_check.h: what must hold in a program that is plain C. */
#ifndef KV_TESTS_CLIENT_C_CHECK_H
#define KV_TESTS_CLIENT_C_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvstore.h"

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, kvs_last_error()); \
      exit(1);                                                                                          \
    }                                                                                                   \
  } while (0)
/* The last error has these words. */
#define SAYS(text) CHECK(strstr(kvs_last_error(), text) != NULL)

#endif
