// transport/tls/: TLS 1.3 over any stream, on OpenSSL. Start here.
//
// Both sides prove who they are, always. Files, in reading order:
//   tls.h             what is configured, and why a handshake fails
//   tls_identity.h    names in certificates, and which of them are allowed
//   tls_credentials.h certificate, key and CA, as read from files at one moment
//   tls_source.h      the present ones, read again when the files change (file_stamp.h)
//   tls_stream.h      the stream
//   tls_network.h     tls:// endpoints
//
// OpenSSL is used by itself and not through Asio's ssl::stream: that one has an operation in flight on the caller's
// memory while it waits, which Stream forbids, and takes 17 KiB at a time. Here a call encrypts as many records as the
// socket takes at once, and its cost besides the cipher is one virtual call for 128 KiB.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kv {

enum class TlsSide : unsigned char { kNode, kClient };

/// Files are PEM. Messages name them as the options of the programs do: tls-cert, tls-key, tls-ca, tls-crl.
struct TlsConfig {
  std::string cert_file = {};  ///< This side's certificate, then those between it and the CA.
  std::string key_file = {};   ///< Its private key, without a passphrase.
  std::string ca_file = {};    ///< Who signed the peers' certificates; one or more.
  std::string crl_file = {};   ///< Revoked certificates: one list for each CA of the peers' chains. Empty: not checked.
  /// Of a client: whom a node must prove to be, a DNS name, an IP address or a URI. Empty: the endpoint's host.
  std::string server_name = {};
  /// Of a client with a token: names that nodes may have of which only a cluster's map tells (tls_identity.h), beside
  /// the hosts of the endpoints that the client was given.
  std::vector<std::string> node_names = {};
  /// Of a node: names that clients may have (tls_identity.h). None: every certificate of the CA is accepted.
  std::vector<std::string> allowed_names = {};

  bool is_given() const {
    return !cert_file.empty() || !key_file.empty() || !ca_file.empty() || !crl_file.empty() || !server_name.empty() ||
           !allowed_names.empty();
  }
};

/// Why there is no TLS with a peer. The words are for the person who looks at the log of either side.
enum class TlsErrc {
  kNotTls = 1,         ///< What came is no TLS.
  kPlainRefused = 2,   ///< A plain endpoint, for a client that was given TLS endpoints only.
  kNotConfigured = 3,  ///< A tls:// endpoint, and no certificates.
  kNoCertificate = 4,  ///< The peer showed none.
  kBadName = 5,        ///< Whom the peer must prove to be is nobody that a certificate could name.
  kNotNamed = 6        ///< A map told of a node whom this client's configuration does not name: no token goes there.
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
