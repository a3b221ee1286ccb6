#include "store/node/listen/admin.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <optional>
#include <thread>

#include "base/assert.h"
#include "store/node/listen/admin_connections.h"
#include "store/node/listen/handshake_rate.h"
#include "store/node/status/page.h"
#include "store/node/threads/thread_border.h"
#include "transport/both_families.h"
#include "transport/tls/tls_identity.h"

namespace kv {

namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

namespace {
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kTimeout(5);  ///< Of each request and each answer.
constexpr std::size_t kConnectionsMax = 64;  ///< Each takes a descriptor, as does each session.
constexpr int kPagesMax = 16;                ///< Being awaited; more are refused.
constexpr double kHandshakesPerSecond = 64;  ///< At most half from one address: 64 take a tenth of the thread's time.

/// Whether a Host header names an address, or this machine. A web page can make any other name resolve to the loopback:
/// to a browser, the page and this server then have one origin, and its script could read the answers.
bool is_address(std::string_view host) {
  if (host.starts_with('[')) return host.find(']') != std::string_view::npos;
  const std::string name(host.substr(0, host.rfind(':')));
  boost::system::error_code is_none;
  asio::ip::make_address(name, is_none);
  return host.empty() || beast::iequals(name, "localhost") || !is_none;
}
bool is_health(std::string_view path) { return path == "/healthz" || path == "/readyz"; }

struct Peer {
  PeerIdentity identity;
  bool is_loopback = false;  ///< By its address, with or without TLS.
  /// A kept-alive connection ends with its certificate.
  std::chrono::system_clock::time_point certificate_end = std::chrono::system_clock::time_point::max();
};

}  // namespace

struct AdminServer::Impl {
  Impl(AdminPages given, std::shared_ptr<TlsSource> certificates, AccessControl* control, Clock* given_clock)
      : starting(std::move(given)),
        tls(std::move(certificates)),
        access(control),
        clock(given_clock == nullptr ? own_clock : *given_clock) {}

  /// Identifies the peer, and checks its right to pages other than questions. False: the response says why not.
  bool permit(std::string_view path, const http::request<http::empty_body>& request, const Peer& from,
              http::response<http::string_body>& response, PeerAccess& asked, const AdminPages& pages) const {
    PeerIdentity peer = from.identity;
    peer.is_here = from.is_loopback;
    const auto refuse = [&](http::status status, const std::string& why) {
      response.result(status);
      response.body() = why + "\n";
      return false;
    };
    const Rule rule = rule_for(path);
    if (!pages.metrics && rule.right != Right::kNobody && !is_health(path))
      return refuse(http::status::service_unavailable, "not ready: " + pages.why_not_ready());
    if (rule.right == Right::kNobody || (!pages.answer && (is_question(path) || path == "/status")))
      return refuse(http::status::not_found,
                    "not found; there are /status, /metrics, /healthz, /readyz and /config/list.json");
    if (access == nullptr || !access->has_policy()) {
      asked.identify(std::move(peer));
      return true;
    }
    constexpr std::string_view kBearer = "Bearer ";
    const auto header = request[http::field::authorization];
    const std::string_view given(header.data(), header.size());
    if (beast::iequals(header.substr(0, kBearer.size()), kBearer)) {
      if (peer.protection == Stream::Protection::kNone) {
        access->token_refused();
        return refuse(http::status::forbidden,
                      "the token came in plain text over a network, where others may have read "
                      "it: replace it, and use https:// or loopback");
      }
      peer.token = token_hash(given.substr(kBearer.size()));
    }
    const bool has_token = peer.token.has_value();
    asked.identify(std::move(peer));
    if (has_token && asked.grant().section.empty()) {
      access->token_refused();
      response.set(http::field::www_authenticate, "Bearer");
      return refuse(http::status::unauthorized, "the node's policy does not have this token");
    }
    if (is_question(path)) return true;  // its answer checks
    const std::string why = asked.denial(path, rule);
    if (why.empty()) return true;
    if (pages.denied) pages.denied(rule.right);
    return refuse(http::status::forbidden, why);
  }

  static http::status status_of(const error_code& code) {
    if (!code) return http::status::ok;
    if (code == Errc::kPermissionDenied) return http::status::forbidden;
    if (code == Errc::kNotFound) return http::status::not_found;
    if (code == Errc::kBusy) return http::status::service_unavailable;
    return code == Errc::kBadRequest ? http::status::bad_request : http::status::internal_server_error;
  }

