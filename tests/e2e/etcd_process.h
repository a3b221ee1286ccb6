// tests/e2e/etcd_process.h: a real etcd for a test, of one or several members.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/e2e/node_process.h"

namespace kv::e2e {

/// Members on free ports of the loopback, with their data in a directory that goes with this.
class EtcdProcesses {
 public:
  /// Why a test cannot have one here; empty: it can.
  static std::string lacks();

  /// `options`: of etcd, in addition; with --cert-file clients come by https. Returns when all members answer, or at
  /// once if they are not to start yet. Throws std::runtime_error with a log's text if they do not come up.
  explicit EtcdProcesses(std::size_t member_count = 1, std::vector<std::string> options = {}, bool starts = true);
  ~EtcdProcesses();
  EtcdProcesses(const EtcdProcesses&) = delete;
  EtcdProcesses& operator=(const EtcdProcesses&) = delete;

  std::vector<std::string> node_options() const;  ///< --etcd, once for each member.
  const std::string& url(std::size_t member = 0) const { return members_[member].url; }
  void kill(std::size_t member = 0);
  void start(std::size_t member = 0);  ///< Or again, with the data that it had. Waits for nothing.
  void signal(int number, std::size_t member = 0) const;

 private:
  struct Member {
    std::vector<std::string> arguments;
    std::string url, log;
    std::string port;
    pid_t pid = -1;
  };
  TempDir directory_;
  std::vector<Member> members_;
};

}  // namespace kv::e2e
