#include "store/node/membership/etcd.h"

#include <spdlog/fmt/fmt.h>

#include <openssl/evp.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/text/printable.h"
#include "base/text/quantity.h"
#include "transport/connect_first.h"
#include "transport/endpoint.h"
#include "transport/resolver.h"

namespace kv {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using nlohmann::json;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kAnswerBytesMax = 8 << 20, kTokenBytesMax = 8192;

// gRPC's codes, which etcd uses.
constexpr int kNotFound = 5, kUnauthenticated = 16;

struct Address {
  bool is_tls = false;
  std::string host, port;
};

Result<Address, Failure> parse_address(const std::string& text) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  const std::string_view scheme = text.starts_with(kTls) ? kTls : kPlain;
  const auto endpoint = parse_endpoint("tcp://" + text.substr(std::min(text.size(), scheme.size())));
  if (!text.starts_with(scheme) || !endpoint)
    return Failure(Errc::kBadRequest,
                   "etcd: '" + printable(text) + "', allowed are http://HOST:PORT and https://HOST:PORT");
  return Address{scheme == kTls, endpoint->host, endpoint->port};
}

std::string to_base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3), '\0');
  const int written =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  KV_ASSERT(static_cast<std::size_t>(written) == text.size());
  return text;
}

/// nullopt: not base64.
std::optional<std::string> from_base64(const std::string& text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int written =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (written < 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  bytes.resize(static_cast<std::size_t>(written) - padding);
  return bytes;
}

/// The gateway writes 64-bit numbers as texts, and omits zeros. nullopt: another type.
std::optional<std::int64_t> number_of(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  return found->is_string() ? parse_number<std::int64_t>(found->get_ref<const std::string&>()) : std::nullopt;
}

/// A field in base64; empty if absent. nullopt: another type.
std::optional<std::string> bytes_of(const json& object, const char* field) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(field);
  if (found == object.end()) return std::string();
  return found->is_string() ? from_base64(found->get<std::string>()) : std::nullopt;
}

/// The first key after all keys with this prefix.
std::string end_of(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xFF) prefix.pop_back();
  KV_ASSERT(!prefix.empty());
  ++prefix.back();
  return prefix;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  return line;
}

// Requests are made outside of the coroutines that send them: GCC 12 rejects initializer lists there.
std::string lease_request(KeyStore::Lease lease) { return json{{"ID", std::to_string(lease)}}.dump(); }
std::string grant_request(std::chrono::seconds life) { return json{{"TTL", std::to_string(life.count())}}.dump(); }
json put_of(const std::string& key, const std::string& value) {
  return {{"key", to_base64(key)}, {"value", to_base64(value)}};
}
std::string put_request(const std::string& key, const std::string& value, KeyStore::Lease lease) {
  json put = put_of(key, value);
  put["lease"] = std::to_string(lease);
  return put.dump();
}
std::string put_new_request(const std::string& key, const std::string& value) {
  const json absent = {{"target", "CREATE"}, {"key", to_base64(key)}, {"create_revision", "0"}};
  const json put = {{"request_put", put_of(key, value)}};
  return json{{"compare", json::array({absent})}, {"success", json::array({put})}}.dump();
}
std::string list_request(const std::string& prefix) {
  return json{{"key", to_base64(prefix)}, {"range_end", to_base64(end_of(prefix))}, {"serializable", true}}.dump();
}
std::string login_request(const std::string& user, const std::string& password) {
  return json{{"name", user}, {"password", password}}.dump();
}

Failure malformed(const char* call) { return {Errc::kBadRequest, std::string("etcd: ") + call + ": malformed answer"}; }

}  // namespace

std::string check_etcd(const EtcdConfig& config) {
  for (const std::string& text : config.endpoints) {
    if (const auto address = parse_address(text); !address) return address.error().text;
  }
  if (config.cert_file.empty() != config.key_file.empty())
    return std::string(config.cert_file.empty() ? "etcd-key" : "etcd-cert") +
           ": given alone; allowed: etcd-cert and etcd-key";
  if (config.user.empty() != config.password_file.empty())
    return std::string(config.user.empty() ? "etcd-password-file" : "etcd-user") +
           ": given alone; allowed: etcd-user and etcd-password-file";
  for (const auto& [option, path] :
       {std::pair("etcd-ca", &config.ca_file), std::pair("etcd-cert", &config.cert_file),
        std::pair("etcd-key", &config.key_file), std::pair("etcd-password-file", &config.password_file)}) {
    if (!path->empty() && !std::ifstream(*path)) return std::string(option) + ": " + *path + " cannot be read";
  }
  return "";
}

