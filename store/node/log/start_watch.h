// store/node/log/start_watch.h: a start that takes minutes: reports its progress, and allows ending it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace kv {

class LogWriter;

/// Touching much memory, asking for keys and registering with RDMA devices take the main thread minutes. The watch
///   1. reports progress: text(), for /readyz and the log;
///   2. asks systemd for more time after each step, or it would kill a large node in a loop;
///   3. ends the process at SIGTERM and SIGINT, which is safe: it holds no blocks yet.
/// Thread safety: all calls from any thread.
class StartWatch {
 public:
  StartWatch(std::uint64_t memory_bytes, LogWriter& log);  ///< Total to be touched; `log` outlives this.
  ~StartWatch();
  void finish();  ///< The node serves: signals have another handler from here on.

  void touched(std::uint64_t bytes);    ///< Adds to the touched bytes.
  void begins(std::string_view phase);  ///< A phase after the memory.
  std::string text() const;             ///< "starting: 12 of 300 GiB of memory are ready".

 private:
  void tell_systemd();

  const std::uint64_t memory_bytes_;
  LogWriter& log_;
  mutable std::mutex mutex_;  ///< Guards the members below.
  std::uint64_t touched_bytes_ = 0, logged_bytes_ = 0;
  std::string phase_;
  std::chrono::steady_clock::time_point told_{};
  boost::asio::io_context context_{1};
  std::thread thread_;
};

}  // namespace kv
