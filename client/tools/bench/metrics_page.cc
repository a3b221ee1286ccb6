#include "client/tools/bench/metrics_page.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "transport/endpoint.h"

namespace kv {

MetricsPage::MetricsPage(const std::string& listen) {
  const auto endpoint = parse_endpoint("tcp://" + listen);
  if (!endpoint) throw std::runtime_error("--metrics-listen: " + endpoint.error().text);
  boost::system::error_code error;
  const auto address = asio::ip::make_address(endpoint->host == "localhost" ? "127.0.0.1" : endpoint->host, error);
  const asio::ip::tcp::endpoint where(address, static_cast<std::uint16_t>(std::stoi(endpoint->port)));
  if (!error) acceptor_.open(where.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(where, error);
  if (!error) acceptor_.listen(8, error);
  if (error) throw std::runtime_error("--metrics-listen: " + listen + ": " + error.message());
  accept();
  thread_ = std::thread([this] { context_.run(); });
}

MetricsPage::~MetricsPage() {
  context_.stop();
  thread_.join();
}

void MetricsPage::set(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void MetricsPage::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, asio::ip::tcp::socket socket) {
    if (!error) answer(std::move(socket));
    accept();
  });
}

/// Blocking, with a bound: this thread serves no other purpose.
void MetricsPage::answer(asio::ip::tcp::socket socket) {
  constexpr int kPatienceMs = 1000;
  pollfd readable{socket.native_handle(), POLLIN, 0};
  std::array<char, 8192> request;
  if (::poll(&readable, 1, kPatienceMs) <= 0 || ::recv(readable.fd, request.data(), request.size(), 0) <= 0) return;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = text_;
  }
  text =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: "
      "close\r\nContent-Length: " +
      std::to_string(text.size()) + "\r\n\r\n" + text;
  for (std::size_t sent = 0; sent < text.size();) {
    pollfd writable{socket.native_handle(), POLLOUT, 0};
    if (::poll(&writable, 1, kPatienceMs) <= 0) return;
    const ssize_t count = ::send(writable.fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

}  // namespace kv
