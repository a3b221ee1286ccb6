// client/tools/bench/metrics_page.h: the metrics of a replay's client, for a Prometheus that scrapes this process.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"

namespace kv {

/// An HTTP page on its own thread: every request gets the text that was set last. For loopback and the time of a
/// replay, one request after the other, each with a second to arrive. Thread safety: set() from any thread.
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
