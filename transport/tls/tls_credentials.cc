#include "transport/tls/tls_credentials.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <vector>

#include "base/assert.h"
#include "base/text/printable.h"
#include "transport/tls/tls_identity.h"
#include "transport/tls/tls_stream.h"

namespace kv {
namespace {

constexpr std::size_t kFileBytesMax = 8 << 20;  ///< A CRL of a large CA has some MiB.
/// Size of one read from the socket; freed while it is empty.
constexpr std::size_t kReadBufferBytes = 128 * 1024;

template <auto destroy>
struct FreeWith {
  void operator()(auto* handle) const noexcept { destroy(handle); }
};
using Bio = std::unique_ptr<BIO, FreeWith<&BIO_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<&X509_free>>;
using Crl = std::unique_ptr<X509_CRL, FreeWith<&X509_CRL_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<&EVP_PKEY_free>>;
using Verification = std::unique_ptr<X509_STORE_CTX, FreeWith<&X509_STORE_CTX_free>>;

Failure wrong(const char* option, const std::string& file, const std::string& what) {
  return {Errc::kBadRequest, std::string(option) + ": " + printable(file) + ": " + what};
}

/// Words of the last error in this thread's queue, which is empty afterwards.
std::string last_words() {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

/// A key with a passphrase must not stop the daemon at a prompt.
int no_passphrase(char*, int, int, void*) { return -1; }

Result<std::string, Failure> read_file(const char* option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return wrong(option, path, std::string("cannot be read: ") + std::strerror(errno));
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof()))
    return wrong(option, path, "cannot be read; a file in PEM form is needed");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) return wrong(option, path, "is longer than 8 MiB");
  return text;
}

/// All objects of one kind in a PEM file. OpenSSL skips text that is not PEM; damaged PEM is an error.
template <class Handle, auto read>
Result<std::vector<Handle>, Failure> read_all(const char* option, const std::string& path, const char* what) {
  const auto text = read_file(option, path);
  if (!text) return text.error();
  const Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  KV_ASSERT(bio);
  ERR_clear_error();
  std::vector<Handle> all;
  while (Handle one{read(bio.get(), nullptr, &no_passphrase, nullptr)}) all.push_back(std::move(one));
  const unsigned long error = ERR_peek_last_error();
  const bool is_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  const std::string words = last_words();
  if (!is_end) return wrong(option, path, std::string("holds a damaged ") + what + " (" + words + ")");
  if (all.empty()) return wrong(option, path, std::string("holds no ") + what + " in PEM form");
  return all;
}

std::string day_of(TlsCredentials::Time time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts));
}

int credentials_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

}  // namespace

std::string check_tls_config(const TlsConfig& config) {
  for (const auto& [option, file] : {std::pair("tls-cert", &config.cert_file), std::pair("tls-key", &config.key_file),
                                     std::pair("tls-ca", &config.ca_file)}) {
    if (file->empty())
      return std::string(option) + ": not given, needed: TLS here is mutual, with tls-cert, tls-key and tls-ca";
  }
  const auto is_visible = [](char c) { return c > ' ' && c < 127; };
  const bool is_uri = config.server_name.find("://") != std::string::npos;
  if (config.server_name.size() > (is_uri ? 2048 : 253) || !std::ranges::all_of(config.server_name, is_visible)) {
    return "tls-server-name: '" + printable(config.server_name.substr(0, 256)) +
           "', allowed are a DNS name or an address of up to 253 visible characters, and a URI of up to 2048";
  }
  for (const std::string& pattern : config.node_names) {
    if (const std::string why = check_name_pattern(pattern); !why.empty()) return "tls-names: " + why;
  }
  for (const std::string& pattern : config.allowed_names) {
    if (const std::string why = check_name_pattern(pattern); !why.empty()) return "tls-allowed-name: " + why;
  }
  return "";
}

TlsCredentials::TlsCredentials(TlsConfig config, TlsSide side) : config_(std::move(config)), side_(side) {}
TlsCredentials::~TlsCredentials() { SSL_CTX_free(context_); }

