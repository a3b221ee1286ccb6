#include "transport/tls/tls_network.h"

#include <utility>

#include "base/assert.h"
#include "transport/tls/tls_stream.h"

namespace kv {
namespace {

class TlsListener final : public Listener {
 public:
  TlsListener(std::unique_ptr<Listener> inner, std::shared_ptr<TlsSource> source)
      : inner_(std::move(inner)), source_(std::move(source)) {}

  Async<std::unique_ptr<Stream>> accept(asio::any_io_executor executor) override {
    auto stream = co_await inner_->accept(executor);
    if (!stream) co_return stream.error();
    co_return std::unique_ptr<Stream>(std::make_unique<TlsStream>(std::move(*stream), source_->current()));
  }
  void close() override { inner_->close(); }
  Endpoint endpoint() const override {
    Endpoint endpoint = inner_->endpoint();
    endpoint.scheme = Endpoint::Scheme::kTls;
    return endpoint;
  }

 private:
  std::unique_ptr<Listener> inner_;
  std::shared_ptr<TlsSource> source_;
};

class TlsNetwork final : public Network {
 public:
  TlsNetwork(Network& inner, std::shared_ptr<TlsSource> source, TlsNetworkOptions options)
      : inner_(inner), source_(std::move(source)), options_(std::move(options)) {
    KV_ASSERT(source_ != nullptr);
  }

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, asio::any_io_executor executor) override {
    if (endpoint.scheme != Endpoint::Scheme::kTls) return inner_.listen(endpoint, std::move(executor));
    auto listener = inner_.listen(plain(endpoint), std::move(executor));
    if (!listener) return listener.error();
    return std::unique_ptr<Listener>(std::make_unique<TlsListener>(std::move(*listener), source_));
  }

  Async<std::unique_ptr<Stream>> connect(Endpoint endpoint, asio::any_io_executor executor) override {
    if (endpoint.scheme == Endpoint::Scheme::kTcp && !options_.allows_plain)
      co_return error_code(TlsErrc::kPlainRefused);
    if (endpoint.scheme != Endpoint::Scheme::kTls) co_return co_await inner_.connect(std::move(endpoint), executor);
    const std::string name = options_.server_name.empty() ? endpoint.host : options_.server_name;
    auto plain_stream = co_await inner_.connect(plain(endpoint), executor);
    if (!plain_stream) co_return plain_stream.error();
    (void)source_->reload_if_changed();  // bad files may be good at the next try; until then the old credentials stay
    auto stream = std::make_unique<TlsStream>(std::move(*plain_stream), source_->current(), name);
    const auto up = co_await stream->handshake(/*helpers=*/nullptr);
    if (!up) co_return up.error();
    co_return std::unique_ptr<Stream>(std::move(stream));
  }

 private:
  static Endpoint plain(Endpoint endpoint) {
    endpoint.scheme = Endpoint::Scheme::kTcp;
    return endpoint;
  }

  Network& inner_;
  std::shared_ptr<TlsSource> source_;
  TlsNetworkOptions options_;
};

}  // namespace

std::unique_ptr<Network> make_tls_network(Network& inner, std::shared_ptr<TlsSource> source,
                                          TlsNetworkOptions options) {
  return std::make_unique<TlsNetwork>(inner, std::move(source), std::move(options));
}

}  // namespace kv
