#include "tests/e2e/etcd_process.h"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace kv::e2e {
namespace {

using boost::asio::ip::tcp;

constexpr const char* kProgram = "/usr/bin/etcd";

bool is_listening(const std::string& port) {
  tcp::iostream stream;
  stream.connect("127.0.0.1", port);
  return stream.good();
}

}  // namespace

std::string EtcdProcesses::lacks() {
  return ::access(kProgram, X_OK) == 0 ? "" : std::string(kProgram) + " is not here (package etcd-server)";
}

EtcdProcesses::EtcdProcesses(std::size_t member_count, std::vector<std::string> options, bool starts) {
  const std::vector<std::string> ports = free_ports(2 * member_count);
  const std::string scheme = std::ranges::find(options, "--cert-file") == options.end() ? "http://" : "https://";
  const auto peer_url = [&](std::size_t i) { return "http://127.0.0.1:" + ports[2 * i + 1]; };
  std::string all;
  for (std::size_t i = 0; i < member_count; ++i) {
    all += (all.empty() ? "m" : ",m") + std::to_string(i) + "=" + peer_url(i);
  }
  for (std::size_t i = 0; i < member_count; ++i) {
    Member& member = members_.emplace_back();
    const std::string name = "m" + std::to_string(i);
    member.port = ports[2 * i];
    member.url = scheme + "127.0.0.1:" + member.port;
    member.log = directory_.path() + "/" + name + ".log";
    member.arguments = {kProgram, "--name", name, "--data-dir", directory_.path() + "/" + name, "--listen-client-urls",
                        member.url, "--advertise-client-urls", member.url, "--listen-peer-urls", peer_url(i),
                        "--initial-advertise-peer-urls", peer_url(i), "--initial-cluster", all,
                        // Elections on a busy machine: not at each pause.
                        "--heartbeat-interval", "200", "--election-timeout", "2000"};
    member.arguments.insert(member.arguments.end(), options.begin(), options.end());
    if (starts) start(i);
  }
  if (!starts) return;
  for (const Member& member : members_) {
    if (eventually([&] { return is_listening(member.port); })) continue;
    std::ifstream log(member.log);
    throw std::runtime_error("etcd did not come up:\n" + std::string(std::istreambuf_iterator<char>(log), {}));
  }
}

EtcdProcesses::~EtcdProcesses() {
  for (std::size_t i = 0; i < members_.size(); ++i) kill(i);
}

std::vector<std::string> EtcdProcesses::node_options() const {
  std::vector<std::string> options;
  for (const Member& member : members_) {
    options.push_back("--etcd");
    options.push_back(member.url);
  }
  return options;
}

void EtcdProcesses::kill(std::size_t member) {
  const pid_t pid = std::exchange(members_[member].pid, -1);
  if (pid < 0) return;
  ::kill(pid, SIGKILL);
  wait_for_child(pid);
}

void EtcdProcesses::start(std::size_t member) {
  members_[member].pid = start_child(members_[member].arguments, members_[member].log);
}

void EtcdProcesses::signal(int number, std::size_t member) const { ::kill(members_[member].pid, number); }

}  // namespace kv::e2e
