// transport/tls/tls_credentials.h: this side's identity and its trusted CAs, as read from files at one moment.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "transport/tls/tls.h"

struct ssl_ctx_st;

namespace kv {

/// Immutable: connections keep the credentials they began with, whatever the files hold later.
///   1. TLS 1.3 alone, keys of at least 112 bits of strength (RSA 2048, P-256), no SHA-1.
///   2. The peer has to show a certificate that is valid for its side.
///   3. No tickets: a resumed session would escape a newer CRL or list of names.
/// Thread safety: any.
class TlsCredentials {
 public:
  /// Errors: kBadRequest, with the option, its file, the fault and the allowed form. An expired or not yet valid
  /// certificate of this side's chain in cert_file is an error too; one of a CA is not.
  static Result<std::shared_ptr<const TlsCredentials>, Failure> read(const TlsConfig& config, TlsSide side);
  ~TlsCredentials();
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  ssl_ctx_st* context() const { return context_; }  ///< An SSL made from it requires this object to outlive it.
  static const TlsCredentials& of(const ssl_ctx_st& context);  ///< Of a context() in use.
  const TlsConfig& config() const { return config_; }
  TlsSide side() const { return side_; }

  using Time = std::chrono::system_clock::time_point;
  /// First end of the certificates in cert_file that a peer verifies: this side's own, and those between it and a CA.
  Time cert_ends() const { return cert_ends_; }
  /// End of the CA that this side's chain leads to. Another CA of the file does not count: during a change of CAs, the
  /// former one may end. If the chain leads to none of them (the peers trust another CA), the file's latest end.
  Time ca_ends() const { return ca_ends_; }
  std::optional<Time> crl_ends() const { return crl_ends_; }  ///< Date by which the first list has to be replaced.

 private:
  TlsCredentials(TlsConfig config, TlsSide side);
  Failure load();
  Failure load_cert();
  Failure load_key();
  Failure load_ca();
  Failure load_ends();
  Failure load_crl();

  TlsConfig config_;
  TlsSide side_;
  ssl_ctx_st* context_ = nullptr;
  Time cert_ends_{}, ca_ends_{};
  std::optional<Time> crl_ends_;
};

/// Describes a missing or impossible setting, before any file is read; empty: valid.
std::string check_tls_config(const TlsConfig& config);

}  // namespace kv
