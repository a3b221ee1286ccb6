// store/node/start_watch.h: a start that takes minutes: how far it is, and its end when somebody wants it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace kv {

/// Touching the memory of a large node, asking for keys and registering with RDMA devices keep the main thread for
/// minutes, each in one call. Meanwhile somebody has to
///   1. say how far it is: text(), for /readyz and the log;
///   2. ask systemd for more time after each step forward, or it kills a large node in a loop;
///   3. end the process at SIGTERM and SIGINT. Nothing is lost with it: it has taken no block yet.
/// Thread safety: all calls from any thread.
class StartWatch {
 public:
  explicit StartWatch(std::uint64_t memory_bytes);  ///< All that is to be touched.
  ~StartWatch();
  void finish();  ///< The node serves: from here on signals are for somebody else.

  void touched(std::uint64_t bytes);    ///< So many of them have been.
  void begins(std::string_view phase);  ///< What comes behind the memory.
  std::string text() const;             ///< "starting: 12 of 300 GiB of memory are ready".

 private:
  void tell_systemd();

  const std::uint64_t memory_bytes_;
  mutable std::mutex mutex_;  ///< Of what follows.
  std::uint64_t touched_bytes_ = 0, logged_bytes_ = 0;
  std::string phase_;
  std::chrono::steady_clock::time_point told_{};
  boost::asio::io_context context_{1};
  std::thread thread_;
};

}  // namespace kv
