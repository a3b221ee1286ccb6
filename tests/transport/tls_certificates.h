// tests/transport/tls_certificates.h: a certification authority for one test, and what it signs, good and bad.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/tls/tls.h"

namespace kv {

struct CertificateOrder {
  /// As OpenSSL writes them: "DNS:a.example", "IP:127.0.0.1", "URI:spiffe://a/b".
  std::vector<std::string> names = {"DNS:localhost", "IP:127.0.0.1"};
  std::chrono::seconds begins{-3600}, ends{86400};  ///< From now.
  enum class Key { kP256, kRsa2048, kRsa1024 } key = Key::kP256;
  std::string common_name = "test";
  std::string usage = "serverAuth,clientAuth";
};

struct IssuedCertificate {
  std::string cert, key;  ///< PEM.
  long serial = 0;
};

class TestCa {
 public:
  explicit TestCa(const std::string& common_name = "test CA", std::chrono::seconds ends = std::chrono::hours(48));
  /// An intermediate one, signed by `issuer`.
  TestCa(const TestCa& issuer, const std::string& common_name, std::chrono::seconds ends);
  ~TestCa();
  const std::string& pem() const { return pem_; }
  IssuedCertificate issue(const CertificateOrder& order = {});
  /// A list of revoked certificates that has to be replaced `ends` from now.
  std::string crl(const std::vector<long>& revoked, std::chrono::seconds ends = std::chrono::hours(24)) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string pem_;
};

/// A directory with PEM files that goes with its owner.
class CertificateFiles {
 public:
  CertificateFiles();
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const;  ///< Its path. Replaces in one step.
  /// NAME.pem, NAME.key and NAME-ca.pem.
  TlsConfig write(const std::string& name, const IssuedCertificate& issued, const std::string& ca) const;

 private:
  std::string directory_;
};

/// The private key, behind a passphrase.
std::string with_passphrase(const std::string& key);

}  // namespace kv