const TlsCredentials& TlsCredentials::of(const SSL_CTX& context) {
  return *static_cast<const TlsCredentials*>(SSL_CTX_get_ex_data(&context, credentials_index()));
}

Result<std::shared_ptr<const TlsCredentials>, Failure> TlsCredentials::read(const TlsConfig& config, TlsSide side) {
  if (std::string why = check_tls_config(config); !why.empty()) return Failure(Errc::kBadRequest, std::move(why));
  const std::shared_ptr<TlsCredentials> made(new TlsCredentials(config, side));
  if (Failure failed = made->load(); failed.code) return failed;
  return std::shared_ptr<const TlsCredentials>(made);
}

Failure TlsCredentials::load() {
  ERR_clear_error();
  context_ = SSL_CTX_new(side_ == TlsSide::kNode ? TLS_server_method() : TLS_client_method());
  if (context_ == nullptr) return {Errc::kOutOfMemory, "tls: " + last_words()};
  SSL_CTX_set_ex_data(context_, credentials_index(), this);
  SSL_CTX_set_security_level(context_, 2);
  // AES-128 first: on processors with AES instructions the fastest of the three, and as strong as P-256.
  const bool is_set =
      SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  // OpenSSL's own configuration file may forbid the required settings.
  if (!is_set) return {Errc::kUnsupported, "tls: TLS 1.3 is not available: " + last_words()};
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context_, 0);
  SSL_CTX_set_options(context_, SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context_, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_default_read_buffer_len(context_, kReadBufferBytes);
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &TlsStream::verify);
  for (const auto step : {&TlsCredentials::load_cert, &TlsCredentials::load_key, &TlsCredentials::load_ca,
                          &TlsCredentials::load_ends, &TlsCredentials::load_crl}) {
    if (Failure failed = (this->*step)(); failed.code) return failed;
  }
  return {};
}

Failure TlsCredentials::load_cert() {
  const auto fail = [&](const std::string& what) { return wrong("tls-cert", config_.cert_file, what); };
  auto chain = read_all<Certificate, &PEM_read_bio_X509>("tls-cert", config_.cert_file, "certificate");
  if (!chain) return chain.error();
  X509* const own = chain->front().get();
  const auto begins = time_of(X509_get0_notBefore(own)), ends = time_of(X509_get0_notAfter(own));
  if (!begins || !ends) return fail("has no valid dates");
  const Time now = std::chrono::system_clock::now();
  if (*ends <= now) return fail("expired at " + day_of(*ends) + "; a certificate that is valid now is needed");
  if (*begins > now)
    return fail("is valid from " + day_of(*begins) + " on only; a certificate that is valid now is needed");
  if (SSL_CTX_use_certificate(context_, own) != 1)
    return fail("cannot be used (" + last_words() +
                "); needed are RSA of 2048 bits or more, P-256 or Ed25519, and no SHA-1");
  for (std::size_t i = 1; i < chain->size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context_, (*chain)[i].get()) != 1)
      return fail("certificate " + std::to_string(i + 1) + " cannot be used (" + last_words() + ")");
  }
  return {};
}

Failure TlsCredentials::load_key() {
  const auto fail = [&](const std::string& what) { return wrong("tls-key", config_.key_file, what); };
  const auto text = read_file("tls-key", config_.key_file);
  if (!text) return text.error();
  const Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_passphrase, nullptr));
  OPENSSL_cleanse(const_cast<char*>(text->data()), text->size());
  if (!key) {
    ERR_clear_error();
    return fail("holds no private key in PEM form without a passphrase");
  }
  if (SSL_CTX_use_PrivateKey(context_, key.get()) != 1 || SSL_CTX_check_private_key(context_) != 1) {
    ERR_clear_error();
    return fail("is not the key of the certificate in " + printable(config_.cert_file));
  }
  return {};
}

