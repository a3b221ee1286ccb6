/* tests/bench/redis_get.c: what one connection to Redis brings, in the shape of `kvstore-bench run --op get`. redis.sh
 * compiles and runs it.
 *
 *   redis_get ENDPOINT fill   KEYS BYTES
 *   redis_get ENDPOINT direct KEYS BYTES BATCH SECONDS     each value is received straight into its place
 *   redis_get ENDPOINT hiredis KEYS BYTES BATCH SECONDS    by hiredis, and copied from its reply to its place
 *
 * ENDPOINT: a path is a Unix socket, HOST:PORT is TCP. A call asks for BATCH values at once, as a pipeline of GETs, and
 * ends when the last one is in its place. Which values, and in which of several places, is drawn at random, as in
 * kvstore-bench: a place that is used again and again would stay in the processor's cache. Prints bytes a second.
 *
 * `direct` is the kinder of the two to Redis: no client can do with fewer copies. It knows just so much of the protocol
 * as these answers need, and gives up at anything else. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef KV_HIREDIS
#include <hiredis/hiredis.h>
#endif

enum { kPlaces = 16, kKeyBytes = 64 }; /* places for a batch each: 512 MiB with the defaults, more than any cache */

static void die(const char* what) {
  fprintf(stderr, "redis_get: %s%s%s\n", what, errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t next_random(void) {
  static uint64_t state = 0x9E3779B97F4A7C15;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

/* HOST and port of ENDPOINT, or port 0: it is a path. */
static int split(const char* endpoint, char* host, size_t room) {
  const char* colon = strrchr(endpoint, ':');
  if (endpoint[0] == '/' || colon == NULL || (size_t)(colon - endpoint) >= room) return 0;
  memcpy(host, endpoint, (size_t)(colon - endpoint));
  host[colon - endpoint] = '\0';
  return atoi(colon + 1);
}

static int open_socket(const char* endpoint) {
  char host[64];
  const int port = split(endpoint, host, sizeof host), on = 1;
  const int fd = socket(port != 0 ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) die("socket");
  if (port != 0) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("ENDPOINT: no such address");
    if (connect(fd, (struct sockaddr*)&address, sizeof address) != 0) die(endpoint);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(endpoint) >= sizeof address.sun_path) die("ENDPOINT: too long");
    strcpy(address.sun_path, endpoint);
    if (connect(fd, (struct sockaddr*)&address, sizeof address) != 0) die(endpoint);
  }
  return fd;
}

static void send_all(int fd, const void* from, size_t bytes) {
  for (const char* next = from; bytes > 0;) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) die("send");
    next += sent, bytes -= (size_t)sent;
  }
}

static void receive_all(int fd, void* to, size_t bytes) {
  for (char* next = to; bytes > 0;) {
    const ssize_t got = recv(fd, next, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) die("the server went away");
    next += got, bytes -= (size_t)got;
  }
}

/* One SET after another. Every value has bytes of its own, or a copy of zeros would be measured. */
static void fill(const char* endpoint, size_t keys, size_t bytes) {
  const int fd = open_socket(endpoint);
  uint64_t* value = malloc(bytes + sizeof *value);
  if (value == NULL) die("malloc");
  for (size_t key = 0; key < keys; ++key) {
    char name[kKeyBytes], head[2 * kKeyBytes], answer[5];
    const int name_bytes = snprintf(name, sizeof name, "block:%08zu", key);
    const int head_bytes =
        snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", name_bytes, name, bytes);
    for (size_t i = 0; i <= bytes / sizeof *value; ++i) value[i] = next_random();
    send_all(fd, head, (size_t)head_bytes);
    send_all(fd, value, bytes);
    send_all(fd, "\r\n", 2);
    receive_all(fd, answer, sizeof answer);
    errno = 0;
    if (memcmp(answer, "+OK\r\n", sizeof answer) != 0) die("SET was refused: has the server enough memory?");
  }
  free(value);
  close(fd);
}

struct shape {
  size_t keys, bytes, batch;
};