struct EtcdKeyStore::Impl {
  using Tls = beast::ssl_stream<beast::tcp_stream>;
  /// An answer with its HTTP status, also of failures.
  struct Answer {
    unsigned status = 0;
    json body;
  };
  struct Connection {
    std::optional<ssl::context> context;  ///< Outlives the stream.
    std::variant<std::monostate, beast::tcp_stream, Tls> stream;
    beast::flat_buffer buffer;
    beast::tcp_stream& lowest() {
      if (auto* const tls = std::get_if<Tls>(&stream)) return beast::get_lowest_layer(*tls);
      return std::get<beast::tcp_stream>(stream);
    }
  };

  Impl(asio::any_io_executor on, EtcdConfig given) : executor(std::move(on)), config(std::move(given)) {
    for (const std::string& text : config.endpoints) addresses.push_back(parse_address(text).value());
    KV_ASSERT(!addresses.empty());
  }

  static Async<std::unique_ptr<tcp::socket>> connect_to(tcp::endpoint at, asio::any_io_executor executor) {
    auto socket = std::make_unique<tcp::socket>(executor);
    const auto [error] = co_await socket->async_connect(at, kAwait);
    if (error) co_return error;
    co_return socket;
  }

  Async<std::unique_ptr<tcp::socket>> connect_to(const Address& address) {
    const auto found = co_await resolver.resolve(address.host, address.port, executor);
    if (!found) co_return found.error();
    const std::function<Async<std::unique_ptr<tcp::socket>>(std::size_t)> connect =
        [at = alternate_families(*found), on = executor](std::size_t i) { return connect_to(at[i], on); };
    co_return co_await connect_first(found->size(), connect, clock, executor);
  }

  /// Takes at most the timeout. A lookup cannot be cancelled; it continues on the resolver's thread.
  asio::awaitable<Failure> connect(const Address& address) {
    using namespace asio::experimental::awaitable_operators;
    asio::steady_timer timer(executor, config.timeout);
    auto either = co_await (connect_to(address) || timer.async_wait(kAwait));
    if (either.index() != 0) co_return Failure(asio::error::timed_out);
    auto& socket = std::get<0>(either);
    if (!socket) co_return Failure(socket.error());
    kept = std::make_unique<Connection>();
    Connection& connection = *kept;
    if (!address.is_tls) {
      connection.stream.emplace<beast::tcp_stream>(std::move(**socket));
      co_return Failure();
    }
    auto& context = connection.context.emplace(ssl::context::tls_client);
    if (const Failure failed = load(context); failed.code) co_return failed;
    auto& stream = connection.stream.emplace<Tls>(beast::tcp_stream(std::move(**socket)), context);
    stream.set_verify_callback(ssl::host_name_verification(address.host));
    SSL_set_tlsext_host_name(stream.native_handle(), address.host.c_str());
    beast::get_lowest_layer(stream).expires_after(config.timeout);
    const auto [error] = co_await stream.async_handshake(ssl::stream_base::client, kAwait);
    co_return error ? Failure(error, "TLS: " + error.message()) : Failure();
  }

  Failure load(ssl::context& context) const {
    error_code error;
    const auto failed = [&](const char* what) { return Failure(error, std::string(what) + ": " + error.message()); };
    context.set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    context.set_verify_mode(ssl::verify_peer);
    if (config.ca_file.empty()) {
      context.set_default_verify_paths(error);
    } else {
      context.load_verify_file(config.ca_file, error);
      // As between nodes: an intermediate CA suffices.
      X509_STORE_set_flags(SSL_CTX_get_cert_store(context.native_handle()), X509_V_FLAG_PARTIAL_CHAIN);
    }
    if (error) return failed("etcd-ca");
    if (config.cert_file.empty()) return {};
    context.use_certificate_chain_file(config.cert_file, error);
    if (error) return failed("etcd-cert");
    context.use_private_key_file(config.key_file, ssl::context::pem, error);
    return error ? failed("etcd-key") : Failure();
  }