Failure TlsCredentials::load_ca() {
  const auto fail = [&](const std::string& what) { return wrong("tls-ca", config_.ca_file, what); };
  auto all = read_all<Certificate, &PEM_read_bio_X509>("tls-ca", config_.ca_file, "certificate");
  if (!all) return all.error();
  const auto is_whole = [&](const Certificate& one) {
    return std::ranges::any_of(*all, [&](const Certificate& above) {
      return X509_check_issued(above.get(), one.get()) == X509_V_OK;  // a root by itself
    });
  };
  // An intermediate CA suffices: cert-manager, Vault and step-ca write files without the root. Not where the file has
  // all issuers: a chain then ends at its root, whose list of revoked certificates can be checked only there.
  if (!std::ranges::all_of(*all, is_whole))
    X509_STORE_set_flags(SSL_CTX_get_cert_store(context_), X509_V_FLAG_PARTIAL_CHAIN);
  for (const Certificate& one : *all) {
    const auto ends = time_of(X509_get0_notAfter(one.get()));
    if (!ends) return fail("has no valid dates");
    if (X509_check_ca(one.get()) == 0) return fail("holds a certificate that is no CA's");
    ca_ends_ = std::max(ca_ends_, *ends);
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), one.get()) != 1) return fail(last_words());
    if (side_ == TlsSide::kNode && SSL_CTX_add_client_CA(context_, one.get()) != 1) return fail(last_words());
  }
  return {};
}

/// Builds this side's chain as a peer with the same CAs does.
Failure TlsCredentials::load_ends() {
  STACK_OF(X509)* beside_own = nullptr;
  SSL_CTX_get0_chain_certs(context_, &beside_own);
  const Verification built(X509_STORE_CTX_new());
  if (!built || X509_STORE_CTX_init(built.get(), SSL_CTX_get_cert_store(context_), SSL_CTX_get0_certificate(context_),
                                    beside_own) != 1)
    return {Errc::kOutOfMemory, "tls: " + last_words()};
  // The verdict is the peer's: its CAs may be others than this side's. Only dates are looked at here.
  X509_STORE_CTX_set_verify_cb(built.get(), [](int, X509_STORE_CTX*) { return 1; });
  X509_verify_cert(built.get());
  ERR_clear_error();
  STACK_OF(X509)* const chain = X509_STORE_CTX_get0_chain(built.get());
  const int shown_count = X509_STORE_CTX_get_num_untrusted(built.get());  // the others are in ca_file
  const Time now = std::chrono::system_clock::now();
  cert_ends_ = Time::max();
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    const X509* const one = sk_X509_value(chain, i);
    const auto begins = time_of(X509_get0_notBefore(one)), ends = time_of(X509_get0_notAfter(one));
    if (i > 0 && i >= shown_count) {
      ca_ends_ = ends.value_or(Time::min());
      break;
    }
    const auto fail = [&](const std::string& what) {
      return wrong(
          "tls-cert", config_.cert_file,
          "certificate " + std::to_string(i + 1) + " of the chain " + what + "; a chain that is valid now is needed");
    };
    if (!begins || !ends) return fail("has no valid dates");
    if (*ends <= now) return fail("expired at " + day_of(*ends));
    if (*begins > now) return fail("is valid from " + day_of(*begins) + " on only");
    cert_ends_ = std::min(cert_ends_, *ends);
  }
  return {};
}

Failure TlsCredentials::load_crl() {
  if (config_.crl_file.empty()) return {};
  const auto fail = [&](const std::string& what) { return wrong("tls-crl", config_.crl_file, what); };
  auto all = read_all<Crl, &PEM_read_bio_X509_CRL>("tls-crl", config_.crl_file, "list of revoked certificates (CRL)");
  if (!all) return all.error();
  X509_STORE* const store = SSL_CTX_get_cert_store(context_);
  for (const Crl& one : *all) {
    if (const auto next = time_of(X509_CRL_get0_nextUpdate(one.get())); next)
      crl_ends_ = std::min(crl_ends_.value_or(Time::max()), *next);
    if (X509_STORE_add_crl(store, one.get()) != 1) return fail(last_words());
  }
  // An expired list would make this side refuse every peer. Reported here, where the file has a name.
  if (crl_ends_ && *crl_ends_ <= std::chrono::system_clock::now())
    return fail("had to be replaced by " + day_of(*crl_ends_) + "; a list that is valid now is needed");
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  return {};
}

}  // namespace kv
