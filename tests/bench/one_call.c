/* tests/bench/one_call.c: how long one call at a time takes, over one connection. calls.py compiles and runs it.
 *
 *   one_call redis|memcached|get|match|await ENDPOINT BYTES SECONDS      prints p50 and p99 in microseconds
 *
 * ENDPOINT: HOST:PORT, for kvstore with tcp:// or unix:// in front. A call gets one value of BYTES out of 64, drawn at
 * random; `match` asks kvstore for a chain of 256 blocks that is there, `await` does so by kvs_submit, poll and
 * kvs_reap. Values are received straight into their place. kvstore is asked by kvs_run, and verifies every byte; the
 * others are asked by send and recv, which no client can do without. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/kvstore.h"

enum { kValues = 64, kMatched = 256, kCallsMax = 1 << 22 };

static void die(const char* what) {
  fprintf(stderr, "one_call: %s%s%s\n", what, errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t next_random(void) {
  static uint64_t state = 0x9E3779B97F4A7C15;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

/* ---- servers that are asked in words */

static int connection = -1;
static int is_memcached;
static size_t value_bytes;
static char* place;

static void open_socket(const char* endpoint) {
  char host[64];
  const char* colon = strrchr(endpoint, ':');
  const int on = 1;
  if (colon == NULL || (size_t)(colon - endpoint) >= sizeof host) die("ENDPOINT is HOST:PORT");
  memcpy(host, endpoint, (size_t)(colon - endpoint));
  host[colon - endpoint] = '\0';
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
  connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connection < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) die("ENDPOINT");
  if (connect(connection, (struct sockaddr*)&address, sizeof address) != 0) die(endpoint);
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void send_all(const void* from, size_t bytes) {
  if (send(connection, from, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) die("send");
}

static void receive_all(void* to, size_t bytes) {
  for (char* next = to; bytes > 0;) {
    const ssize_t got = recv(connection, next, bytes, 0);
    if (got <= 0) die("the server went away");
    next += got, bytes -= (size_t)got;
  }
}

/* What begins and ends the answer that holds value `key`. */
static size_t write_head(char* to, size_t room, size_t key) {
  return (size_t)(is_memcached ? snprintf(to, room, "VALUE block:%08zu 0 %zu\r\n", key, value_bytes)
                               : snprintf(to, room, "$%zu\r\n", value_bytes));
}

static void fill_server(void) {
  const char* const stored = is_memcached ? "STORED\r\n" : "+OK\r\n";
  for (size_t key = 0; key < kValues; ++key) {
    char head[128], answer[16];
    const int bytes = is_memcached ? snprintf(head, sizeof head, "set block:%08zu 0 0 %zu\r\n", key, value_bytes)
                                   : snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$14\r\nblock:%08zu\r\n$%zu\r\n",
                                              key, value_bytes);
    memset(place, (int)key, value_bytes);
    send_all(head, (size_t)bytes);
    send_all(place, value_bytes);
    send_all("\r\n", 2);
    receive_all(answer, strlen(stored));
    errno = 0;
    if (memcmp(answer, stored, strlen(stored)) != 0) die("the server does not store");
  }
}

static void get_from_server(void) {
  const size_t key = next_random() % kValues;
  char request[64], expected[64];
  const int bytes = is_memcached ? snprintf(request, sizeof request, "get block:%08zu\r\n", key)
                                 : snprintf(request, sizeof request, "*2\r\n$3\r\nGET\r\n$14\r\nblock:%08zu\r\n", key);
  const size_t head = write_head(expected, sizeof expected, key), end = is_memcached ? 7 : 2;
  send_all(request, (size_t)bytes);
  receive_all(place, head + value_bytes + end);
  errno = 0;
  if (memcmp(place, expected, head) != 0 || place[head] != (char)key) die("an answer that is not the value");
}

/* ---- kvstore */

static kvs_client* client;
static kvs_queue* queue;
static kvs_space space;
static kvs_hash hashes[kMatched];
static void* target;

static void check(int status) {
  errno = 0;
  if (status != KVS_OK) die(kvs_last_error());
}

static kvs_request request_of(uint32_t op, const kvs_hash* first, size_t count, void* const* blocks) {
  kvs_request request = KVS_REQUEST_INIT(op);
  request.space = space;
  request.hashes = first;
  request.count = count;
  request.blocks = blocks;
  request.deadline_us = 1000000;
  return request;
}
static kvs_completion call(uint32_t op, const kvs_hash* first, size_t count, void* const* blocks) {
  const kvs_request request = request_of(op, first, count, blocks);
  kvs_completion done;
  check(kvs_run(client, &request, &done, sizeof done));
  return done;
}

