#include "transport/tls/tls.h"

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "base/error_words.h"

namespace kv {
namespace {

std::string refused_there(int alert) {
  const char* hint = "";
  switch (alert) {
    case SSL_AD_CERTIFICATE_REQUIRED: hint = ": it wants a certificate from this side"; break;
    case SSL_AD_UNKNOWN_CA: hint = ": no chain leads from this side's tls-cert to its CA file"; break;
    case SSL_AD_HANDSHAKE_FAILURE: hint = ": perhaps this side's name is not among those it allows; see its log"; break;
    case SSL_AD_PROTOCOL_VERSION: hint = ": one of the two speaks no TLS 1.3"; break;
    default: break;
  }
  return std::string("tls: the peer refused this side (") + SSL_alert_desc_string_long(alert) + ")" + hint;
}

std::string refused_here(int verdict) {
  const char* hint = "";
  switch (verdict) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:  // a CA of that name exists, with another key
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: hint = "; no chain leads from it to tls-ca"; break;
    case X509_V_ERR_UNABLE_TO_GET_CRL: hint = "; tls-crl has no list of the CA that signed it"; break;
    case X509_V_ERR_CRL_HAS_EXPIRED: hint = "; fetch a new tls-crl"; break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: hint = "; its names do not have the one that was asked for"; break;
    case X509_V_ERR_APPLICATION_VERIFICATION: return "tls: the peer's certificate is refused: no name in it is allowed";
    default: break;
  }
  return std::string("tls: the peer's certificate is refused: ") + X509_verify_cert_error_string(verdict) + hint;
}

std::string tls_words(int value) {
  if (value >= kTlsRefusedThere) return refused_there(value - kTlsRefusedThere);
  if (value >= kTlsRefusedHere) return refused_here(value - kTlsRefusedHere);
  switch (static_cast<TlsErrc>(value)) {
    case TlsErrc::kNotTls: return "tls: the peer does not speak TLS";
    case TlsErrc::kPlainRefused: return "tls: a tcp:// endpoint is refused, since only tls:// endpoints were given";
    case TlsErrc::kNoCertificate: return "tls: the peer showed no certificate";
    case TlsErrc::kBadName: return "tls: no certificate can have the name that the peer must prove";
    case TlsErrc::kNotNamed:
      return "tls: this client has a token, and the node that the cluster's map names is none that the client was "
             "given: no certificate name of it is an endpoint's host or among tls-names";
    case TlsErrc::kNotConfigured: return "tls: a tls:// endpoint needs tls-cert, tls-key and tls-ca";
  }
  return "tls: unknown error";
}

}  // namespace

const boost::system::error_category& tls_category() noexcept {
  static const ErrorWords category("kvstore.tls", &tls_words);
  return category;
}

}  // namespace kv