  /// An act needs a header that a web page of another origin cannot send unasked.
  static void answer_question(std::string_view path, std::string_view query,
                              const http::request<http::empty_body>& request, const Peer& peer, PeerAccess& asked,
                              http::response<http::string_body>& response, const AdminPages& pages) {
    response.set(http::field::cache_control, "no-store");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    const auto refuse = [&](const char* why) {
      response.result(http::status::forbidden);
      response.body() = why;
    };
    const auto host = request[http::field::host];
    if (peer.identity.protection == Stream::Protection::kLocal && !is_address({host.data(), host.size()}))
      return refuse("by this name anybody's web page might ask: use the address, or localhost\n");
    if (is_act(path) && request["X-Kvstore-Config"].empty())
      return refuse("a change has the header X-Kvstore-Config, so that no web page can ask for it\n");
    const AdminQuestion question{.path = std::string(path), .query = std::string(query)};
    AdminAnswer answer = pages.answer(question, asked);
    response.result(status_of(answer.why.code));
    if (answer.json.empty()) {
      response.body() = answer.why.text + "\n";
    } else {
      response.set(http::field::content_type, "application/json");
      response.body() = std::move(answer.json);
    }
  }

  /// The page has no data and is for everybody; its script fetches the data with the browser's credentials.
  static void give_page(http::response<http::string_body>& response) {
    response.set(http::field::cache_control, "no-store");
    response.set("Referrer-Policy", "no-referrer");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    response.set(http::field::content_type, "text/html; charset=utf-8");
    response.set("Content-Security-Policy", status_page().policy);
    response.set("Cross-Origin-Opener-Policy", "same-origin");
    response.body() = status_page().html;
  }

  /// Where a request was no such, the answer that ends the connection; without a status there is nobody to tell.
  static std::optional<http::response<http::string_body>> refusal_of(const beast::error_code& error) {
    if (error.category() != make_error_code(http::error::bad_target).category() ||
        error == http::error::end_of_stream || error == http::error::partial_message)
      return std::nullopt;
    const bool is_large = error == http::error::header_limit || error == http::error::buffer_overflow;
    const bool has_body = error == http::error::unexpected_body || error == http::error::body_limit;
    http::response<http::string_body> response(is_large   ? http::status::request_header_fields_too_large
                                               : has_body ? http::status::payload_too_large
                                               : error == http::error::bad_version
                                                   ? http::status::http_version_not_supported
                                                   : http::status::bad_request,
                                               11);
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    response.body() = is_large   ? "the request line and headers take more than 8 KiB\n"
                      : has_body ? "a request has no body here; values stand in the query, behind '?'\n"
                                 : "this is no request of HTTP/1.1: " + error.message() + "\n";
    response.keep_alive(false);
    response.prepare_payload();
    return response;
  }

  /// Reads what a refused client still sends, within bounds: closing with unread bytes would take the answer from it.
  template <class AnyStream>
  static asio::awaitable<void> read_rest(AnyStream& stream) {
    std::array<char, 4096> rest;
    for (int i = 0; i < 256; ++i) {
      const auto [error, count] = co_await stream.async_read_some(asio::buffer(rest), kAwait);
      if (error) co_return;
    }
  }

