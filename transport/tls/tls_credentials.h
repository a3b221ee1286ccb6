// transport/tls/tls_credentials.h: who this side is and whom it believes, as read from files at one moment.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "transport/tls/tls.h"

struct ssl_ctx_st;

namespace kv {

/// Never changes: connections that began with it keep it, whatever the files hold by then.
///   1. TLS 1.3 alone, keys of at least 112 bits of strength (RSA 2048, P-256), no SHA-1.
///   2. The peer has to show a certificate, and it has to be good for its side.
///   3. No tickets: a session that is resumed would not be held against a newer CRL or list of names.
/// Thread safety: any.
class TlsCredentials {
 public:
  /// Errors: kBadRequest, with the option, its file, what is wrong in it and what is allowed. A certificate of this
  /// side that is over, or that has not begun, is an error too; one of a CA is not.
  static Result<std::shared_ptr<const TlsCredentials>, Failure> read(const TlsConfig& config, TlsSide side);
  ~TlsCredentials();
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  ssl_ctx_st* context() const { return context_; }  ///< Whoever makes an SSL of it keeps this until it is freed.
  static const TlsCredentials& of(const ssl_ctx_st& context);  ///< Of a context() that is in use.
  const TlsConfig& config() const { return config_; }
  TlsSide side() const { return side_; }

  using Time = std::chrono::system_clock::time_point;
  Time cert_ends() const { return cert_ends_; }
  Time ca_ends() const { return ca_ends_; }                   ///< The first of them.
  std::optional<Time> crl_ends() const { return crl_ends_; }  ///< When the first list has to be replaced.

 private:
  TlsCredentials(TlsConfig config, TlsSide side);
  Failure load();
  Failure load_cert();
  Failure load_key();
  Failure load_ca();
  Failure load_crl();

  TlsConfig config_;
  TlsSide side_;
  ssl_ctx_st* context_ = nullptr;
  Time cert_ends_{}, ca_ends_{};
  std::optional<Time> crl_ends_;
};

/// What is missing or cannot be, before any file is read; empty: nothing.
std::string check_tls_config(const TlsConfig& config);

}  // namespace kv
