// transport/tls/: TLS 1.3 over any stream, on OpenSSL. Start here.
//
// Both sides always prove their identity. Files, in reading order:
//   tls.h             configuration, and reasons why a handshake fails
//   tls_identity.h    names in certificates, and rules that allow them
//   tls_credentials.h certificate, key and CA, as read from files at one moment
//   tls_source.h      the present ones, read again when the files change (file_stamp.h)
//   tls_stream.h      the stream
//   tls_network.h     tls:// endpoints
//
// OpenSSL is used directly, not through Asio's ssl::stream: that one has an operation in flight on the caller's memory
// while it waits, which Stream forbids, and takes 17 KiB at a time. Here a call encrypts as many records as the socket
// takes at once, and its cost besides the cipher is one virtual call for 128 KiB.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

enum class TlsSide : unsigned char { kNode, kClient };

/// Files are PEM. Messages name them by the programs' options: tls-cert, tls-key, tls-ca, tls-crl.
struct TlsConfig {
  std::string cert_file = {};  ///< This side's certificate, then the intermediate ones up to the CA.
  std::string key_file = {};   ///< Its private key, without a passphrase.
  std::string ca_file = {};    ///< CAs of the peers' certificates; one or more.
  std::string crl_file = {};   ///< Revoked certificates: one list for each CA of the peers' chains. Empty: not checked.
  /// Client: the identity a node must prove, a DNS name, an IP address or a URI. Empty: the endpoint's host.
  std::string server_name = {};
  /// Client with a token: names allowed to nodes of a cluster's map, beside the client's own endpoints
  /// (tls_identity.h).
  std::vector<std::string> node_names = {};
  /// Node: names that clients may have (tls_identity.h). Empty: every certificate of the CA is accepted.
  std::vector<std::string> allowed_names = {};

  bool is_given() const {
    return !cert_file.empty() || !key_file.empty() || !ca_file.empty() || !crl_file.empty() || !server_name.empty() ||
           !allowed_names.empty();
  }
};

/// Why TLS with a peer failed. The words are for the person who reads either side's log.
enum class TlsErrc {
  kNotTls = 1,         ///< The received bytes are not TLS.
  kPlainRefused = 2,   ///< A plain endpoint, for a client configured with TLS endpoints only.
  kNotConfigured = 3,  ///< A tls:// endpoint without certificates.
  kNoCertificate = 4,  ///< The peer showed no certificate.
  kBadName = 5,        ///< The peer's required name is not one that a certificate can have.
  kNotNamed = 6        ///< A map lists a node that this client's configuration does not name: it gets no token.
  // From kTlsRefusedHere on: this side refuses the peer's certificate (X509_V_ERR_...).
  // From kTlsRefusedThere on: the peer ended the handshake, or the session, with an alert.
};
inline constexpr int kTlsRefusedHere = 1000, kTlsRefusedThere = 2000;

const boost::system::error_category& tls_category() noexcept;
inline error_code make_error_code(TlsErrc e) noexcept { return {static_cast<int>(e), tls_category()}; }

}  // namespace kv

namespace boost::system {
template <>
struct is_error_code_enum<kv::TlsErrc> : std::true_type {};
}  // namespace boost::system