/* The requests of one call. Blocks of one batch are neighbours, as those of a chain are. */
static size_t write_requests(char* to, size_t room, const struct shape* shape) {
  const size_t first = next_random() % (shape->keys / shape->batch) * shape->batch;
  size_t at = 0;
  for (size_t i = 0; i < shape->batch; ++i) {
    char name[kKeyBytes];
    const int name_bytes = snprintf(name, sizeof name, "block:%08zu", first + i);
    at += (size_t)snprintf(to + at, room - at, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", name_bytes, name);
  }
  return at;
}

static void get_direct(int fd, const struct shape* shape, char* requests, size_t room, char* place) {
  char expected[32], head[32], end[2];
  const size_t head_bytes = (size_t)snprintf(expected, sizeof expected, "$%zu\r\n", shape->bytes);
  send_all(fd, requests, write_requests(requests, room, shape));
  for (size_t i = 0; i < shape->batch; ++i) {
    receive_all(fd, head, head_bytes);
    errno = 0;
    if (memcmp(head, expected, head_bytes) != 0) die("an answer that is no value of the expected length");
    receive_all(fd, place + i * shape->bytes, shape->bytes);
    receive_all(fd, end, sizeof end);
  }
}

#ifdef KV_HIREDIS
static redisContext* open_hiredis(const char* endpoint) {
  char host[64];
  const int port = split(endpoint, host, sizeof host);
  redisContext* context = port != 0 ? redisConnect(host, port) : redisConnectUnix(endpoint);
  if (context == NULL || context->err != 0) die("hiredis cannot connect");
  return context;
}

static void get_hiredis(redisContext* context, const struct shape* shape, char* requests, size_t room, char* place) {
  const size_t bytes = write_requests(requests, room, shape);
  if (redisAppendFormattedCommand(context, requests, bytes) != REDIS_OK) die("hiredis");
  for (size_t i = 0; i < shape->batch; ++i) {
    redisReply* reply = NULL;
    if (redisGetReply(context, (void**)&reply) != REDIS_OK) die("the server went away");
    errno = 0;
    if (reply->type != REDIS_REPLY_STRING || (size_t)reply->len != shape->bytes) die("an answer that is no such value");
    memcpy(place + i * shape->bytes, reply->str, shape->bytes);
    freeReplyObject(reply);
    if (i + 1 == shape->batch) break;
    /* One formatted buffer holds all requests, but hiredis answers them one at a time. */
  }
}
#endif

int main(int argc, char** argv) {
  if (argc < 5) die("usage: redis_get ENDPOINT fill|direct|hiredis KEYS BYTES [BATCH SECONDS]");
  const char *endpoint = argv[1], *mode = argv[2];
  struct shape shape = {strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), 1};
  if (shape.keys == 0 || shape.bytes == 0) die("KEYS and BYTES are 1 or more");
  if (strcmp(mode, "fill") == 0) return fill(endpoint, shape.keys, shape.bytes), 0;
  if (argc < 7) die("usage: redis_get ENDPOINT direct|hiredis KEYS BYTES BATCH SECONDS");
  shape.batch = strtoull(argv[5], NULL, 10);
  const double seconds = atof(argv[6]);
  if (shape.batch == 0 || shape.batch > shape.keys) die("BATCH is 1 to KEYS");

  const size_t place_bytes = shape.batch * shape.bytes, room = shape.batch * 2 * kKeyBytes;
  char *memory = malloc(kPlaces * place_bytes), *requests = malloc(room);
  if (memory == NULL || requests == NULL) die("malloc");
  memset(memory, 1, kPlaces * place_bytes); /* first touches are paid before the clock starts */

  const int is_direct = strcmp(mode, "direct") == 0;
  const int fd = is_direct ? open_socket(endpoint) : -1;
#ifdef KV_HIREDIS
  redisContext* context = is_direct ? NULL : open_hiredis(endpoint);
#else
  if (!is_direct) die("built without hiredis");
#endif
  double start = 0, end = 0;
  size_t calls = 0;
  for (int warm_up = 3;; --warm_up) {
    if (warm_up == 0) start = now(), calls = 0;
    char* place = memory + next_random() % kPlaces * place_bytes;
    if (is_direct) get_direct(fd, &shape, requests, room, place);
#ifdef KV_HIREDIS
    else
      get_hiredis(context, &shape, requests, room, place);
#endif
    ++calls;
    end = now();
    if (warm_up <= 0 && end - start >= seconds) break;
  }
  printf("%.0f\n", (double)(calls * place_bytes) / (end - start));
  return 0;
}