  /// A proxy may be sent, and pass on, the whole URL.
  static std::string_view target_of(const http::request<http::empty_body>& request) {
    std::string_view target(request.target().data(), request.target().size());
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!target.starts_with(scheme)) continue;
      const std::size_t path = target.find('/', scheme.size());
      return path == std::string_view::npos ? "/" : target.substr(path);
    }
    return target;
  }

  http::response<http::string_body> answer(const http::request<http::empty_body>& request, const Peer& peer) const {
    http::response<http::string_body> response(http::status::ok, request.version());
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    response.set("X-Content-Type-Options", "nosniff");
    const std::string_view target = target_of(request);
    const std::string_view path = target.substr(0, target.find('?'));
    const std::string_view query = target.substr(std::min(target.size(), path.size() + 1));
    const bool is_get = request.method() == http::verb::get || request.method() == http::verb::head;
    const AdminPages& pages = *pages_now.load();
    PeerAccess asked(access);
    if (is_act(path) ? request.method() != http::verb::post : !is_get) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, is_act(path) ? "POST" : "GET, HEAD");
      response.body() = is_act(path) ? "only POST\n" : "only GET and HEAD\n";
    } else if (!permit(path, request, peer, response, asked, pages)) {
      // permit() has made the response
    } else if (is_question(path)) {
      answer_question(path, query, request, peer, asked, response, pages);
    } else if (path == "/metrics") {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      response.body() = pages.metrics();
    } else if (path == "/healthz") {
      const std::string why = pages.why_unhealthy();
      if (!why.empty()) response.result(http::status::service_unavailable);
      response.body() = (why.empty() ? "ok" : why) + "\n";
    } else if (path == "/readyz") {
      const bool ready = pages.is_ready();
      if (!ready) response.result(http::status::service_unavailable);
      response.body() = ready ? "ready\n" : "not ready: " + pages.why_not_ready() + "\n";
    } else if (path == "/status") {
      give_page(response);
    } else {
      KV_ASSERT(path == "/");  // the table's last one
      response.body() =
          "kvstore-node\n/status   a page to look at\n/metrics  Prometheus metrics\n/healthz  its threads take work\n"
          "/readyz   it takes work\n";
    }
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  asio::awaitable<http::response<http::string_body>> answer_there(const http::request<http::empty_body>& request,
                                                                  const Peer& peer) {
    co_return answer(request, peer);
  }

  /// A slow page is made on a thread of its kind, so that probes do not wait for it. It runs as a separate coroutine
  /// there: one that changes its thread could continue with the other thread's thread-local variables.
  asio::awaitable<http::response<http::string_body>> make(const http::request<http::empty_body>& request,
                                                          const Peer& peer) {
    const std::string_view target = target_of(request);
    const std::string_view path = target.substr(0, target.find('?'));
    const bool is_scrape = path == "/metrics";
    if (!is_scrape && !is_question(path)) co_return answer(request, peer);
    Maker& maker = is_scrape ? scrapes : slow;
    if (maker.page_count >= kPagesMax) {
      http::response<http::string_body> response(http::status::service_unavailable, request.version());
      response.body() = "as many pages as may be are waited for\n";
      response.keep_alive(request.keep_alive());
      response.prepare_payload();
      co_return response;
    }
    ++maker.page_count;
    const auto less = [](Maker* each) { --each->page_count; };
    const std::unique_ptr<Maker, decltype(less)> counted(&maker, less);
    co_return co_await asio::co_spawn(maker.thread, answer_there(request, peer), asio::use_awaitable);
  }

  /// A request with a body, or none of HTTP/1.1, is refused and ends the connection. Limits of size and time end slow
  /// clients.
  template <class AnyStream>
  asio::awaitable<void> serve_requests(AnyStream& stream, Peer peer, AdminConnections::Place place) {
    beast::tcp_stream& socket = beast::get_lowest_layer(stream);
    beast::flat_buffer buffer(8 * 1024);
    while (true) {
      http::request_parser<http::empty_body> parser;
      parser.header_limit(8 * 1024);
      socket.expires_after(kTimeout);
      const auto [read_error, read_bytes] = co_await http::async_read(stream, buffer, parser, kAwait);
      if (read_error) {
        auto refusal = refusal_of(read_error);
        if (!refusal) break;
        socket.expires_after(kTimeout);
        const auto [tell_error, told_bytes] = co_await http::async_write(stream, *refusal, kAwait);
        beast::error_code ignored;
        socket.socket().shutdown(tcp::socket::shutdown_send, ignored);
        if (!tell_error) co_await read_rest(stream);
        break;
      }
      connections.did_something(place);
      auto response = co_await make(parser.get(), peer);
      if (std::chrono::system_clock::now() >= peer.certificate_end) response.keep_alive(false);
      socket.expires_after(kTimeout);
      const auto [write_error, write_bytes] = co_await http::async_write(stream, response, kAwait);
      if (write_error || response.need_eof()) break;
      connections.did_something(place);
    }
  }

  /// A connection's place, as long as its stream lives.
  template <class AnyStream>
  auto enter(AnyStream& stream, const std::string& peer) {
    const auto leave = [this](AdminConnections::Place* place) {
      connections.leave(*place);
      delete place;
    };
    const auto place = connections.enter(peer, [&socket = beast::get_lowest_layer(stream)] { socket.close(); });
    return std::unique_ptr<AdminConnections::Place, decltype(leave)>(new AdminConnections::Place(place), leave);
  }

  asio::awaitable<void> serve(tcp::socket socket) {
    beast::error_code ignored;
    const auto remote = socket.remote_endpoint(ignored);
    const asio::ip::address from = unmapped(remote.address());
    const std::string address = from.to_string();
    Peer peer{.identity = {}, .is_loopback = !ignored && from.is_loopback()};
    if (tls) {
      // Handshakes for newcomers would take time from present clients: above the rate, close at once without a message.
      if (handshakes.take(address, clock.now()) != HandshakeRate::Verdict::kBegin) co_return;
      const auto now = tls->current();
      SSL_CTX_up_ref(now->context());  // Asio's context takes over one reference
      asio::ssl::context own(now->context());
      beast::ssl_stream<beast::tcp_stream> stream(beast::tcp_stream(std::move(socket)), own);
      const auto place = enter(stream, address);
      beast::get_lowest_layer(stream).expires_after(kTimeout);
      const auto [failed] = co_await stream.async_handshake(asio::ssl::stream_base::server, kAwait);
      if (!failed) {
        peer.identity.protection = Stream::Protection::kTls;
        if (X509* const shown = SSL_get1_peer_certificate(stream.native_handle())) {
          peer.identity.names = names_of(*shown);
          peer.certificate_end = end_of(*shown);
          X509_free(shown);
        }
        co_await serve_requests(stream, std::move(peer), *place);
        beast::get_lowest_layer(stream).expires_after(kTimeout);
        co_await stream.async_shutdown(kAwait);
      }
      beast::get_lowest_layer(stream).socket().shutdown(tcp::socket::shutdown_both, ignored);
    } else {
      if (peer.is_loopback) peer.identity.protection = Stream::Protection::kLocal;
      beast::tcp_stream stream(std::move(socket));
      const auto place = enter(stream, address);
      co_await serve_requests(stream, std::move(peer), *place);
      stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
    }
  }

  asio::awaitable<void> accept() {
    while (true) {
      auto [error, socket] = co_await acceptor.async_accept(kAwait);
      if (error == asio::error::operation_aborted) co_return;
      if (error) {
        // Sessions leave some descriptors free (transport/socket_network.cc). At the limit, a connection ends.
        const bool is_short =
            error == asio::error::no_descriptors || error == boost::system::errc::too_many_files_open_in_system;
        if (is_short && connections.end_one()) continue;
        asio::steady_timer pause(context, std::chrono::milliseconds(100));  // avoids spinning
        co_await pause.async_wait(kAwait);
        continue;
      }
      asio::co_spawn(context, serve(std::move(socket)), asio::detached);
    }
  }

  struct Maker {
    asio::thread_pool thread{1};
    int page_count = 0;  ///< Being awaited.
  };

  const AdminPages starting;
  AdminPages opened;
  std::atomic<const AdminPages*> pages_now{&starting};
  std::shared_ptr<TlsSource> tls;
  AccessControl* access;
  SteadyClock own_clock;
  Clock& clock;
  AdminConnections connections{kConnectionsMax};  // on the server's thread, like all but `slow`, `scrapes` and `thread`
  HandshakeRate handshakes{kHandshakesPerSecond};
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  Maker slow, scrapes;
  std::thread thread;
};

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

