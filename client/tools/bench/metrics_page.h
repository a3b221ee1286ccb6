// client/tools/bench/metrics_page.h: what a replay's client has seen, for a Prometheus that looks at this process.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"

namespace kv {

/// An HTTP page on a thread of its own: whatever is asked for, the answer is the text that was set last. For loopback
/// and for the time of a replay, one request after the other, each with a second to come.
/// Thread safety: set() from any thread.
class MetricsPage {
 public:
  explicit MetricsPage(const std::string& listen);  ///< HOST:PORT. Throws std::runtime_error.
  ~MetricsPage();
  MetricsPage(const MetricsPage&) = delete;
  MetricsPage& operator=(const MetricsPage&) = delete;

  void set(std::string text);

 private:
  void accept();
  void answer(asio::ip::tcp::socket socket);

  asio::io_context context_{1};
  asio::ip::tcp::acceptor acceptor_{context_};
  std::mutex mutex_;
  std::string text_;
  std::thread thread_;
};

}  // namespace kv
