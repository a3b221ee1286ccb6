// tests/e2e/node_process.h: the real daemon, and other programs, as children of a test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace kv::e2e {

/// A directory that goes with its owner.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Finished {
  int status = -1;  ///< Exit status, or 128 + signal.
  std::string out, err;
};
/// Runs a program to its end. `environment`: NAME=VALUE, in addition to this process's own.
Finished run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// Starts a program whose output goes to `log`; it ends with this process. The same process must wait for it.
pid_t start_child(const std::vector<std::string>& arguments, const std::string& log,
                  const std::vector<std::string>& environment = {});
int wait_for_child(pid_t pid);  ///< Until it ends; its exit status, or 128 + signal.

/// Looks again and again until `condition` holds; false if it does not within a minute. For what another process does.
bool eventually(const std::function<bool()>& condition);

/// Ports of the loopback that are free now, below those that the kernel hands out itself: none is given to another
/// process while its owner is down.
std::vector<std::string> free_ports(std::size_t count);

struct Page {
  int status = 0;
  std::string body;
};
Page http_get(const std::string& address, const std::string& path);  ///< `address`: HOST:PORT.

/// kvstore-node on free ports of the loopback and on a Unix socket, serving when the constructor returns.
class NodeProcess {
 public:
  /// `options` in addition; with `socket`, the Unix socket lies there, else in a directory of its own; `environment` as
  /// run_program's. Throws std::runtime_error with the log's text if it does not come up.
  explicit NodeProcess(const std::vector<std::string>& options = {}, const std::string& socket = "",
                       const std::vector<std::string>& environment = {});
  ~NodeProcess();  ///< Kills it if it still runs.
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  const std::string& tcp() const { return tcp_; }           ///< tcp://127.0.0.1:PORT
  const std::string& unix_socket() const { return unix_; }  ///< unix://PATH
  const std::string& tls() const { return tls_; }           ///< tls://127.0.0.1:PORT, if the options name one.
  const std::string& admin() const { return admin_; }       ///< 127.0.0.1:PORT, or as the options say.

  pid_t pid() const { return pid_; }
  void signal(int number) const;             ///< SIGSTOP: returns once its last thread stands still.
  int wait();                                ///< Until it ends; its exit status, or 128 + signal.
  std::string log() const;                   ///< With all lines so far: the node writes them on a thread of its own.
  bool logs(const std::string& text) const;  ///< Waits for it: a metric or an answer may come before the line.

  using Page = e2e::Page;
  Page http_get(const std::string& path) const;
  /// The value of a sample of /metrics, by its name with labels; -1 if it is not there.
  double metric(const std::string& name) const;

 private:
  TempDir directory_;
  std::string tcp_, tls_, unix_, admin_;
  pid_t pid_ = -1;
};

std::string node_program();
std::string ctl_program();
std::string bench_program();
std::string policies_program();

}  // namespace kv::e2e
