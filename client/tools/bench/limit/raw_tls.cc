#include "client/tools/bench/limit/raw_tls.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <stdexcept>
#include <string>

namespace kv {
namespace {

void check(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string("OpenSSL: ") + what);
}

SSL_CTX* make_context(const SSL_METHOD* method) {
  SSL_CTX* const context = SSL_CTX_new(method);
  check(context != nullptr, "context");
  check(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1, "TLS 1.3");
  check(SSL_CTX_set_ciphersuites(context,
                                 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") == 1,
        "ciphers");
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, 128 * 1024);
  return context;
}

}  // namespace

RawTls::RawTls() : server_(make_context(TLS_server_method())), client_(make_context(TLS_client_method())) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  check(key != nullptr && certificate != nullptr, "key");
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
  X509_set_pubkey(certificate, key);
  check(X509_sign(certificate, key, EVP_sha256()) > 0 && SSL_CTX_use_certificate(server_, certificate) == 1 &&
            SSL_CTX_use_PrivateKey(server_, key) == 1,
        "certificate");
  X509_free(certificate);
  EVP_PKEY_free(key);
}

RawTls::~RawTls() {
  SSL_CTX_free(server_);
  SSL_CTX_free(client_);
}

RawTls::Connection::Connection(const RawTls& tls, int fd, bool is_server)
    : ssl_(SSL_new(is_server ? tls.server_ : tls.client_)) {
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd) != 1) return;
  is_up_ = (is_server ? SSL_accept(ssl_) : SSL_connect(ssl_)) == 1;
}

RawTls::Connection::~Connection() { SSL_free(ssl_); }

bool RawTls::Connection::send_all(const void* from, std::size_t bytes) {
  const auto* next = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    std::size_t sent = 0;
    if (SSL_write_ex(ssl_, next, bytes, &sent) != 1) return false;
    next += sent;
    bytes -= sent;
  }
  return true;
}

bool RawTls::Connection::receive_all(void* to, std::size_t bytes) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    std::size_t got = 0;
    if (SSL_read_ex(ssl_, next, bytes, &got) != 1) return false;
    next += got;
    bytes -= got;
  }
  return true;
}

}  // namespace kv