/// Its own thread serves metrics while I/O threads are busy, and keeps scrapes from delaying gets.
Result<std::unique_ptr<AdminServer>> AdminServer::start(const std::string& host, std::uint16_t port, AdminPages pages,
                                                        std::shared_ptr<TlsSource> tls, AccessControl* access,
                                                        Clock* clock) {
  KV_ASSERT(pages.is_ready && pages.why_not_ready);
  auto impl = std::make_unique<Impl>(std::move(pages), std::move(tls), access, clock);
  boost::system::error_code error;
  tcp::endpoint endpoint(asio::ip::make_address(host, error), port);
  if (error) return error;
  open_for(impl->acceptor, endpoint, error);
  if (!error) impl->acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) impl->acceptor.bind(endpoint, error);
  if (!error) impl->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return error;
  asio::co_spawn(impl->context, impl->accept(), asio::detached);
  impl->thread = std::thread([&context = impl->context] { run_within_border(NodeThread::kAdmin, context); });
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

void AdminServer::open(AdminPages pages) {
  KV_ASSERT(pages.metrics && pages.is_ready && pages.why_not_ready && impl_->pages_now == &impl_->starting);
  impl_->opened = std::move(pages);
  impl_->pages_now = &impl_->opened;
}

AdminServer::~AdminServer() {
  // Pages may use members that are destroyed after this. Joining the threads ends all calls of pages.
  impl_->slow.thread.join();  // a page in progress returns to the context
  impl_->scrapes.thread.join();
  impl_->context.stop();
  impl_->thread.join();
}

std::uint16_t AdminServer::port() const { return impl_->acceptor.local_endpoint().port(); }

}  // namespace kv