/* 64 chains of one block, and one of 256. */
static void open_kvstore(const char* endpoint, int is_match) {
  kvs_options options = KVS_OPTIONS_INIT;
  options.endpoints = endpoint;
  options.connections_per_node = 1;
  check(kvs_client_open(&options, &client));
  char record[128];
  snprintf(record, sizeof record, "block_bytes=%zu\nblock_size=16\nmodel=one_call\n", value_bytes);
  kvs_request open = KVS_REQUEST_INIT(KVS_OP_OPEN);
  kvs_completion opened;
  open.record = record;
  open.deadline_us = 1000000;
  check(kvs_run(client, &open, &opened, sizeof opened));
  space = opened.space;
  target = place;
  void* blocks[kMatched];
  for (size_t i = 0; i < kMatched; ++i) {
    blocks[i] = place;
    hashes[i].bytes[0] = (uint8_t)i, hashes[i].bytes[1] = (uint8_t)(1 + is_match);
  }
  for (size_t i = 0; i < kValues && !is_match; ++i) {
    memset(place, (int)i, value_bytes);
    if (call(KVS_OP_PUT, &hashes[i], 1, blocks).refused > 0) die("the node refuses blocks");
  }
  if (is_match && call(KVS_OP_PUT, hashes, kMatched, blocks).refused > 0) die("the node refuses blocks");
}

static void get_from_kvstore(void) {
  const size_t key = next_random() % kValues;
  if (call(KVS_OP_GET, &hashes[key], 1, &target).block_count != 1 || place[0] != (char)key) die("not the block");
}
static void match_in_kvstore(void) {
  if (call(KVS_OP_MATCH, hashes, kMatched, NULL).block_count != kMatched) die("not the chain");
}

static void await_match(void) {
  const kvs_request request = request_of(KVS_OP_MATCH, hashes, kMatched, NULL);
  struct pollfd readable = {.fd = kvs_queue_fd(queue), .events = POLLIN};
  kvs_completion done;
  size_t count = 0;
  check(kvs_submit(queue, &request, NULL));
  if (poll(&readable, 1, -1) != 1) die("poll");
  check(kvs_reap(queue, &done, sizeof done, 1, 0, 0, &count));
  if (count != 1 || done.status != KVS_OK || done.block_count != kMatched) die("not the chain");
}

static int compare(const void* a, const void* b) {
  const uint32_t left = *(const uint32_t*)a, right = *(const uint32_t*)b;
  return left < right ? -1 : left > right;
}

/* The call to be measured. */
static void (*open_call(const char* what, const char* endpoint))(void) {
  const int is_get = strcmp(what, "get") == 0, is_match = strcmp(what, "match") == 0;
  if (is_get || is_match || strcmp(what, "await") == 0) {
    const kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
    open_kvstore(endpoint, !is_get);
    check(kvs_queue_open(client, &options, &queue));
    return is_get ? get_from_kvstore : is_match ? match_in_kvstore : await_match;
  }
  is_memcached = strcmp(what, "memcached") == 0;
  if (!is_memcached && strcmp(what, "redis") != 0) die("no such call");
  open_socket(endpoint);
  fill_server();
  return get_from_server;
}

int main(int argc, char** argv) {
  if (argc < 5) die("usage: one_call redis|memcached|get|match|await ENDPOINT BYTES SECONDS");
  value_bytes = strtoull(argv[3], NULL, 10);
  place = malloc(value_bytes + 256);
  uint32_t* const times = malloc(kCallsMax * sizeof *times);
  if (value_bytes == 0 || place == NULL || times == NULL) die("BYTES");
  void (*const one)(void) = open_call(argv[1], argv[2]);
  for (int i = 0; i < 1000; ++i) one();
  const uint64_t until = now_ns() + (uint64_t)(atof(argv[4]) * 1e9);
  size_t count = 0;
  for (uint64_t before = now_ns(); before < until && count < kCallsMax; ++count) {
    one();
    const uint64_t after = now_ns();
    times[count] = (uint32_t)(after - before);
    before = after;
  }
  qsort(times, count, sizeof *times, compare);
  printf("%.1f %.1f\n", times[count / 2] / 1e3, times[count * 99 / 100] / 1e3);
  kvs_queue_close(queue);
  kvs_client_close(client);
  return 0;
}
