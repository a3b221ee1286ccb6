// transport/tls/tls_network.h: tls:// endpoints, over a network of tcp:// ones.
#pragma once

#include <memory>
#include <string>

#include "transport/stream.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct TlsNetworkOptions {
  std::string server_name = {};  ///< As TlsConfig's.
  bool allows_plain = true;      ///< False: tcp:// endpoints are refused (TlsErrc::kPlainRefused).
};

/// Listens on and connects to tls:// endpoints with the certificates of `source`; others go to `inner`, which outlives
/// it. A stream from connect() is up: the peer has proved its identity. One from accept() is not: see
/// Stream::handshake(). Changed files are read again before a connection is made.
std::unique_ptr<Network> make_tls_network(Network& inner, std::shared_ptr<TlsSource> source,
                                          TlsNetworkOptions options = {});

}  // namespace kv
