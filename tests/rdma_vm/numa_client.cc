// A client whose memory and threads are to be on some NUMA nodes: does what a worker does at its start, then prints
// what the kernel says of it, for numa.sh to judge.
//
//   numa_client ENDPOINT NODES|- [MIB]
//
//   caller BEFORE AFTER     the caller's processors and memory policy, before and after
//   threads LIST...         processors of each of the library's threads
//   pages FIRST SECOND      of the client's memory on node 0 and on node 1
//   stats JSON              "numa" of KVS_OP_STATS
//   metrics LINE            of kvs_metrics_text(), those about NUMA nodes
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "client/kvstore.h"

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "numa_client: " << what << ": " << kvs_last_error() << "\n";
  std::exit(1);
}

/// As containers do it by default: the calls that place memory, or tell where it lies, are refused.
void confine() {
  constexpr std::uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kIfEqual = BPF_JMP | BPF_JEQ | BPF_K,
                          kReturn = BPF_RET | BPF_K;
  sock_filter filter[] = {{kLoad, 0, 0, offsetof(seccomp_data, nr)}, {kIfEqual, 3, 0, SYS_set_mempolicy},
                          {kIfEqual, 2, 0, SYS_get_mempolicy},       {kIfEqual, 1, 0, SYS_move_pages},
                          {kReturn, 0, 0, SECCOMP_RET_ALLOW},        {kReturn, 0, 0, SECCOMP_RET_ERRNO | EPERM}};
  const sock_fprog program = {std::size(filter), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    fail("seccomp");
}

std::string processors_of(const std::filesystem::path& task) {
  std::ifstream file(task / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Cpus_allowed_list:\t")) return line.substr(line.find('\t') + 1);
  }
  return "?";
}

/// Of the calling thread.
std::string place_now() {
  int mode = -1;
  unsigned long nodes[128] = {};
  if (::syscall(SYS_get_mempolicy, &mode, nodes, 8192ul, nullptr, 0ul) != 0) mode = -1;
  return processors_of("/proc/thread-self") + "/" + std::to_string(mode) + "/" + std::to_string(nodes[0]);
}

std::uint64_t pages_on(const std::string& mapping, unsigned node) {
  const std::string name = " N" + std::to_string(node) + "=";
  const auto at = mapping.find(name);
  return at == std::string::npos ? 0 : std::stoull(mapping.substr(at + name.size()));
}

template <class Call>
std::string text_of(Call call) {
  std::string text(1 << 20, '\0');
  std::size_t length = 0;
  if (call(text.data(), text.size(), &length) != KVS_OK) fail("asking");
  text.resize(length);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("numa_client ENDPOINT NODES|- [MIB]");
  if (std::getenv("NUMA_CLIENT_IS_CONFINED") != nullptr) confine();
  const std::string wish = argv[2];
  const std::size_t bytes = (argc > 3 ? std::stoull(argv[3]) : 64) << 20;
  const std::string before = place_now();
  kvs_options options = KVS_OPTIONS_INIT;
  kvs_node node = {argv[1], nullptr, 0};
  options.nodes = &node;
  options.node_count = 1;
  options.numa_nodes = wish == "-" ? nullptr : wish.c_str();
  kvs_client* client = nullptr;
  if (kvs_client_open(&options, &client) != KVS_OK) fail("open");
  kvs_request open = KVS_REQUEST_INIT(KVS_OP_OPEN);
  open.record = "model=numa\nblock_size=16\nblock_bytes=4096\n";
  open.deadline_us = 5'000'000;
  if (kvs_run(client, &open, nullptr, 0) != KVS_OK) fail("space");
  void* memory = nullptr;
  if (kvs_allocate(client, bytes, &memory) != KVS_OK) fail("allocate");
  // Registers it, where the node has RDMA: on a thread of the library's.
  kvs_request lend = KVS_REQUEST_INIT(KVS_OP_LEND);
  lend.memory = memory;
  lend.bytes = bytes;
  lend.deadline_us = 30'000'000;
  if (kvs_run(client, &lend, nullptr, 0) != KVS_OK) fail("lend");
  std::cout << "caller " << before << " " << place_now() << "\nthreads";
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() != std::to_string(::getpid())) std::cout << " " << processors_of(task.path());
  }
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("kvstore-region") != std::string::npos)
      std::cout << "\npages " << pages_on(line, 0) << " " << pages_on(line, 1);
  }
  const std::string stats = text_of([&](char* text, std::size_t capacity, std::size_t* length) {
    kvs_request request = KVS_REQUEST_INIT(KVS_OP_STATS);
    request.deadline_us = 5'000'000;
    request.json = text;
    request.json_capacity = capacity;
    kvs_completion done = {};
    const int status = kvs_run(client, &request, &done, sizeof done);
    *length = done.length;
    return status;
  });
  std::cout << "\nstats " << stats.substr(stats.find("\"numa\"")) << "\n";
  std::istringstream metrics(text_of([&](auto... to) { return kvs_metrics_text(client, to...); }));
  for (std::string line; std::getline(metrics, line);) {
    if (line.starts_with("kvstore_client_memory_numa")) std::cout << "metrics " << line << "\n";
  }
  kvs_client_close(client);
}