  /// One request on the kept connection.
  asio::awaitable<Result<Answer, Failure>> exchange(const Address& address, const std::string& path,
                                                    const std::string& body) {
    Connection& connection = *kept;
    http::request<http::string_body> request(http::verb::post, path, 11);
    request.set(http::field::host, address.host + ":" + address.port);
    request.set(http::field::content_type, "application/json");
    if (!token.empty()) request.set(http::field::authorization, token);
    request.body() = body;
    request.prepare_payload();
    http::response_parser<http::string_body> parser;
    parser.body_limit(kAnswerBytesMax);
    const auto run = [&](auto& stream) -> asio::awaitable<error_code> {
      connection.lowest().expires_after(config.timeout);
      if (const auto [error, sent] = co_await http::async_write(stream, request, kAwait); error) co_return error;
      const auto [error, received] = co_await http::async_read(stream, connection.buffer, parser, kAwait);
      co_return error;
    };
    auto* const tls = std::get_if<Tls>(&connection.stream);
    const error_code error =
        tls != nullptr ? co_await run(*tls) : co_await run(std::get<beast::tcp_stream>(connection.stream));
    if (error) co_return Failure(error == beast::error::timeout ? error_code(asio::error::timed_out) : error);
    Answer answer;
    answer.status = parser.get().result_int();
    answer.body = json::parse(parser.get().body(), nullptr, /*allow_exceptions=*/false);
    if (!parser.get().keep_alive()) kept.reset();
    if (!answer.body.is_object()) co_return Failure(Errc::kBadFrame, "answered something that is no JSON object");
    co_return answer;
  }

  /// The same with endpoint `i`. Reconnects if the kept connection was closed meanwhile.
  asio::awaitable<Result<Answer, Failure>> ask(std::size_t i, const std::string& path, const std::string& body) {
    const Address& address = addresses[i];
    if (kept && kept_to != i) kept.reset();
    if (kept) {
      auto answer = co_await exchange(address, path, body);
      if (answer || answer.error() == asio::error::timed_out) co_return answer;
      kept.reset();
    }
    kept_to = i;
    if (const Failure failed = co_await connect(address); failed.code) co_return failed;
    co_return co_await exchange(address, path, body);
  }

  /// Tries the endpoints in turn, from the one that answered last.
  asio::awaitable<Result<Answer, Failure>> post(const std::string& path, const std::string& body) {
    Failure last;
    for (std::size_t tried = 0; tried < addresses.size(); ++tried) {
      const std::size_t i = (first + tried) % addresses.size();
      auto answer = co_await ask(i, path, body);
      // "No leader" and the like: another member may succeed.
      if (answer && (answer->status < 500 || tried + 1 == addresses.size())) {
        first = i;
        co_return answer;
      }
      kept.reset();
      const std::string why = answer ? fmt::format("status {}", answer->status) : answer.error().text;
      last = Failure(answer ? error_code(Errc::kUnavailable) : answer.error().code,
                     "etcd " + config.endpoints[i] + ": " + why);
    }
    co_return last;
  }

  asio::awaitable<Failure> log_in() {
    const std::string password = first_line(config.password_file);
    // JSON texts are UTF-8.
    if (!is_utf8(config.user) || !is_utf8(password))
      co_return Failure(Errc::kBadRequest, "etcd: etcd-user, or the first line of etcd-password-file, is not UTF-8");
    const std::string request = login_request(config.user, password);
    const auto answer = co_await post("/v3/auth/authenticate", request);
    if (!answer) co_return answer.error();
    const auto given = answer->body.find("token");
    if (answer->status != 200 || given == answer->body.end() || !given->is_string())
      co_return Failure(Errc::kUnavailable,
                        "etcd: user '" + printable(config.user) + "' is refused: " + why_not(answer->body));
    const auto& text = given->get_ref<const std::string&>();
    // The token becomes a header, which is bounded and on one line.
    const auto is_visible = [](char c) { return c > ' ' && c < 127; };
    if (text.empty() || text.size() > kTokenBytesMax || !std::ranges::all_of(text, is_visible))
      co_return Failure(Errc::kBadFrame, "etcd: user '" + printable(config.user) + "' was given a token that is none");
    token = text;
    co_return Failure();
  }

  static std::string why_not(const json& body) {
    const auto found = body.find("message");
    return found != body.end() && found->is_string() ? printable(found->get<std::string>().substr(0, 256))
                                                     : "no reason given";
  }

