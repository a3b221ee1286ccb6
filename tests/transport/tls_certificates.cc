#include "tests/transport/tls_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/assert.h"

namespace kv {
namespace {

template <auto destroy>
struct FreeWith {
  void operator()(auto* handle) const noexcept { destroy(handle); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<&EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<&X509_free>>;
using Bio = std::unique_ptr<BIO, FreeWith<&BIO_free>>;

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(bio, &bytes);
  return {bytes, static_cast<std::size_t>(count)};
}

template <class Write>
std::string pem_of(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  KV_ASSERT(write(bio.get()) == 1);
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  return pem_of([&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
}

Key make_key(CertificateOrder::Key kind) {
  Key key;
  switch (kind) {
    case CertificateOrder::Key::kP256: key.reset(EVP_EC_gen("P-256")); break;
    case CertificateOrder::Key::kRsa2048: key.reset(EVP_RSA_gen(2048)); break;
    case CertificateOrder::Key::kRsa1024: key.reset(EVP_RSA_gen(1024)); break;
  }
  KV_ASSERT(key);
  return key;
}

void add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  KV_ASSERT(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Certificate begin_certificate(EVP_PKEY* key, const std::string& common_name, long serial, std::chrono::seconds begins,
                              std::chrono::seconds ends) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), begins.count());
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), ends.count());
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

struct TestCa::Impl {
  Key key;
  Certificate certificate;
  long serial_last = 1;

  /// `issuer` null: signed by itself.
  Impl(const Impl* issuer, const std::string& common_name, long serial, std::chrono::seconds ends)
      : key(make_key(CertificateOrder::Key::kP256)),
        certificate(begin_certificate(key.get(), common_name, serial, std::chrono::seconds(-7200), ends)) {
    X509* const own = certificate.get();
    X509* const above = issuer == nullptr ? own : issuer->certificate.get();
    X509_set_issuer_name(own, X509_get_subject_name(above));
    add_extension(own, above, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(own, above, NID_key_usage, "critical,keyCertSign,cRLSign");
    add_extension(own, above, NID_subject_key_identifier, "hash");
    KV_ASSERT(X509_sign(own, issuer == nullptr ? key.get() : issuer->key.get(), EVP_sha256()) > 0);
  }
  std::string pem() const {
    return pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
  }
};

TestCa::TestCa(const std::string& common_name, std::chrono::seconds ends)
    : impl_(std::make_unique<Impl>(nullptr, common_name, 1, ends)), pem_(impl_->pem()) {}

TestCa::TestCa(const TestCa& issuer, const std::string& common_name, std::chrono::seconds ends)
    : impl_(std::make_unique<Impl>(issuer.impl_.get(), common_name, ++issuer.impl_->serial_last, ends)),
      pem_(impl_->pem()) {}

TestCa::~TestCa() = default;

IssuedCertificate TestCa::issue(const CertificateOrder& order) {
  IssuedCertificate issued;
  issued.serial = ++impl_->serial_last;
  const Key key = make_key(order.key);
  const Certificate certificate =
      begin_certificate(key.get(), order.common_name, issued.serial, order.begins, order.ends);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(impl_->certificate.get()));
  std::string names;
  for (const std::string& name : order.names) names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) add_extension(certificate.get(), impl_->certificate.get(), NID_subject_alt_name, names);
  if (!order.usage.empty()) add_extension(certificate.get(), impl_->certificate.get(), NID_ext_key_usage, order.usage);
  KV_ASSERT(X509_sign(certificate.get(), impl_->key.get(), EVP_sha256()) > 0);
  issued.cert = pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
  issued.key = pem_of(key.get());
  return issued;
}

std::string TestCa::crl(const std::vector<long>& revoked, std::chrono::seconds ends) const {
  const std::unique_ptr<X509_CRL, FreeWith<&X509_CRL_free>> list(X509_CRL_new());
  X509_CRL_set_version(list.get(), 1);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(impl_->certificate.get()));
  const std::unique_ptr<ASN1_TIME, FreeWith<&ASN1_TIME_free>> last(X509_gmtime_adj(nullptr, -7200));
  const std::unique_ptr<ASN1_TIME, FreeWith<&ASN1_TIME_free>> next(X509_gmtime_adj(nullptr, ends.count()));
  X509_CRL_set1_lastUpdate(list.get(), last.get());
  X509_CRL_set1_nextUpdate(list.get(), next.get());
  for (const long serial : revoked) {
    X509_REVOKED* const one = X509_REVOKED_new();
    const std::unique_ptr<ASN1_INTEGER, FreeWith<&ASN1_INTEGER_free>> number(ASN1_INTEGER_new());
    ASN1_INTEGER_set(number.get(), serial);
    X509_REVOKED_set_serialNumber(one, number.get());
    X509_REVOKED_set_revocationDate(one, last.get());
    X509_CRL_add0_revoked(list.get(), one);
  }
  KV_ASSERT(X509_CRL_sign(list.get(), impl_->key.get(), EVP_sha256()) > 0);
  return pem_of([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, list.get()); });
}

CertificateFiles::CertificateFiles() {
  std::string path = std::filesystem::temp_directory_path() / "kvstore-tls-XXXXXX";
  KV_ASSERT(::mkdtemp(path.data()) != nullptr);
  directory_ = path;
}

CertificateFiles::~CertificateFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string CertificateFiles::write(const std::string& name, const std::string& text) const {
  std::ofstream(path(name + ".new"), std::ios::binary) << text;
  std::filesystem::rename(path(name + ".new"), path(name));
  return path(name);
}

TlsConfig CertificateFiles::write(const std::string& name, const IssuedCertificate& issued,
                                  const std::string& ca) const {
  TlsConfig config;
  config.cert_file = write(name + ".pem", issued.cert);
  config.key_file = write(name + ".key", issued.key);
  config.ca_file = write(name + "-ca.pem", ca);
  return config;
}

std::string with_passphrase(const std::string& key) {
  const Bio in(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
  const Key read(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr));
  return pem_of([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, read.get(), EVP_aes_128_cbc(), "secret", 6, nullptr, nullptr);
  });
}

}  // namespace kv
