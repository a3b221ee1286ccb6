// transport/endpoint.h: addresses as people write them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace kv {

/// `tcp://HOST:PORT` (IPv4, [IPv6] or a name), `tls://HOST:PORT` (TLS 1.3) or `unix://PATH`; in tests also
/// `sim://NAME`, in a network inside one process.
struct Endpoint {
  enum class Scheme { kTcp, kUnix, kSim, kTls };
  Scheme scheme = Scheme::kTcp;
  std::string host;  ///< Host, path or name.
  std::string port;  ///< Decimal; TCP and TLS only.

  std::string to_string() const;
  bool is_loopback() const;  ///< True for Unix and sim; else if the host is in 127.0.0.0/8, ::1 or localhost.
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// Errors: kBadRequest; the words say what is wrong with `text` and which forms are allowed.
Result<Endpoint, Failure> parse_endpoint(std::string_view text);

}  // namespace kv