  /// A call with its answer. An expired token is replaced once. `missing`: whether the answer was "not found".
  asio::awaitable<Result<Answer, Failure>> call(const char* path, std::string text, bool* missing = nullptr) {
    for (int round = 0;; ++round) {
      if (!config.user.empty() && token.empty()) {
        if (const Failure failed = co_await log_in(); failed.code) co_return failed;
      }
      auto answer = co_await post(path, text);
      if (!answer) co_return answer.error();
      if (answer->status == 200) co_return answer;
      const int code = static_cast<int>(number_of(answer->body, "code").value_or(0));
      if (missing != nullptr && code == kNotFound) {
        *missing = true;
        co_return answer;
      }
      token.clear();
      if (round == 0 && !config.user.empty() && (code == kUnauthenticated || answer->status == 401)) continue;
      co_return Failure(Errc::kUnavailable, std::string("etcd: ") + path + ": " + why_not(answer->body));
    }
  }

  const asio::any_io_executor executor;
  const EtcdConfig config;
  std::vector<Address> addresses;
  SteadyClock clock;
  Resolver resolver;
  std::unique_ptr<Connection> kept;
  std::size_t kept_to = 0, first = 0;
  std::string token;
};

EtcdKeyStore::EtcdKeyStore(asio::any_io_executor executor, EtcdConfig config)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(config))) {}

EtcdKeyStore::~EtcdKeyStore() = default;

KeyStore::Reply<KeyStore::Lease> EtcdKeyStore::grant(std::chrono::seconds life) {
  const auto answer = co_await impl_->call("/v3/lease/grant", grant_request(life));
  if (!answer) co_return answer.error();
  const auto lease = number_of(answer->body, "ID");
  if (!lease || *lease == 0) co_return malformed("lease/grant");
  co_return *lease;
}

/// The answer is a stream of one element. Its TTL is 0, and so omitted, once the lease has ended.
KeyStore::Reply<bool> EtcdKeyStore::keep_alive(Lease lease) {
  const auto answer = co_await impl_->call("/v3/lease/keepalive", lease_request(lease));
  if (!answer) co_return answer.error();
  const auto result = answer->body.find("result");
  if (result == answer->body.end() || !result->is_object()) co_return malformed("lease/keepalive");
  const auto left = number_of(*result, "TTL");
  if (!left) co_return malformed("lease/keepalive");
  co_return *left > 0;
}

KeyStore::Reply<bool> EtcdKeyStore::revoke(Lease lease) {
  bool missing = false;
  const auto answer = co_await impl_->call("/v3/lease/revoke", lease_request(lease), &missing);
  if (!answer) co_return answer.error();
  co_return !missing;
}

KeyStore::Reply<bool> EtcdKeyStore::put(std::string key, std::string value, Lease lease) {
  bool missing = false;
  const auto answer = co_await impl_->call("/v3/kv/put", put_request(key, value, lease), &missing);
  if (!answer) co_return answer.error();
  co_return !missing;
}

KeyStore::Reply<bool> EtcdKeyStore::put_new(std::string key, std::string value) {
  const auto answer = co_await impl_->call("/v3/kv/txn", put_new_request(key, value));
  if (!answer) co_return answer.error();
  const auto succeeded = answer->body.find("succeeded");
  co_return succeeded != answer->body.end() && succeeded->is_boolean() && succeeded->get<bool>();
}

KeyStore::Reply<KeyStore::Listing> EtcdKeyStore::list(std::string prefix) {
  const auto answer = co_await impl_->call("/v3/kv/range", list_request(prefix));
  if (!answer) co_return answer.error();
  const auto header = answer->body.find("header");
  const auto revision =
      header != answer->body.end() && header->is_object() ? number_of(*header, "revision") : std::nullopt;
  if (!revision || *revision <= 0) co_return malformed("kv/range");
  Listing listing;
  listing.revision = static_cast<std::uint64_t>(*revision);
  if (const auto entries = answer->body.find("kvs"); entries != answer->body.end()) {
    if (!entries->is_array()) co_return malformed("kv/range");
    for (const json& each : *entries) {
      auto key = bytes_of(each, "key"), value = bytes_of(each, "value");
      if (!key || !value) co_return malformed("kv/range");
      listing.entries.push_back({std::move(*key), std::move(*value)});
    }
  }
  co_return listing;
}

}  // namespace kv
