#include "transport/endpoint.h"

#include <algorithm>

#include "base/text/quantity.h"

namespace kv {
namespace {

constexpr std::size_t kHostBytesMax = 253;

}  // namespace

std::string Endpoint::to_string() const {
  switch (scheme) {
    case Scheme::kUnix: return "unix://" + host;
    case Scheme::kSim: return "sim://" + host;
    case Scheme::kTcp:
    case Scheme::kTls: break;
  }
  const bool is_v6 = host.find(':') != std::string::npos;
  return (scheme == Scheme::kTls ? "tls://" : "tcp://") + (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

bool Endpoint::is_loopback() const {
  if (scheme != Scheme::kTcp && scheme != Scheme::kTls) return true;
  // Decides whether a node may listen without TLS: when in doubt, not loopback.
  if (host == "::1" || host == "localhost") return true;
  // A name such as 127.example.org must not pass for an address: only digits and dots count.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

/// Strict: a mistake refused here shows at the command line; an accepted one would fail much later, in a log.
Result<Endpoint, Failure> parse_endpoint(std::string_view text) {
  const auto fail = [&](const std::string& what) {
    return Failure(Errc::kBadRequest,
                   "endpoint '" + std::string(text.substr(0, 256)) + "': " + what +
                       " (allowed: tcp://HOST:PORT, tcp://[IPV6]:PORT, tls://HOST:PORT, unix:///PATH)");
  };
  Endpoint endpoint;
  if (text.starts_with("unix://")) {
    endpoint.scheme = Endpoint::Scheme::kUnix;
    endpoint.host = text.substr(7);
    if (endpoint.host.empty() || endpoint.host.find('\0') != std::string::npos) return fail("the path is empty");
    // sockaddr_un has 108 bytes, including the terminating zero.
    if (endpoint.host.size() > 107) return fail("the path is longer than the 107 bytes a Unix socket allows");
    return endpoint;
  }
  if (text.starts_with("sim://")) {
    endpoint.scheme = Endpoint::Scheme::kSim;
    endpoint.host = text.substr(6);
    if (endpoint.host.empty()) return fail("the name is empty");
    return endpoint;
  }
  if (!text.starts_with("tcp://") && !text.starts_with("tls://")) return fail("unknown scheme");
  if (text.starts_with("tls://")) endpoint.scheme = Endpoint::Scheme::kTls;
  std::string_view rest = text.substr(6);
  if (rest.ends_with('/')) rest.remove_suffix(1);  // as in a URL
  // The last colon: IPv6 addresses, in brackets, have more.
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return fail("the port is missing");
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return fail("'[' without ']'");
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos) return fail("only an IPv6 address stands in brackets");
  } else if (host.find(':') != std::string_view::npos) {
    return fail("an IPv6 address stands in brackets");
  }
  // The longest valid name; TLS refuses longer ones (RFC 1035, RFC 6066).
  if (host.size() > kHostBytesMax) return fail("the host is longer than 253 bytes");
  const auto is_of_host = [](char c) { return c > ' ' && c < 127 && c != '/'; };
  if (host.empty() || !std::ranges::all_of(host, is_of_host)) return fail("the host is not valid");
  if (!parse_number<std::uint16_t>(port)) return fail("the port is not 0..65535");
  endpoint.host = host;
  endpoint.port = port;
  return endpoint;
}

}  // namespace kv
