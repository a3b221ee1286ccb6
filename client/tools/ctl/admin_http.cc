#include "client/tools/ctl/admin_http.h"

#include <CLI/CLI.hpp>
#include <array>
#include <boost/asio/detached.hpp>
#include <boost/asio/this_coro.hpp>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "transport/tls/tls_network.h"

namespace kv {
namespace {

constexpr std::string_view kHttp = "http://", kHttps = "https://";
constexpr std::size_t kAnswerBytesMax = 4 << 20;

std::string host_of(const std::string& address) {
  if (is_https(address)) return address.substr(kHttps.size());
  return address.starts_with(kHttp) ? address.substr(kHttp.size()) : address;
}

Endpoint endpoint_of(const std::string& address) {
  const auto endpoint = parse_endpoint((is_https(address) ? "tls://" : "tcp://") + host_of(address));
  if (!endpoint) throw CLI::ValidationError("--admin", "'" + address + "' is not HOST:PORT or https://HOST:PORT");
  return *endpoint;
}

asio::awaitable<void> converse(Network& network, Endpoint endpoint, std::string request, std::string& answer,
                               std::string& wrong) {
  auto stream = co_await network.connect(std::move(endpoint), co_await asio::this_coro::executor);
  if (!stream) {
    wrong = stream.error().message();
    co_return;
  }
  for (std::string_view left = request; !left.empty();) {
    const asio::const_buffer out(left.data(), left.size());
    const auto sent = (*stream)->try_write(std::span(&out, 1));
    if (sent) {
      left.remove_prefix(*sent);
    } else if (sent.error() != asio::error::would_block) {
      wrong = sent.error().message();
      co_return;
    } else if (const auto ready = co_await (*stream)->wait_writable(); !ready) {
      co_return;
    }
  }
  std::array<char, 16384> bytes;
  const asio::mutable_buffer in(bytes.data(), bytes.size());
  while (answer.size() < kAnswerBytesMax) {
    const auto got = (*stream)->try_read(std::span(&in, 1));
    if (got) {
      answer.append(bytes.data(), *got);
      continue;
    }
    if (got.error() != asio::error::would_block) {
      if (got.error() != asio::error::eof) wrong = got.error().message();
      co_return;
    }
    if (const auto ready = co_await (*stream)->wait_readable(); !ready) co_return;
  }
}

}  // namespace

bool is_https(const std::string& address) { return address.starts_with(kHttps); }

bool is_loopback(const std::string& address) { return endpoint_of(address).is_loopback(); }

HttpAnswer ask_http(const ConnectionOptions& node, const std::string& address, const std::string& method,
                    const std::string& target, const std::string& fields) {
  Endpoint endpoint = endpoint_of(address);
  std::string request =
      method + " " + target + " HTTP/1.1\r\nHost: " + host_of(address) + "\r\nConnection: close\r\n" + fields + "\r\n";
  std::unique_ptr<Network> tls;
  if (is_https(address)) {
    auto source = TlsSource::open(node.tls, TlsSide::kClient);
    if (!source) return {0, source.error().text, ""};
    tls = make_tls_network(socket_network(), std::move(*source), {.server_name = node.tls.server_name});
  }
  std::string text, wrong;
  asio::io_context context{1};  // its coroutine uses the objects above, and goes first
  asio::co_spawn(context, converse(tls ? *tls : socket_network(), std::move(endpoint), std::move(request), text, wrong),
                 asio::detached);
  context.run_for(node.deadline);
  const std::size_t head = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.") || head == std::string::npos || text.size() < 12)
    return {0, wrong.empty() ? "no answer" : wrong, ""};
  return {std::atoi(text.c_str() + 9), text.substr(9, text.find("\r\n") - 9), text.substr(head + 4)};
}

}  // namespace kv
